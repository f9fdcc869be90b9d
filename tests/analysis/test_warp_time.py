"""One warp's time: what latency it meets, and that software pipelines hide it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.warp_time import Segment, issue_cost, segments
from gemmkit.gpu import find_board
from gemmkit.jit.issue_order import barriers
from gemmkit.jit.sass import disassemble, disassembler
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

H100 = find_board("H100")
# Latency that is the same for one sector and for a tile, so that it shows in the sums.
MACHINE = replace(machine_of(H100), tile_spread=1.0)
NEAR, FAR = 300.0, 900.0


def in_loop(profile: BlockProfile, latency: float) -> list[Segment]:
    turns = profile.executed(512) / profile.warps
    found = segments(profile, MACHINE, latency)
    return [each for each in found if turns[each.head] > 8]


def test_a_loop_that_fetches_and_waits_takes_the_whole_latency(profile_of):
    near, far = (
        sum(each.latency for each in in_loop(profile_of("conflict_free"), latency))
        for latency in (NEAR, FAR)
    )
    assert far - near == pytest.approx(FAR - NEAR)


@pytest.mark.parametrize("name", ["async_copy"])
def test_a_software_pipeline_hides_the_latency(profile_of, name):
    near, far = (
        sum(each.latency for each in in_loop(profile_of(name), latency)) for latency in (NEAR, FAR)
    )
    assert far == near


def test_loads_that_ptxas_moves_to_the_end_of_the_loop_are_waited_for(profile_of):
    """The PTX of double_buffered loads at the top of its loop; the machine code does so late."""
    near, far = (
        sum(each.latency for each in in_loop(profile_of("double_buffered"), latency))
        for latency in (NEAR, FAR)
    )
    assert near <= far <= near + FAR - NEAR + 1


def test_a_pipeline_does_not_hide_what_is_longer_than_its_turn(profile_of):
    slow = sum(each.latency for each in in_loop(profile_of("double_buffered"), 10_000.0))
    assert slow > 9_000


def test_barriers_part_a_loop(profile_of):
    parts = in_loop(profile_of("conflict_free"), NEAR)
    assert len(parts) == 3
    multiply_adds = [
        sum(profile_of("conflict_free").flow.forms[number].opcode_class == "fma" for number in
            each.instructions)
        for each in parts
    ]  # fmt: skip
    assert multiply_adds == [0, 16 * 64, 0]


def test_loads_of_an_unrolled_loop_share_one_latency(profile_of):
    (loop,) = in_loop(profile_of("naive"), FAR)
    assert FAR / profile_of("naive").unroll < loop.latency < FAR / 2


def test_each_instruction_that_runs_is_in_one_segment(profile_of):
    for name in ("naive", "conflict_free", "double_buffered", "async_copy"):
        profile = profile_of(name)
        numbers = [n for each in segments(profile, MACHINE, NEAR) for n in each.instructions]
        ran = [n for n, times in enumerate(profile.executed_at[1]) if times > 0]
        assert sorted(numbers) == ran


def test_issue_slots_follow_the_stated_conversion(profile_of):
    profile = profile_of("double_buffered")
    cost: dict[str, set[float]] = {}
    for number, action in enumerate(profile.actions):
        cost.setdefault(action.form.opcode, set()).add(issue_cost(profile, number, MACHINE))
    assert cost["fma.rn.f32"] == {MACHINE.ffma_issue}
    assert cost["add.s64"] == {2.0}
    assert cost["cvta.to.global.u64"] == {0.0}
    assert cost["st.shared.f32"] == {1.0}
    # Around the loop's end, and over single accesses.
    assert cost["bra"] == {0.0, 1.0}


@pytest.mark.parametrize("name", ["shared_tiling", "coarsening_1d", "conflict_free", "async_copy"])
@pytest.mark.sample(2)
def test_issue_slots_of_the_main_loop_are_near_its_machine_instructions(profile_of, name):
    if disassembler() is None:
        pytest.skip("needs nvdisasm")
    profile = profile_of(name)
    plain = replace(MACHINE, ffma_issue=1.0)
    slots = sum(
        issue_cost(profile, number, plain)
        for each in in_loop(profile, NEAR)
        for number in each.instructions
    )
    assert slots == pytest.approx(longest_loop(disassemble(profile.binary.cubin)), rel=0.12)


def longest_loop(sass: str) -> int:
    """Instructions between a label and a branch back to it, at most."""
    labels: dict[str, int] = {}
    count = longest = 0
    for line in sass.splitlines():
        label = re.match(r"\.(L_x_\d+):", line)
        if label:
            labels[label[1]] = count
        elif re.search(r"/\*[0-9a-f]{4,}\*/", line):
            count += 1
            back = re.search(r"BRA.*`\(\.(L_x_\d+)\)", line)
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return longest


# A block of 64 threads computes 64 columns of eight rows.
SERIAL_RESULTS = """
extern "C" __global__ void tiles(int M, int N, int K, float alpha, const float* A, const float* B,
                                 float beta, float* C) {
    __shared__ float As[8][8], Bs[8][64];
    float sums[8] = {};
    const int x = threadIdx.x, first = 8 * blockIdx.y, column = 64 * blockIdx.x + x;
    for (int k = 0; k < K; k += 8) {
        As[x / 8][x % 8] = A[(first + x / 8) * K + k + x % 8];
        for (int i = 0; i < 8; ++i) Bs[i][x] = B[(k + i) * N + column];
        __syncthreads();
#pragma unroll 2
        for (int i = 0; i < 8; ++i)
            for (int row = 0; row < 8; ++row) sums[row] += As[row][i] * Bs[i][x];
        __syncthreads();
    }
    for (int row = 0; row < 8; ++row) {
        const int at = (first + row) * N + column;
        C[at] = alpha * sums[row] + beta * C[at];
    }
}
"""
# Half of the warps multiply while the others load the next tile, then the halves change places.
IN_TURNS = """
extern "C" __global__ void tiles(int M, int N, int K, const float* A, const float* B, float* C) {
    __shared__ float As[2][8][16], Bs[2][16][64];
    float sum[4] = {};
    const int x = threadIdx.x, half = x / 64, lane = x % 64;
    const int first = 8 * blockIdx.y + 4 * half, column = 64 * blockIdx.x + lane;
    for (int k = 0; k < K; k += 16) {
        for (int turn = 0; turn < 2; ++turn) {
            if (half == turn) {
                for (int i = 0; i < 16; ++i) Bs[turn][i][lane] = B[(k + i) * N + column];
                const int row = lane / 16, i = lane % 16;
                As[turn][4 * half + row][i] = A[(first + row) * K + k + i];
            }
            __syncthreads();
            if (half == turn)
                for (int i = 0; i < 16; ++i)
                    for (int row = 0; row < 4; ++row)
                        sum[row] += As[turn][4 * half + row][i] * Bs[turn][i][lane];
            __syncthreads();
        }
    }
    for (int row = 0; row < 4; ++row) C[(first + row) * N + column] = sum[row];
}
"""


def profiled(tmp_path, text: str, block: int) -> BlockProfile:
    path = tmp_path / "tiles.cu"
    path.write_text(text, "utf-8")
    kernel = Kernel.from_file(path, grid="N/64,M/8", block=block)
    problem = GemmProblem(256, 256, 512, beta=float("beta" in kernel.signature))
    return profile_block(kernel, problem, H100)


def test_results_that_are_read_and_written_one_by_one_wait_for_each_other(tmp_path):
    """No compiler moves a load of C before a store to C, and nobody has read C before."""
    profile = profiled(tmp_path, SERIAL_RESULTS, 64)
    (end,) = (
        each
        for each in segments(profile, MACHINE, NEAR)
        if any(profile.actions[number].operation == "store" for number in each.instructions)
        and profile.executed(512)[each.head] == profile.warps
    )
    rows = sum(cost.written and cost.kind == "load" for cost in profile.costs.values())
    assert rows == 8
    assert 8 * MACHINE.dram_latency < end.latency < 10 * MACHINE.dram_latency


def test_a_loop_that_ptxas_unrolls_in_full_meets_latency_once(tmp_path):
    """Its machine code is that of the loop around it, barriers and global loads and all."""
    whole = profiled(tmp_path, SERIAL_RESULTS.replace("#pragma unroll 2", ""), 64).main_loop
    assert whole is not None
    assert [barriers(loop.words) for loop in whole.loops] == [2]
    profile = replace(profiled(tmp_path, SERIAL_RESULTS, 64), main_loop=whole)
    turns = profile.executed(512) / profile.warps
    near, far = (
        sum(
            each.latency * turns[each.head] / 64
            for each in segments(profile, MACHINE, latency)
            if turns[each.head] >= 64
        )
        for latency in (NEAR, FAR)
    )
    assert far - near == pytest.approx(FAR - NEAR, rel=0.05)
    assert near < NEAR + 600


def test_warps_that_multiply_in_turns_wait_for_each_other(tmp_path):
    profile = profiled(tmp_path, IN_TURNS, 128)
    assert (profile.turns_of_warps, profile.turns_of_schedulers) == (2.0, 2.0)
    together = replace(profile, turns_of_warps=1.0)
    turns = profile.executed(512)

    def multiplying(each: BlockProfile) -> float:
        return sum(
            segment.latency * turns[segment.head]
            for segment in segments(each, MACHINE, NEAR)
            if any(
                number in profile.costs and profile.costs[number].space == "shared"
                and profile.costs[number].kind == "load"
                for number in segment.instructions
            )
        )  # fmt: skip

    assert multiplying(profile) == pytest.approx(2 * multiplying(together))


def test_warps_that_work_alike_take_no_turns(profile_of):
    for name in ("naive", "conflict_free", "async_copy"):
        assert profile_of(name).turns_of_warps == profile_of(name).turns_of_schedulers == 1.0


def test_a_tile_takes_longer_than_one_sector_of_it(profile_of):
    """A barrier waits for the last sector; a warp without barriers for its own."""
    spread = replace(MACHINE, tile_spread=1.5)
    for name, expected in (("conflict_free", FAR / 2), ("naive", 0.0)):
        single, tile = (
            sum(
                each.latency
                for each in segments(profile_of(name), machine, FAR)
                if profile_of(name).executed(512)[each.head] > 8 * profile_of(name).warps
            )
            for machine in (MACHINE, spread)
        )
        assert tile - single == pytest.approx(expected), name
