"""Many products in one launch: whose tile is whose, edges, empty ones, layouts, epilogues."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gemmkit.bench.workload import Case
from gemmkit.devices.choose import open_device
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, PRODUCTION, kernels_for
from gemmkit.kernels.fitting import in_types_of
from gemmkit.kernels.group_table import GroupTable
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production.gemm_grouped import KERNEL, vector_width
from gemmkit.problem import BROADCAST, GemmProblem

H100 = find_board("h100")
TILES = TileConfig(BM=16, BN=32, BK=16, WM=16, WN=32, TM=4, TN=4, stages=2, interleave=1, order=2)

# One smaller than a tile, several tiles with edges both ways, some without rows, columns or k.
SHAPES = [(5, 7, 9), (0, 5, 6), (33, 65, 40), (64, 64, 0), (40, 0, 3), (50, 36, 17), (1, 1, 1)]


@pytest.fixture(scope="module")
def device():
    return open_device("emulator", "h100", sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch, assemble=False)


def check(problem, device, *, blocks=None, config=TILES, kind="integer"):
    """Compute in one launch, in a grid of `blocks`, on poisoned output, with all sanitizers."""
    plan = KERNEL.plan(problem, config, H100)
    if blocks is not None:
        plan = replace(plan, grid=(blocks, 1, 1))
    binary = compiled(replace(plan, grid=(1, 1, 1), table=None))
    case = Case.make(problem, device, 0, kind)
    launch, verdict = case.run(problem, device, binary, plan)
    assert not launch.findings
    assert verdict.correct, verdict.detail
    return launch


@pytest.mark.parametrize("blocks", [None, 1, 4])
def test_products_of_any_shape(blocks, device):
    shapes = [(m, n, k, k + 1, n + 2, n + 3) for m, n, k in SHAPES]
    check(GemmProblem.of_groups(shapes, alpha=2.0), device, blocks=blocks)


@pytest.mark.parametrize("k", [5, 0])
def test_one_product(k, device):
    check(GemmProblem.of_groups([(20, 40, k)], beta=-1.0), device)


@pytest.mark.parametrize("stride_b", [0, BROADCAST])
def test_products_of_one_shape_are_groups_alike(stride_b, device):
    check(GemmProblem(20, 40, 5, beta=-1.0), device)
    check(GemmProblem(20, 33, 5, ldc=35, batch=3, stride_c=750, stride_b=stride_b), device)


def test_a_thousand_tiny_products(device):
    shapes = np.random.default_rng(3).integers(0, 7, (1000, 3)).tolist()
    check(GemmProblem.of_groups(shapes), device, blocks=64)


def test_alpha_of_zero_reads_neither_operand(device):
    # As memory never written, which initcheck minds.
    check(GemmProblem.of_groups([(5, 7, 4), (20, 3, 4)], alpha=0.0, beta=0.5), device)


def test_aligned_products_in_vectors(device):
    problem = GemmProblem.of_groups([(m, 4 * n, 4 * k) for m, n, k in SHAPES], beta=1.0)
    assert "Access{.a = 4, .b = 4, .c = 4}, A_B, " in KERNEL.plan(problem, TILES, H100).entry
    check(problem, device, blocks=5)


@pytest.mark.parametrize("odd", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(each.config, marks=pytest.mark.slow)
        for each in CANDIDATES
        if each.kernel is KERNEL
    ],
    ids=[str(each.config) for each in CANDIDATES if each.kernel is KERNEL],
)
def test_all_tiles_that_are_chosen_from(config, odd, device):
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    shapes = [
        (BM + 3, BN + 4 + odd, 3 * BK + 4 + odd),
        (2, 4 + odd, 4),
        (BM, 2 * BN, 8 + odd),
    ]
    check(GemmProblem.of_groups(shapes), device, blocks=3, config=config)


@pytest.mark.parametrize(
    ("layout", "epilogue"),
    [
        ("nt", Epilogue(True, "relu")),
        ("tn", Epilogue("row", "gelu", residual=True)),
        ("tt", Epilogue(True, "none", auxiliary=True, residual=True, scale=2.0)),
    ],
    ids=["nt", "tn", "tt"],
)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.sample(4)
def test_layouts_and_epilogues(layout, epilogue, padding, device):
    shapes = [(m, n, k, k + padding, n + padding, n + padding) for m, n, k in SHAPES]
    problem = GemmProblem.of_groups(shapes, epilogue=epilogue, beta=0.5).laid_out(layout)
    check(problem, device, blocks=4, kind="normal")


def test_accesses_go_by_the_names_of_the_matrices(device):
    problem = GemmProblem.of_groups("33x65x40,8x8x8", epilogue=Epilogue(True), beta=1.0)
    seen = {
        each.array
        for each in check(problem, device).accesses
        if each.requests and each.space == "global"
    }
    assert seen == {"groups", "A", "B", "C", "bias"}


# --- plans --------------------------------------------------------------------------------------


def planned(groups):
    return KERNEL.plan(GemmProblem.of_groups(groups), TILES, H100)


def test_nothing_to_do_launches_nothing(device):
    assert planned([]).blocks == 0
    assert planned([(0, 5, 6), (7, 0, 8)]).blocks == 0
    check(GemmProblem.of_groups([(0, 5, 6), (7, 0, 8)]), device)


def test_little_work_of_one_depth_fills_the_board_and_other_tiles_have_blocks_of_their_own():
    alike, unlike = "512x512x32*50", "512x512x32*49,512x512x128"
    tiles = 50 * (512 // 16) * (512 // 32)
    assert planned(unlike).grid == planned("512x512x128*50").grid == (tiles, 1, 1)
    assert planned(alike).grid[0] < tiles
    assert planned(alike).grid[0] % H100.sm_count == 0


def test_one_member_that_is_not_aligned_takes_the_vectors_from_all():
    others = {
        "8x8x8": 4,
        "3x8x8": 4,
        "8x8x7": 1,
        "8x8x8:8:8:9": 1,
        # They read and write nothing, or no A and B.
        "0x8x7": 4,
        "8x8x0:1:8:8": 4,
    }
    widths = {
        text: vector_width(GemmProblem.of_groups(f"8x8x8,{text}", alignment=16)) for text in others
    }
    assert widths == others
    assert vector_width(GemmProblem.of_groups("8x8x8", alignment=8)) == 1


def test_the_longest_products_come_first():
    table = GroupTable(GemmProblem.of_groups([(40, 40, k) for k in (3, 30, 0, 30)]), 16, 32)
    filled = table.filled({"A": [1, 2, 3, 4], "B": [5, 6, 7, 8], "C": [9, 10, 11, 12]})
    assert filled["A"].tolist() == [2, 4, 1, 3]
    assert filled["C"].tolist() == [10, 12, 9, 11]
    assert filled["first_tile"].tolist() == [0, 6, 12, 18]
    assert table.arguments == {"group_count": 4, "tile_count": 24}


def test_more_than_indices_hold_is_refused():
    with pytest.raises(UnsupportedProblem, match=r"product 1 has k = \d+: indices are 32-bit"):
        planned([(1, 1, 1), (1, 1, MAX_EXTENT + 1)])
    with pytest.raises(UnsupportedProblem, match=r"product 0 has ldc = \d+: indices are 32-bit"):
        planned([(1, 1, 1, 0, 0, MAX_EXTENT + 1)])
    with pytest.raises(UnsupportedProblem, match="tiles are more than a launch can number"):
        planned([(2**20, 2**20, 1)] * 2)
    with pytest.raises(UnsupportedProblem, match="ldx = 2147483649: indices are 32-bit"):
        GroupTable(GemmProblem.of_groups("2x2x2"), 16, 32).filled({}, ldx=[2**31 + 1])
    with pytest.raises(UnsupportedProblem, match=r"cp\.async needs compute capability 8\.0"):
        KERNEL.plan(GemmProblem(1, 1, 1), TILES, find_board("t4"))


def test_groups_are_for_kernels_that_take_a_table():
    problem = GemmProblem.of_groups("8x8x64,4x8x96")
    assert kernels_for([problem]) == (KERNEL,)
    assert kernels_for([GemmProblem(8, 8, 8)]) == LADDER[:13]
    assert KERNEL not in kernels_for([GemmProblem(8, 8, 8, dtype="float64")])
    for kernel in (*LADDER, *PRODUCTION):
        grouped = kernel.lay_out(in_types_of(kernel, problem))
        reason = kernel.supports(grouped, kernel.default, H100)
        assert (reason is None) == kernel.takes_groups
        refusal = "no others" if kernel.takes_ragged else "not groups of different shapes"
        assert kernel.takes_groups or reason.endswith(refusal)
