"""Block profiles: counts that hold for any depth, costs by the rules, bytes by the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("H100")
# The loops of these differ most: none, one barrier pair, prologue and ring of stages.
KERNELS = ("naive", "coarsening_1d", "async_copy")


@pytest.mark.parametrize(
    ("name", "depth"), [("naive", 200), ("naive", 512), ("coarsening_1d", 200), ("async_copy", 512)]
)
@pytest.mark.sample(4)
def test_counts_at_another_depth_are_those_of_a_run(profile_of, name, depth):
    kernel = find_kernel(name)
    depths = profile_of(name).depths
    assert depth not in depths
    problem = GemmProblem(512, 512, depth)
    profile = profile_of(name) if depth == 512 else profile_block(kernel, problem, H100)
    device = EmulatedDevice(H100)
    sizes = (512 * depth, depth * 512, 512 * 512, 512)
    buffers = [device.empty(4 * size) for size in sizes]
    plan = kernel.plan(problem, kernel.default, H100)
    flow, tally = device.count(profile.binary, plan, bind_arguments(problem, Operands(*buffers)))
    assert len(flow.forms) == len(profile.flow.forms)
    np.testing.assert_allclose(profile.executed(depth), tally.executed / plan.blocks, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["naive_uncoalesced", *KERNELS, "shared_tiling", "coarsening_2d", "double_buffered"]
)
@pytest.mark.sample(3)
def test_blocks_cover_their_tile_and_read_its_rows_and_columns_once(profile_of, name):
    profile, config = profile_of(name), find_kernel(name).default
    assert (profile.rows, profile.columns) == (config["BM"], config["BN"])
    assert profile.loaded_bytes_per_k == 4 * (config["BM"] + config["BN"])
    assert profile.stored_bytes == 4 * config["BM"] * config["BN"]
    assert profile.columns_on_x is (name != "naive_uncoalesced")
    # Tiles are fetched once, but for a pipeline that runs on past the last of them; threads
    # without tiles ask again and again.
    copied = 1 + ((config.stages or 1) - 1) * (config.BK or 0) / 512
    asked = profile.requested_bytes(512) / 512 / profile.loaded_bytes_per_k
    expected = {"naive_uncoalesced": 132, "naive": 20}.get(name, copied)
    assert asked == pytest.approx(expected)


def test_the_wrong_index_order_costs_33_cycles_of_the_data_path_a_step(profile_of):
    """32 rows lie in one bank of the L1, and one column is read by all lanes."""
    costs = [each for each in profile_of("naive_uncoalesced").costs.values() if each.kind == "load"]
    assert sorted({round(each.data_cycles, 6) for each in costs}) == [1.1, 32.0]
    assert {each.sectors for each in costs} == {1.0, 32.0}
    right = [each for each in profile_of("naive").costs.values() if each.kind == "load"]
    assert {round(each.data_cycles, 6) for each in right} == {1.1}
    assert {each.sectors for each in right} == {1.0, 4.0}


def test_first_touches_are_those_that_no_warp_of_the_block_has_made(profile_of):
    """Of four steps of k, a row of A has one sector or none that is new; B's row is new always."""
    costs = profile_of("naive").costs.values()
    touches = [each.first_touch for each in costs if each.kind == "load"]
    assert touches.count(1.0) >= 4
    assert 0.5 in touches
    assert touches.count(0.0) >= 3


def test_merged_loads_count_once(profile_of):
    """Of 32 shared loads of A a step of 32, ptxas makes 8 of 128 bits, two cycles each."""
    profile = profile_of("shared_tiling")
    assert len(profile.merged_away) == 24
    wavefronts = profile.shared_wavefronts(512) - profile.shared_wavefronts(480)
    loads_a, loads_b, stores = 8 * 2, 32, 2
    assert wavefronts == pytest.approx(profile.warps * (loads_a + loads_b + stores))


def test_machine_code_tells_unrolling_and_register_banks(profile_of):
    assert profile_of("naive").unroll == 4
    assert profile_of("double_buffered").unroll == 1
    assert 1.0 < profile_of("async_copy").ffma_issue < profile_of("coarsening_2d").ffma_issue <= 2.0


def test_small_problems_are_run_as_they_are():
    profile = profile_block(find_kernel("naive"), GemmProblem(33, 17, 5), H100)
    assert profile.depths == (5, 5)
    assert (profile.rows, profile.columns) == (32, 17)


def test_what_the_write_back_moves_counts_once_in_its_type():
    kernel = find_kernel("typed_mma")
    epilogue = Epilogue(residual=True, auxiliary=True)
    problem = GemmProblem(256, 256, 4096, beta=1.0, dtype="bfloat16", epilogue=epilogue)
    seen = profile_block(kernel, problem, H100)
    rows, columns = kernel.default["BM"], kernel.default["BN"]
    assert (seen.rows, seen.columns) == (rows, columns)
    assert seen.stored_bytes == seen.added_bytes == 2 * 2 * rows * columns
    assert seen.loaded_bytes_per_k == 2 * (rows + columns)
