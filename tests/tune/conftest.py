"""The tuner's tests time nothing, and do not warm up for it."""

import pytest


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch):
    from gemmkit.bench import timer

    monkeypatch.setattr(timer, "WARM_UP_S", 0.0)
