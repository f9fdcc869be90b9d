"""A finding in an asynchronous kernel says in which order it goes wrong; `check` replays that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import gemmkit
from gemmkit.errors import UsageError
from gemmkit.findings import Finding
from gemmkit.report.check_page import check_document
from gemmkit.report.document import Prose
from gemmkit.report.findings import findings_text

# Warp 0 copies A to shared memory and arrives, and warp 1 multiplies without waiting for that.
SOURCE = """
extern "C" __global__ void k(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float As[64];
  __shared__ unsigned long long full;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(bar) : "memory");
  __syncthreads();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (int i = lane; i < M * K; i += 32) As[i] = A[i];
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
  } else if (lane < M * N) {
    float sum = 0;
    for (int i = 0; i < K; ++i) sum += As[lane / N * K + i] * B[i * N + lane % N];
    C[lane] = sum;
  }
}
"""
SHAPE = "8x4x8"
# In block 0, both warps copy A and none reads it.
ALONE = "threadIdx.x < 32 || blockIdx.x == 0"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> gemmkit.Kernel:
    path = tmp_path_factory.mktemp("kernel") / "gemm.cu"
    path.write_text(SOURCE)
    return gemmkit.Kernel.from_file(
        path, entry="k", args=("A", "B", "C", "M", "N", "K"), grid=(1, 1, 1), block=(64, 1, 1)
    )


@pytest.fixture(scope="module")
def found(kernel: gemmkit.Kernel) -> gemmkit.CheckRecord:
    (record,) = gemmkit.check(kernel, [SHAPE], gpu="h100")
    return record


def test_a_replayed_schedule_gives_the_wrong_result(
    kernel: gemmkit.Kernel, found: gemmkit.CheckRecord
) -> None:
    assert found.correct
    (finding,) = found.findings
    assert finding.interleaving is not None
    assert [step.partition(" runs ")[0] for step in finding.interleaving.steps] == [
        "warp 0", "warp 1", "warp 0",
    ]  # fmt: skip
    schedule = finding.interleaving.schedule
    assert schedule == "b0.0.0,w0@gemm.cu:8+,w1@end,w0@gemm.cu:12"
    (again,) = gemmkit.check(kernel, [SHAPE], gpu="h100", schedule=schedule)
    assert again.correct is False
    assert again.schedule == schedule
    assert again.findings


def test_text_and_page_have_the_steps(kernel: gemmkit.Kernel, found: gemmkit.CheckRecord) -> None:
    text = findings_text([found], kernel).plain
    assert "Goes wrong in this order:\n    1. warp 0 runs through bar.sync at gemm.cu:8\n" in text
    assert f"--shape {SHAPE} --schedule b0.0.0,w0@gemm.cu:8+,w1@end,w0@gemm.cu:12\n" in text
    page = check_document([found], kernel)
    lines = [
        each.text for section in page.sections for each in section.blocks if isinstance(each, Prose)
    ]
    assert any("--schedule b0.0.0,w0@gemm.cu:8+" in each for each in lines)


def test_a_finding_that_depends_on_other_blocks_has_a_reason_instead(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gemm.cu"
    first = "if (blockIdx.x == 0) atomicExch(&ready, 1);\n  if (!atomicAdd(&ready, 0)) return;\n  "
    changed = SOURCE.replace("const int lane", first + "const int lane")
    path.write_text("__device__ int ready;\n" + changed.replace("threadIdx.x < 32", ALONE))
    depends = gemmkit.Kernel.from_file(
        path, entry="k", args=("A", "B", "C", "M", "N", "K"), grid=(2, 1, 1), block=(64, 1, 1)
    )
    (record,) = gemmkit.check(depends, [SHAPE], gpu="h100")
    races = [each for each in record.findings if each.kind == "read after write"]
    assert [each.block for each in races] == [(1, 0, 0)]
    assert races[0].interleaving is not None
    assert not races[0].interleaving.schedule
    assert "not seen again" in races[0].interleaving.reason


def test_records_of_earlier_versions_can_be_read(found: gemmkit.CheckRecord) -> None:
    data = msgspec.json.decode(msgspec.json.encode(found.findings[0]))
    assert data["interleaving"]["schedule"]
    del data["interleaving"]
    assert msgspec.convert(data, Finding).interleaving is None


@pytest.mark.parametrize(
    ("shapes", "schedule", "message"),
    [
        (None, "b0.0.0", "a schedule is for one problem"),
        ([SHAPE, SHAPE], "b0.0.0", "a schedule is for one problem"),
        ([SHAPE], "b0.0.0,w0", "'w0' is not a step"),
    ],
)
def test_bad_input(
    kernel: gemmkit.Kernel, shapes: list[str] | None, schedule: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        gemmkit.check(kernel, shapes, gpu="h100", schedule=schedule)


def test_a_step_that_is_not_possible_is_no_result(kernel: gemmkit.Kernel) -> None:
    (record,) = gemmkit.check(kernel, [SHAPE], gpu="h100", schedule="w0@end")
    assert record.verdict == "failed"
    assert "step 1 of the schedule, 'w0@end', is not possible: warp 0 waits" in record.detail
