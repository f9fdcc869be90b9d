"""The timeline of a block: its time is the model's, and its stages overlap as the kernel's do."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.code_regions import regions_of
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.model import block_segments
from gemmkit.analysis.piece_time import piece_time
from gemmkit.analysis.timeline import Interval, Timeline, block_timeline, slots
from gemmkit.analysis.warp_time import Issued, machine_load_stall
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

H100 = find_board("H100")
PROBLEM = GemmProblem(512, 512, 512)
NAMES = ("naive", "shared_tiling", "conflict_free", "double_buffered", "async_copy", "gemm_tiled")


@pytest.fixture(params=NAMES)
def profile(profile_of, request):
    return profile_of(request.param)


def timeline_of(profile, problem=PROBLEM) -> Timeline:
    return block_timeline(profile, problem, H100)


def overlap(one: Interval, other: Interval) -> float:
    return min(one.end, other.end) - max(one.start, other.start)


def of_tile(timeline: Timeline, lane: str, tile: int) -> Interval:
    return next(each for each in timeline.in_lane(lane) if each.tile == tile)


@pytest.mark.sample(3)
def test_iterations_take_as_long_as_in_the_model(profile):
    timeline = timeline_of(profile)
    _, times = block_segments(profile, PROBLEM, H100)
    looping = {
        piece[0] for region in regions_of(profile) if region.loops for piece in region.pieces
    }
    whole = sum(each.turns * each.cycles for each in times if each.segment.head in looping)
    assert timeline.iterations * timeline.iteration_cycles == pytest.approx(whole)
    drawn = timeline.cut - timeline.loop_start
    assert drawn == pytest.approx(whole * timeline.shown / timeline.iterations)
    assert timeline.left_out == timeline.iterations - timeline.shown


@pytest.mark.parametrize("name", ["naive", "shared_tiling", "conflict_free"])
def test_a_whole_block_takes_as_long_as_in_the_model(profile_of, name):
    timeline = timeline_of(profile_of(name))
    _, times = block_segments(profile_of(name), PROBLEM, H100)
    whole = timeline.end + timeline.left_out * timeline.iteration_cycles
    assert whole == pytest.approx(sum(each.turns * each.cycles for each in times))


def test_multiply_adds_take_their_issue_cycles_and_no_part_of_a_wait(profile):
    timeline = timeline_of(profile)
    _, times = block_segments(profile, PROBLEM, H100)
    issuing = sum(each.turns * each.multiplying for each in times if each.turns > 1)
    shown = timeline.in_lane("multiply")
    drawn = sum(each.cycles * each.share for each in shown)
    assert drawn == pytest.approx(issuing * timeline.shown / timeline.iterations)
    assert timeline.multiplying == pytest.approx(drawn / timeline.shown / timeline.iteration_cycles)
    for wait in timeline.in_lane("wait"):
        assert all(overlap(wait, each) < 1e-6 for each in shown), wait
    assert timeline.multiplying + sum(timeline.waiting.values()) <= 1


def test_a_tile_arrives_before_it_is_stored_and_multiplied(profile):
    timeline = timeline_of(profile)
    for tile in range(timeline.shown):
        fetch, multiply = (of_tile(timeline, lane, tile) for lane in ("fetch", "multiply"))
        assert fetch.start < fetch.end <= multiply.start + 1e-6
        for store in timeline.in_lane("shared store"):
            if store.tile == tile:
                assert fetch.start < store.start
                assert fetch.end <= store.end <= multiply.start


def test_without_a_second_stage_no_fetch_overlaps_a_multiplication(profile_of):
    timeline = timeline_of(profile_of("shared_tiling"))
    assert timeline.ahead == 0
    assert timeline.in_lane("fetch")[0].start >= timeline.loop_start
    for fetch in timeline.in_lane("fetch"):
        assert all(overlap(fetch, each) <= 0 for each in timeline.in_lane("multiply"))
    waits = [each for each in timeline.in_lane("wait") if each.cause == "global loads"]
    assert [each.tile for each in waits] == list(range(timeline.shown))
    assert timeline.waiting["global loads"] > 0.1
    assert "barrier" in timeline.waiting


def test_the_next_tile_is_fetched_while_one_is_multiplied(profile_of):
    timeline = timeline_of(profile_of("double_buffered"))
    assert timeline.ahead == 1
    assert of_tile(timeline, "fetch", 0).end <= timeline.loop_start
    for tile in range(timeline.shown - 1):
        multiply = of_tile(timeline, "multiply", tile)
        assert overlap(of_tile(timeline, "fetch", tile + 1), multiply) > 0
        assert overlap(of_tile(timeline, "fetch", tile), multiply) <= 0


def test_several_stages_are_in_flight_and_nothing_waits_for_them(profile_of):
    timeline = timeline_of(profile_of("async_copy"))
    assert timeline.ahead == find_kernel("async_copy").default["stages"] - 1 == 2
    for tile in range(timeline.shown - 2):
        fetch = of_tile(timeline, "fetch", tile + 2)
        assert overlap(fetch, of_tile(timeline, "multiply", tile)) > 0
    assert "cp.async" not in timeline.waiting
    # Only the first tile is waited for.
    waits = [each for each in timeline.in_lane("wait") if each.cause == "cp.async"]
    assert [(each.tile, each.end) for each in waits] == [(0, timeline.loop_start)]


def test_a_first_tile_is_waited_for_once():
    """typed_mma waits at the top of its loop for the loads of the turn before."""
    problem = GemmProblem(256, 256, 256, dtype="float16")
    profile = profile_block(find_kernel("typed_mma"), problem, H100)
    timeline = block_timeline(profile, problem, H100)
    assert timeline.ahead == 1
    waits = [each for each in timeline.in_lane("wait") if each.cause == "global loads"]
    assert [each.tile for each in waits] == list(range(timeline.shown))
    assert of_tile(timeline, "fetch", 0).start < timeline.loop_start < waits[0].start
    assert of_tile(timeline, "fetch", 0).end == waits[0].end


def test_loads_that_ptxas_issues_late_are_waited_for_in_the_machine_code(profile_of):
    machine = machine_of(H100)
    for name in ("conflict_free", "double_buffered"):
        profile = profile_of(name)
        loop = next(each for each in regions_of(profile) if each.loops)
        near, far = (machine_load_stall(profile, machine, each, loop) for each in (600.0, 900.0))
        spread = machine.tile_spread
        assert far.cycles - near.cycles == pytest.approx(300 * spread), name
        assert far.lead >= far.cycles > 0
    profile = profile_of("async_copy")
    loop = next(each for each in regions_of(profile) if each.loops)
    assert machine_load_stall(profile, machine, 900.0, loop).cycles == 0


def test_with_fewer_iterations_nothing_is_left_out(profile_of):
    problem = GemmProblem(512, 512, 48)
    timeline = block_timeline(profile_of("double_buffered"), problem, H100)
    assert (timeline.iterations, timeline.shown, timeline.left_out) == (3, 3, 0)
    assert {each.tile for each in timeline.in_lane("fetch")} == {0, 1, 2}
    assert timeline.k_step == 16


def test_slots_are_as_few_as_there_are_intervals_at_a_time():
    times = [(0, 4), (1, 3), (3, 6), (4, 5), (4.5, 7), (8, 9)]
    found = [Interval("fetch", start, end) for start, end in times]
    assert slots(found) == [0, 1, 1, 0, 2, 0]


def test_a_wait_passes_once_and_instructions_once_for_each_warp():
    """Ten slots, 100 cycles of waiting, ten slots; the block's units are busy for 80 cycles."""
    issued = [
        Issued(0, 0.0, 10.0, 110.0, "dependent instructions", None),
        Issued(0, 110.0, 10.0, 4.0, "global loads", 0),
    ]
    made = piece_time(
        [_NoBarrier()], issued, length=120, latency=120, cycles=180, busy=80
    )  # fmt: skip
    assert [(each.start, each.end, each.cause) for each in made.waits] == [
        (40, 140, "global loads")
    ]
    assert [made.at(each) for each in (0, 10, 60, 110, 120)] == [0, 40, 90, 140, 180]
    # Other warps fill half of the wait.
    made = piece_time([_NoBarrier()], issued, length=120, latency=120, cycles=130, busy=80)
    assert [(each.start, each.end) for each in made.waits] == [(40, 90)]


