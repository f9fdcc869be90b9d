"""Circular buffers that bulk copies fill: how many stages are in flight, and what one takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.copy_pipeline import CopyCosts, CopyPipeline, copy_pipeline
from gemmkit.analysis.model import predict_profile
from gemmkit.analysis.prediction import Prediction
from gemmkit.analysis.trace import trace
from gemmkit.emulator.watching import SignalKind, WatchedSignal
from gemmkit.gpu import find_board
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

H100, H200 = find_board("H100"), find_board("H200")
HOPPER = Path(__file__).resolve().parents[2] / "examples" / "hopper.cu"
LIMITER = "latency of TMA loads"
# Stages and µs of docs/predicted-speed.md.
MEASURED = {2: 510.0, 3: 312.0, 4: 253.0, 5: 246.0}

# All threads multiply, and thread 0 begins the copies of the step AHEAD of the current one: after
# its products if that takes their stage, before them otherwise. Operands signal one mbarrier of a
# stage, or one each.
IN_TURN = """
constexpr int BM = 16, BN = 32, BK = 16;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void expect(void* b, int n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(at(b)), "r"(n) : "memory");
}
__device__ void wait(void* b, int parity) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @!p bra WAIT; }" :: "r"(at(b)), "r"(parity) : "memory");
}
__device__ void copy(void* to, const void* from, int n, void* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" :: "r"(at(to)), "l"(from), "r"(n), "r"(at(b)) : "memory");
}
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ __align__(128) float As[STAGES][BM][BK], Bs[STAGES][BK][BN];
  __shared__ unsigned long long full[BARRIERS][STAGES];
  const int row = blockIdx.y * BM, col = blockIdx.x * BN, steps = K / BK;
  if (threadIdx.x == 0) {
    for (int s = 0; s < BARRIERS * STAGES; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(full[0] + s)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  auto load = [&](int i) {
    if (threadIdx.x || i >= steps) return;
    const int s = i % STAGES, bytes[] = {4 * BM * BK, 4 * BK * BN};
    void *of_a = &full[0][s], *of_b = &full[BARRIERS - 1][s];
    expect(of_a, BARRIERS == 1 ? bytes[0] + bytes[1] : bytes[0]);
    if (BARRIERS == 2) expect(of_b, bytes[1]);
    for (int r = 0; r < BM; ++r) copy(As[s][r], A + (row + r) * K + i * BK, 4 * BK, of_a);
    for (int r = 0; r < BK; ++r) copy(Bs[s][r], B + (i * BK + r) * N + col, 4 * BN, of_b);
  };
  for (int i = 0; i < AHEAD; ++i) load(i);
  const int x = threadIdx.x % BN, y = threadIdx.x / BN;
  float sums[BM / 2] = {};
  for (int i = 0; i < steps; ++i) {
    const int s = i % STAGES;
    for (int b = 0; b < BARRIERS; ++b) wait(&full[b][s], i / STAGES % 2);
    if (AHEAD < STAGES) {
      __syncthreads();
      load(i + AHEAD);
    }
    for (int k = 0; k < BK; ++k)
      for (int r = 0; r < BM / 2; ++r) sums[r] += As[s][y + 2 * r][k] * Bs[s][k][x];
    if (AHEAD == STAGES) {
      __syncthreads();
      load(i + AHEAD);
    }
  }
  for (int r = 0; r < BM / 2; ++r) C[(row + y + 2 * r) * N + col + x] = sums[r];
}
"""


def in_turn(folder: Path, stages: int, ahead: int, barriers: int) -> Kernel:
    path = folder / "in_turn.cu"
    path.write_text(IN_TURN, "utf-8")
    options = [f"-DSTAGES={stages}", f"-DAHEAD={ahead}", f"-DBARRIERS={barriers}"]
    return Kernel.from_file(path, grid="N/BN,M/BM", block="2*BN", options=options)


@pytest.mark.parametrize(("stages", "ahead", "barriers"), [(3, 3, 1), (3, 2, 1), (4, 3, 2)])
def test_stages_in_flight_are_those_that_the_order_of_the_code_allows(
    tmp_path: Path, stages: int, ahead: int, barriers: int
):
    """Rows by `cp.async.bulk`, without tensor maps, in a block whose warps all do the same."""
    kernel = in_turn(tmp_path, stages, ahead, barriers)
    seen = trace(kernel, GemmProblem(32, 64, 16 * 4 * stages), H100, reduced=False)
    found = copy_pipeline(seen.signals, seen.warps, {"A", "B"})
    assert found is not None
    assert (found.stages, found.in_flight, found.barriers_per_stage) == (stages, ahead, barriers)
    assert found.stage_bytes == found.issued_bytes == 4 * 16 * (16 + 32)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("warp_specialized", 2),
        ("cluster_multicast", 3),
        *(
            pytest.param(name, stages, marks=pytest.mark.slow)
            for name, stages in (("tma", 4), ("persistent", 4), ("gemm_wgmma", 4))
        ),
    ],
)
def test_rungs_release_a_stage_when_the_next_one_is_there(name: str, stages: int):
    """In a cluster a block's own copies bring less than it gets."""
    kernel = find_kernel(name)
    config = kernel.configure({"stages": stages, "BN": 128})
    problem = Asked(dtype="bfloat16").problem((256, 256, 64 * 3 * stages))
    seen = trace(kernel, problem, H100, config=config, reduced=False)
    found = copy_pipeline(seen.signals, seen.warps, {"A", "B"})
    assert found is not None
    assert (found.stages, found.in_flight) == (stages, stages - 1)
    assert found.stage_bytes == 2 * 64 * (128 + 128)
    shared = name in ("cluster_multicast", "persistent", "gemm_wgmma")
    assert found.issued_bytes == found.stage_bytes * (0.75 if shared else 1)


def signals(stages: int, late: int, steps: int) -> Iterator[WatchedSignal]:
    """Warp 4 copies, warps 0 to 3 multiply by wgmma and release a stage at once, or when the next
    one is there."""

    def made(kind: SignalKind, warp: int, *barriers: int, **more: int) -> WatchedSignal:
        places = tuple((0, each) for each in barriers)
        return WatchedSignal(kind, warp, places, "A" if "nbytes" in more else "", **more)

    def loaded(step: int) -> Iterator[WatchedSignal]:
        at = 8 * (step % stages)
        if step >= steps:
            return
        yield made("wait", 4, 1000 + at)
        yield made("arrive", 4, at)
        yield made("copy", 4, at, nbytes=4096)
        yield made("complete", -1, at)

    for step in range(stages):
        yield from loaded(step)
    for step in range(steps):
        for warp in range(4):
            yield made("wait", warp, 8 * (step % stages))
            yield made("multiply", warp, number=7, count=2)
            yield made("commit", warp)
            yield made("wait products", warp, count=late)
            if step >= late:
                yield made("arrive", warp, 1000 + 8 * ((step - late) % stages))
        if step >= late:
            yield made("complete", -1, 1000 + 8 * ((step - late) % stages))
            yield from loaded(step - late + stages)


def pipeline(stages: int, late: int) -> CopyPipeline:
    found = copy_pipeline(tuple(signals(stages, late, 5 * stages)), 5, {"A"})
    assert found is not None
    return found


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_stage_takes_its_share_of_a_load_or_its_products(stages: int):
    """300 cycles of products; those of a stage that is released at once are part of its round."""

    def costs(latency: float) -> CopyCosts:
        return CopyCosts(latency, products={7: 150.0}, asynchronous={7})

    late, at_once = pipeline(stages, 1), pipeline(stages, 0)
    assert (late.in_flight, at_once.in_flight) == (stages - 1, stages)
    for latency in (10.0, 6000.0):
        found = late.time(costs(latency)), at_once.time(costs(latency))
        assert None not in found
        took = [each.stage for each in found if each is not None]
        assert took[0] == pytest.approx(max(latency / (stages - 1), 300))
        assert took[1] == pytest.approx(max((latency + 300) / stages, 300))
        assert [each.limits for each in found if each is not None] == [latency > 300] * 2
    limited = late.time(costs(10.0))
    assert limited is not None
    assert limited.alone == pytest.approx(10 / (stages - 1))


def test_an_operand_that_is_loaded_once_is_no_stage():
    once = signals(3, 1, 15)
    kept = [
        WatchedSignal("arrive", 4, ((0, 5000),)),
        WatchedSignal("copy", 4, ((0, 5000),), "A", nbytes=3 * 4096),
        WatchedSignal("complete", -1, ((0, 5000),)),
        *(WatchedSignal("wait", warp, ((0, 5000),)) for warp in range(4)),
    ]
    found = copy_pipeline((*kept, *once), 5, {"A"})
    assert found is not None
    assert (found.stages, found.in_flight, found.stage_bytes) == (3, 2, 4096)
    assert found.share == pytest.approx(15 / 18)
    assert pipeline(3, 1).share == 1


def test_a_run_that_only_fills_the_buffer_tells_nothing():
    assert copy_pipeline(tuple(signals(4, 1, 4)), 5, {"A"}) is None
    assert copy_pipeline(tuple(signals(4, 1, 20)), 5, {"B"}) is None


@cache
def hopper(folder: Path, stages: int) -> Prediction:
    """`examples/hopper.cu` with so many stages, at 4096³ on an H200."""
    path = folder / f"hopper{stages}.cu"
    text = HOPPER.read_text("utf-8")
    path.write_text(text.replace("STAGES = 3", f"STAGES = {stages}"), "utf-8")
    assert (text != path.read_text("utf-8")) == (stages != 3)
    kernel = Kernel.from_file(
        path,
        grid="min((M+127)/128*((N+127)/128),132)",
        block=384,
        shared=65536 + stages * 32768,
        layout="NT",
        tensor_maps=[
            "map_a=A,box=64x128,swizzle=128B",
            "map_b=B,box=64x128,swizzle=128B",
            "map_c=C,box=128x128",
        ],
    )
    problem = GemmProblem(4096, 4096, 4096, dtype="bfloat16", out_dtype="float32").laid_out("nt")
    return predict_profile(profile_block(kernel, problem, H200), problem, H200)


@pytest.mark.parametrize(
    "stages", [2, 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (4, 5))]
)
def test_predictions_over_stages_are_in_the_order_measured(
    tmp_path_factory: pytest.TempPathFactory, stages: int
):
    """Two and three stages within 15 %; what limits more of them is not the latency of loads."""
    folder = tmp_path_factory.getbasetemp()
    found = hopper(folder, stages)
    term = next(each for each in found.terms if each.name == LIMITER)
    assert (found.limiter == LIMITER) == (stages <= 3)
    assert term.meaning.startswith(f"{stages - 1} of {stages} stages of 32 KiB in flight")
    within = 0.15 if stages <= 3 else 0.2
    assert found.microseconds == pytest.approx(MEASURED[stages], rel=within)
    if stages > 2:
        assert found.microseconds < hopper(folder, stages - 1).microseconds
