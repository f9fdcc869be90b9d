"""When ptxas ignores `setmaxnreg`: what its log and a kernel's directives say, and the finding."""

from __future__ import annotations

from pathlib import Path

import pytest

import gemmkit
from gemmkit import Kernel
from gemmkit.jit.setmaxnreg import setmaxnreg_ignored

BODY = "{ setmaxnreg.dec.sync.aligned.u32 24; ret; }"
C7508 = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine "
    "register count at entry.\n"
)
C7506 = "ptxas info    : 'setmaxnreg' ignored to maintain minimum register requirements.\n"
DEBUG = "ptxas info    : (C7505) 'setmaxnreg' ignored to allow debugging.\n"
LOG = "ptxas info    : Used 32 registers, used 0 barriers\n"


def ptx(*kernels: tuple[str, str, str]) -> str:
    return "\n".join(
        f".visible .entry {name}(.param .u64 a)\n{directives}\n{body}"
        for name, directives, body in kernels
    )


@pytest.mark.parametrize(
    ("directives", "log", "reason"),
    [
        (".maxntid 384", LOG + C7508, "write __launch_bounds__(384, 1)"),
        ("", LOG + C7508, "cannot tell how many registers"),
        (".maxntid 384\n.minnctapersm 1", LOG, ""),
        (".maxntid 384\n.minnctapersm 1", LOG + C7506, "needs more registers than it leaves"),
        (".maxntid 384", LOG + DEBUG, ""),
        # Without a log the directives decide.
        (".maxntid 384", "", "write __launch_bounds__(384, 1)"),
        (".maxnreg 168", "", ""),
        (".reqntid 384, 1, 1\n.minnctapersm 1", "", ""),
        (".minnctapersm 1", "", "cannot tell"),
    ],
)
def test_what_a_log_and_directives_say(directives: str, log: str, reason: str) -> None:
    told = setmaxnreg_ignored(ptx(("k", directives, BODY)), "k", log, 384)
    assert (reason in told) if reason else not told


def test_of_several_kernels_the_one_without_a_known_count_is_meant() -> None:
    text = ptx(("k", ".maxntid 384\n.minnctapersm 1", BODY), ("other", ".maxntid 384", BODY))
    assert not setmaxnreg_ignored(text, "k", LOG + C7508, 384)
    assert setmaxnreg_ignored(text, "other", LOG + C7508, 384)
    assert not setmaxnreg_ignored(ptx(("k", "", "{ ret; }")), "k", LOG + C7508, 384)


SOURCE = """
__global__ void BOUNDS k(const float* A, const float* B, float* C, int M, int N, int K) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int row = blockIdx.x, col = threadIdx.x;
  float sum = 0;
  if (col < N) {
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = sum;
  }
}
"""


@pytest.mark.parametrize(
    ("bounds", "kinds"),
    [
        ("__launch_bounds__(256, 1)", set()),
        ("__maxnreg__(128)", {"register file exceeded"}),
        ("__launch_bounds__(256)", {"setmaxnreg ignored"}),
        ("", {"setmaxnreg ignored"}),
    ],
)
def test_it_is_a_finding_that_is_forgiven(bounds: str, kinds: set[str], tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(SOURCE.replace("BOUNDS", bounds), "utf-8")
    kernel = Kernel.from_file(path, grid="M", block=256)
    (record,) = gemmkit.check(kernel, ["2x8x4"], gpu="h100")
    assert {each.kind for each in record.findings} == kinds
    for each in record.findings:
        ignored = each.kind == "setmaxnreg ignored"
        assert bool(each.forgiven_by) == ignored
        assert ("__launch_bounds__(256, 1)" in each.message) == ignored
        assert each.cause == "setmaxnreg-ignored" * ignored
    assert gemmkit.check(kernel, ["2x8x4"], gpu="h100", allow_forgiven=True)[0].clean == (
        "register file exceeded" not in kinds
    )
