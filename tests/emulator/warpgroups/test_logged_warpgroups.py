"""What the sanitizers compare in native code gives the findings that Python would give alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from warpgroup_kernels import BUGS, SOUND, run, with_bug

from gemmkit.emulator.sanitizer.barrier_order import BarrierOrder
from gemmkit.emulator.sanitizer.logged_accesses import LoggedAccesses
from gemmkit.emulator.sanitizer.products import Products
from gemmkit.emulator.sanitizer.warpgroups import Warpgroups


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, native code knows no wgmma and no mbarrier, and leaves copies to Python."""

    def begin() -> None:
        monkeypatch.setattr(Products, "add", lambda *_: None)
        monkeypatch.setattr(LoggedAccesses, "initialized", lambda *_: None)
        monkeypatch.setattr(LoggedAccesses, "write", lambda *_: False)

    return begin


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.sample(8)
def test_the_findings_are_those_of_python(name: str, python_alone: Callable[[], None]) -> None:
    found, *_ = run(with_bug(name), sanitize=True)
    python_alone()
    expected, *_ = run(with_bug(name), sanitize=True)
    assert expected.findings
    assert found.findings == expected.findings


def _calls(monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> list[Any]:
    calls: list[Any] = []
    before = getattr(of, method)

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return before(self, *arguments)

    monkeypatch.setattr(of, method, counted)
    return calls


def test_python_hears_no_more_of_a_longer_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    products = _calls(monkeypatch, Warpgroups, "multiply")
    uses = _calls(monkeypatch, BarrierOrder, "_replay")
    counts = []
    # Python makes room for 64 wgmma of a warp, for twice as many, and so on.
    for depth in (80 * 16, 128 * 16):
        products.clear()
        uses.clear()
        source = SOUND["one group in flight"]
        execution, *_ = run(source, (64, 32, depth), sanitize=True, threads=1)
        assert not execution.findings
        counts.append((len(products), len(uses)))
    assert counts[0] == counts[1]