class _NoBarrier:
    operation = "load"


# Tiles are copied in a loop of their own, and multiplied in another.
LOOPS = """
__global__ void loops(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[32][32], Bs[32][32];
  const int x = threadIdx.x, y = 4 * threadIdx.y;
  const int row = 32 * blockIdx.y + y, col = 32 * blockIdx.x + x;
  float sum[4] = {};
  for (int k = 0; k < K; k += 32) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      As[y + i][x] = A[(row + i) * K + k + x];
      Bs[y + i][x] = B[(k + y + i) * N + col];
    }
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < 4; ++j) sum[j] += As[y + j][i] * Bs[i][x];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) C[(row + i) * N + col] = sum[i];
}
"""
NO_LOOP = """
__global__ void flat(int M, int N, const float* A, const float* B, float* C) {
  const int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) sum += A[row * 16 + k] * B[k * N + col];
  C[row * N + col] = sum;
}
"""


def own(tmp_path, text, problem, **launch) -> Timeline:
    path = tmp_path / "own.cu"
    path.write_text(text, "utf-8")
    kernel = Kernel.from_file(path, **launch)
    return block_timeline(profile_block(kernel, problem, H100), problem, H100)


def test_loops_inside_the_loop_along_k_are_drawn_whole(tmp_path):
    problem = GemmProblem(128, 128, 384)
    timeline = own(tmp_path, LOOPS, problem, grid="N/32,M/32", block="32,8")
    assert (timeline.iterations, timeline.k_step, timeline.ahead) == (12, 32, 0)
    for tile in range(timeline.shown):
        fetch, store, multiply = (
            of_tile(timeline, lane, tile) for lane in ("fetch", "shared store", "multiply")
        )
        assert fetch.start < store.start < fetch.end <= store.end < multiply.start
        assert multiply.end < timeline.loop_start + (tile + 1) * timeline.iteration_cycles
    assert timeline.waiting["global loads"] > 0.2
    assert timeline.in_lane("write-back")


def test_a_kernel_without_a_loop_is_one_iteration(tmp_path):
    problem = GemmProblem(64, 64, 16)
    timeline = own(tmp_path, NO_LOOP, problem, grid="N/32,M", block=32)
    assert not timeline.loops
    assert (timeline.iterations, timeline.shown, timeline.end) == (1, 1, timeline.iteration_cycles)
    (fetch,), (multiply,) = timeline.in_lane("fetch"), timeline.in_lane("multiply")
    assert fetch.end <= multiply.start
    assert timeline.waiting["global loads"] > 0.5


def test_every_event_is_inside_the_block_and_in_order(profile):
    timeline = timeline_of(profile)
    assert all(0 <= each.start < each.end <= timeline.end + 1e-6 for each in timeline.intervals)
    assert all(one.start <= other.start for one, other in pairwise(timeline.intervals))
    assert all(
        each.end <= timeline.cut + 1e-6
        for each in timeline.intervals
        if each.lane in ("fetch", "multiply")
    )
    assert min(each.start for each in timeline.in_lane("write-back")) >= timeline.cut
