"""The interleaving of a finding, replayed, gives the wrong result or hangs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pipelines
import pytest
import tensor_pipelines
from pipelines import operands

from gemmkit.emulator.schedule import Schedule
from gemmkit.findings import Finding

# A sample of each kind of bug; all of them take some minutes. Of all bugs in `pipelines` and
# `tensor_pipelines` with an interleaving, only "two arrivals of one expected" is right when it is
# replayed: its phase completes twice, and the warp that may miss one is released by the other.
PIPELINES = (
    "stage refilled before it is released",
    "next stage released",
    "source of a store overwritten",
    "initialization not visible",
)
TENSORS = ("released before it is read", "too many bytes announced")


def replayable(findings: tuple[Finding, ...]) -> Iterator[Schedule]:
    for each in findings:
        if each.interleaving is not None and each.interleaving.schedule:
            schedule = Schedule.parse(each.interleaving.schedule)
            assert schedule.block == each.block
            assert str(schedule) == each.interleaving.schedule
            yield schedule


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.sample(4)
def test_a_pipeline_goes_wrong(name: str) -> None:
    a, b = operands()
    source = pipelines.with_bug(name)
    execution, _ = pipelines.run(source, interleavings=True)
    schedules = list(replayable(execution.findings))
    assert schedules
    for schedule in schedules[:2]:
        again, product = pipelines.run(source, schedule=schedule)
        assert not np.array_equal(product, a @ b), schedule
        assert again.findings


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.sample(2)
def test_a_kernel_with_tensor_copies_goes_wrong(name: str) -> None:
    source = tensor_pipelines.with_bug(name)
    execution, *_ = tensor_pipelines.run(source, interleavings=True)
    schedules = list(replayable(execution.findings))
    assert schedules
    for schedule in schedules[:1]:
        _, a, c = tensor_pipelines.run(source, schedule=schedule)
        a[:, tensor_pipelines.K :] = 0
        assert not np.array_equal(c, a.reshape(-1, 4, 32).sum(axis=1)), schedule


def test_the_steps_are_those_that_the_later_access_depends_on() -> None:
    execution, _ = pipelines.run(
        pipelines.with_bug("initialization not visible"), interleavings=True
    )
    finding = execution.findings[0]
    assert finding.kind == "mbarrier not visible"
    assert finding.interleaving is not None
    first, last = finding.interleaving.steps
    assert first.startswith("warp 4 runs through mbarrier.arrive.expect_tx at k.cu:11")
    assert last.startswith("warp 0 runs through mbarrier.init at k.cu:5")
    assert finding.interleaving.schedule == "b0.0.0,w4@k.cu:11+,w0@k.cu:5+"


def test_a_matter_of_visibility_has_no_order() -> None:
    execution, product = pipelines.run(
        pipelines.with_bug("no proxy fence before a store"), interleavings=True
    )
    (finding,) = execution.findings
    assert finding.interleaving is not None
    assert not finding.interleaving.schedule
    assert "may not be visible to the asynchronous proxy" in finding.interleaving.reason
    a, b = operands()
    # Recording a block leaves no trace in memory.
    assert np.array_equal(product, a @ b)


def test_nothing_is_recorded_unless_asked() -> None:
    execution, _ = pipelines.run(pipelines.with_bug("source of a store overwritten"))
    assert [each.interleaving for each in execution.findings] == [None]
