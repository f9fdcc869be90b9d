"""A wait for wgmma is one for the part of all four warps; who may release a stage after it."""

from __future__ import annotations

import numpy as np
import pytest
from warpgroup_kernels import SOUND, kernel, run

from gemmkit.emulator.schedule import Schedule
from gemmkit.errors import DeviceError

_RELEASE = "arrive(at(&empty[s]));"
_EARLIER = "if (i > 0) arrive(at(&empty[(i - 1) % STAGES]));"
_STEPS, _PIPELINED = SOUND["bulk copies"], SOUND["one group in flight"]
_REGISTERS = SOUND["A in registers"]


def by_one_thread(source: str, release: str, thread: int = 0, more: str = "") -> str:
    """One thread of each warpgroup arrives for all."""
    assert source.count(release) == 1
    one = f"{more}if (threadIdx.x % 128 == {thread}) {{ {release} }}"
    return source.replace(release, one).replace("&empty[s]), CONSUMERS)", "&empty[s]), WARPGROUPS)")


@pytest.mark.parametrize("thread", [0, 77, 127])
@pytest.mark.parametrize(
    ("source", "release"), [(_STEPS, _RELEASE), (_PIPELINED, _EARLIER)], ids=["steps", "in flight"]
)
@pytest.mark.sample
def test_one_thread_may_release_what_its_warpgroup_has_read(
    source: str, release: str, thread: int
) -> None:
    changed = by_one_thread(source, release, thread)
    for seed in range(4):
        execution, product, exact = run(changed, seed=seed, sanitize=True)
        assert np.array_equal(product, exact)
        assert execution.findings == ()
        assert np.array_equal(run(changed, seed=seed)[1], exact)


def test_two_warpgroups_release_with_one_thread_each() -> None:
    changed = by_one_thread(SOUND["two warpgroups"], _RELEASE)
    for seed in range(3):
        execution, product, exact = run(
            changed, (128, 64, 512), tile=(128, 64), seed=seed, sanitize=True
        )
        assert np.array_equal(product, exact)
        assert execution.findings == ()


def test_ordinary_reads_of_other_warps_are_not_covered() -> None:
    """A of each warp is loaded to its registers, which its wgmma does not tell the others."""
    execution, *_ = run(by_one_thread(_REGISTERS, _RELEASE), sanitize=True)
    assert {each.kind for each in execution.findings} & {"write after read", "phase overrun"}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_release_before_the_wait_is_found(seed: int) -> None:
    released = by_one_thread(_STEPS, _RELEASE)
    one = "if (threadIdx.x % 128 == 0) { " + _RELEASE + " }"
    early = released.replace(one, "").replace("      wait_groups<0>();", f"{one} wait_groups<0>();")
    execution, *_ = run(early, seed=seed, sanitize=True)
    assert "write after read" in {each.kind for each in execution.findings}


def test_a_release_of_the_group_in_flight_is_found() -> None:
    execution, *_ = run(by_one_thread(_PIPELINED.replace(_EARLIER, _RELEASE), _RELEASE),
                        sanitize=True)  # fmt: skip
    assert "write after read" in {each.kind for each in execution.findings}


_LAST_WARP = "threadIdx.x / 32 == 3"
_ABSENT = {
    name: ("      fence();", f"{instead}\n      fence();")
    for name, instead in {
        "it waits elsewhere": f"if ({_LAST_WARP}) wait(at(&full[s]), i / STAGES & 1 ^ (i == 2));",
        "it has ended": f"if (i == 1 && {_LAST_WARP}) return;",
    }.items()
}


@pytest.mark.parametrize("name", _ABSENT)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_deadlock_names_the_warps_that_never_came(name: str, seed: int) -> None:
    execution, *_ = run(_STEPS.replace(*_ABSENT[name]), seed=seed, sanitize=True)
    found = next(each for each in execution.findings if each.kind == "deadlock")
    assert "warps 0-2 wait at" in found.message
    assert "for a wgmma that warp 3 of its warpgroup has not issued" in found.message


@pytest.mark.parametrize("name", _ABSENT)
def test_the_oracle_waits_for_the_same_warps(name: str) -> None:
    with pytest.raises(DeviceError, match="warps 3 of its warpgroup have not issued"):
        run(_STEPS.replace(*_ABSENT[name]), (64, 32, 256), by_oracle=True)


@pytest.mark.parametrize(
    ("source", "release"), [(_STEPS, _RELEASE), (_PIPELINED, _EARLIER)], ids=["steps", "in flight"]
)
def test_engine_and_oracle_agree(source: str, release: str) -> None:
    changed = by_one_thread(source, release)
    found, product, exact = run(changed, (64, 32, 384))
    expected, confirmed, _ = run(changed, (64, 32, 384), by_oracle=True)
    assert np.array_equal(product, exact)
    assert np.array_equal(confirmed, exact)
    assert np.array_equal(found.tally.executed, expected.tally.executed)
    assert np.array_equal(found.tally.lanes, expected.tally.lanes)


# The last warp issues its second wgmma once the first has waited for the first one.
_AHEAD = """
    const unsigned long long left = descriptor(As), right = descriptor(Bs);
    wait(at(&full[0]), 0);
    fence();
    multiply(d, left, right, 0);
    commit();
    if (threadIdx.x / 32 == 3) asm volatile("bar.sync 1, 64;" ::: "memory");
    multiply(d, left + 2, right + 2, 1);
    commit();
    wait_groups<@GROUPS@>();
    if (threadIdx.x / 32 == 0) asm volatile("bar.sync 1, 64;" ::: "memory");
    wait_groups<0>();
    keep(d);"""


@pytest.mark.parametrize("by_oracle", [False, True])
def test_a_wait_needs_the_groups_that_it_covers(by_oracle: bool) -> None:
    for groups, hangs in ((1, False), (0, True)):
        source = kernel(consumer=_AHEAD.replace("@GROUPS@", str(groups)))
        if hangs:
            with pytest.raises(DeviceError, match="deadlock"):
                run(source, (64, 32, 64), by_oracle=by_oracle)
        else:
            run(source, (64, 32, 64), by_oracle=by_oracle)


def test_a_schedule_cannot_pass_a_wait_alone() -> None:
    """Warp 0 runs up to its wait; what it waits for has to run first."""
    line = _line(_STEPS, "wgmma.wait_group")
    begun, loads = _line(_STEPS, "__syncthreads"), _line(_STEPS, "cp.async.bulk")
    steps = f"b0.0.0,w0-7@k.cu:{begun}+,w4@k.cu:{loads}x2+,w0@k.cu:{line}+"
    changed = by_one_thread(_STEPS, _RELEASE)
    for by_oracle in (False, True):
        _, product, exact = run(
            changed, (64, 32, 256), by_oracle=by_oracle, schedule=Schedule.parse(steps)
        )
        assert np.array_equal(product, exact)
        with pytest.raises(DeviceError, match="warp 0 waits at"):
            run(changed, (64, 32, 256), by_oracle=by_oracle,
                schedule=Schedule.parse(f"{steps},w0@end"))  # fmt: skip


def _line(source: str, text: str) -> int:
    return next(n for n, each in enumerate(source.split("\n"), 1) if text in each)
