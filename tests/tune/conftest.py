"""What the tuner's tests share: a store of their own, entries, no warming up."""

import pytest

from gemmkit.tune.entry import Entry, ProblemClass
from gemmkit.tune.freshness import Freshness
from gemmkit.tune.store import Store


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch):
    from gemmkit.bench import timer

    monkeypatch.setattr(timer, "WARM_UP_S", 0.0)


@pytest.fixture
def freshness():
    """Whatever the kernels' source is, this compiler is installed."""
    return Freshness(compiler="13.5.37")


@pytest.fixture
def store(tmp_path, freshness):
    return Store(tmp_path / "store.sqlite3", freshness)


@pytest.fixture
def make_entry(freshness):
    """An entry of a fresh kernel, with the given fields changed."""

    def make(**changes):
        fields = {
            "gpu": "h100-132sm",
            "problem": ProblemClass(m=64, n=64, k=64, aligned=True),
            "kernel": "naive",
            "config": {"BM": 32, "BN": 32},
            "outcome": "ok",
            "compiler": "13.5.37",
            "time_us": 10.0,
        }
        fields |= changes
        fields.setdefault("source", freshness.source(fields["kernel"]))
        return Entry(**fields)

    return make
