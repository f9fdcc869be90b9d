"""The interleavings of findings between the blocks of a cluster give a wrong result when they are
replayed."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_kernels import LAST_MEETING, REDUCTION, SOUND, Launch, run, with_bug

from gemmkit.emulator.schedule import Landing, Run, Schedule
from gemmkit.findings import Finding


def changed(old: str, new: str, *, by_rank: int) -> Launch:
    """The reduction with a bug that does not show in the default order, the sums added by a block
    of another rank than 0."""
    sound = SOUND["reduction"]
    source = REDUCTION.replace("rank == 0", f"rank == {by_rank}")
    assert source.count(old) == 1
    return Launch(source.replace(old, new), sound.grid, sound.threads, sound.a, sound.c)


EARLIER = "t];\n  cluster_arrive();\n  cluster_wait();"
HIDDEN = {
    # Blocks run in the order of their ranks until they wait, and the last one goes on first.
    "the last block reads without a meeting": (
        changed(EARLIER, "t];\n", by_rank=3),
        "read after write",
    ),
    "peers overwrite what the last block reads": (
        changed(LAST_MEETING, "  if (rank < 3) part[t] = 0;\n" + LAST_MEETING, by_rank=3),
        "write after read",
    ),
}
NO_ORDER = {
    "a relaxed arrival before sums are read": ("read after write", "nothing makes the first one"),
    "blocks exit while rank 0 reads": ("block may have exited", "keeps the shared memory"),
    "sums stored before the block runs": ("block may not run yet", "starts the blocks"),
}


def the(kind: str, findings: tuple[Finding, ...]) -> Finding:
    """The first finding of a kind that has steps, or the only one."""
    chosen = [each for each in findings if each.kind == kind]
    shown = [each for each in chosen if each.interleaving and each.interleaving.steps]
    return [*shown, *chosen][0]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_cluster_goes_wrong(name: str) -> None:
    launch, kind = HIDDEN[name]
    wanted = SOUND["reduction"].expected
    execution, found, a, b = run(launch, interleavings=True)
    assert np.array_equal(found, wanted(a, b))
    finding = the(kind, execution.findings)
    assert finding.interleaving is not None
    schedule = Schedule.parse(finding.interleaving.schedule)
    assert schedule.block == finding.block
    again, found, *_ = run(launch, schedule=schedule)
    assert not np.array_equal(found, wanted(a, b))
    assert kind in {each.kind for each in again.findings}


def test_equal_steps_of_several_warps_are_one_line() -> None:
    launch, kind = HIDDEN["peers overwrite what the last block reads"]
    execution, *_ = run(launch, interleavings=True)
    found = the(kind, execution.findings).interleaving
    assert found is not None
    schedule = Schedule.parse(found.schedule)
    assert len(found.steps) < len(schedule.steps)
    assert any(
        " of rank" in each and " run through barrier.cluster" in each for each in found.steps
    )
    assert {each.rank for each in schedule.steps} == {0, 1, 2, 3}


def test_a_late_copy_to_a_peer_is_a_step() -> None:
    execution, *_ = run(with_bug("the buffer read before it is full"), interleavings=True)
    found = the("read before wait", execution.findings).interleaving
    assert found is not None
    steps = Schedule.parse(found.schedule).steps
    assert all(isinstance(each, Run) for each in steps[:-1])
    assert isinstance(steps[-1], Landing)
    assert "takes effect (st.async at kernel.cu" in found.steps[-1]


@pytest.mark.parametrize("name", NO_ORDER)
def test_what_no_order_shows_in_a_cluster(name: str) -> None:
    kind, reason = NO_ORDER[name]
    execution, *_ = run(with_bug(name), interleavings=True)
    found = the(kind, execution.findings).interleaving
    assert found is not None
    assert not found.schedule
    assert reason in found.reason


def test_a_deadlock_of_a_cluster_is_replayed() -> None:
    launch = with_bug("a multicast that skips the peer")
    execution, *_ = run(launch, interleavings=True)
    finding = the("deadlock", execution.findings)
    assert finding.interleaving is not None
    again, *_ = run(launch, schedule=Schedule.parse(finding.interleaving.schedule))
    assert finding.message in {each.message for each in again.findings}
