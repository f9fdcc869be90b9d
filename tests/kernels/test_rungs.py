"""The list of rungs: names, texts, defaults, launch plans."""

import re

import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import BOARDS, MAX_GRID_YZ, find_board
from gemmkit.kernels import include_files
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.limits import MAX_EXTENT, SKINNY
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.rules import MAP_K
from gemmkit.problem import GemmProblem
from rung_boards import HOPPER, STORED_BY_TMA

H100 = find_board("h100")
NAMES = [
    "naive_uncoalesced",
    "naive",
    "shared_tiling",
    "coarsening_1d",
    "coarsening_2d",
    "vectorized",
    "conflict_free",
    "double_buffered",
    "warp_tiled",
    "async_copy",
    "split_k",
    "warp_reduce",
    "stream_k",
    "wmma",
    "mma_sync",
    "mma_pipelined",
    *HOPPER,
]
RUNGS = list(range(1, 22))
# Kernels that copy with cp.async, which boards before compute capability 8.0 do not have.
ASYNC = {"async_copy", "split_k", "warp_reduce", "stream_k", "mma_pipelined"}

each_kernel = pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)


def test_the_rungs_in_their_order():
    assert [kernel.name for kernel in LADDER] == NAMES
    assert [kernel.rung for kernel in LADDER] == RUNGS


@each_kernel
def test_a_source_is_short_and_begins_with_its_idea(kernel):
    lines = kernel.source.splitlines()
    head = next(number for number, line in enumerate(lines) if not line.startswith("//"))
    assert lines[0].startswith(f"// Rung {kernel.rung}: ")
    assert "Loads per result" in "\n".join(lines[:head])
    assert 4 <= head <= 10
    assert len(lines) <= 160
    assert max(map(len, lines)) <= 100


@each_kernel
def test_a_source_has_the_entry_and_the_signature_that_the_ladder_says(kernel):
    # The parameters of an epilogue of one's own follow behind a macro, which is empty without one.
    code = re.sub(r"/\*|\*/|\bCUSTOM_PARAMETERS\b", "", kernel.source)
    parameters = re.search(rf"\b{kernel.name}\(([^)]*)\)\s*{{", code)
    assert parameters is not None
    assert tuple(each.split()[-1].lstrip("*") for each in parameters[1].split(",")) == (
        kernel.signature
    )


@each_kernel
def test_a_module_passes_the_template_arguments_that_the_source_declares(kernel):
    """Two arguments that change places give another entry, or none that compiles."""
    declared = re.search(r"^template <([^>]*)>\n__global__", kernel.source, re.M)[1].split(",")
    names = [each.split()[-1] for each in declared if "class Epilogue" not in each]
    problem = fitting(kernel, in_types_of(kernel, GemmProblem(1024, 1024, 1024)), H100)
    entry = kernel.plan(problem, kernel.default, H100).entry
    passed = re.match(r"\w+<([^<>]*?)(, Epilogue<.*)?>$", entry)[1].split(", ")
    assert len(passed) == len(names)
    vector = 16 // problem.item_bytes
    values = {"STAGES": kernel.default.stages, "PAD": vector, "MAP_K": MAP_K, "VEC": vector}
    values |= {"In": CUDA_TYPES[problem.dtype]}
    values |= {"SMALL": SKINNY, "TALL": "false", "RASTER": 8, **kernel.default.as_dict()}
    assert passed == [str(values[name]) for name in names]


@each_kernel
def test_a_source_includes_headers_that_there_are(kernel):
    included = set(re.findall(r'#include "([^"]+)"', kernel.source))
    assert included <= include_files().keys()
    # Those in angle brackets are CUDA's.
    assert set(re.findall(r"#include <([^>]+)>", kernel.source)) <= {"mma.h"}


@each_kernel
def test_an_idea_is_one_sentence(kernel):
    assert kernel.idea.endswith(".")
    assert kernel.idea.count(". ") == 0


@each_kernel
def test_the_default_runs_on_every_board_that_has_what_the_kernel_needs(kernel):
    refused = {board.name for board in BOARDS.values() if kernel.rule(kernel.default, board)}
    others = {board.name for board in BOARDS.values() if str(board.capability) != "9.0"}
    assert refused == (
        others
        if kernel.name in HOPPER
        else {"T4", "RTX 2080 Ti"}
        if kernel.name in ASYNC
        else set()
    )


@each_kernel
def test_the_default_is_a_point_of_the_space(kernel):
    assert kernel.default in set(kernel.configurations(H100))
    keys = [*kernel.space, *kernel.refinements]
    assert keys == list(kernel.default.as_dict())
    assert all(kernel.default[key] in kernel.refinements[key] for key in kernel.refinements)


def test_find_kernel_is_easy_on_spelling():
    assert find_kernel(" Async-Copy ").name == "async_copy"


def test_find_kernel_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown kernel 'naiv': did you mean naive\b"):
        find_kernel("naiv")


def test_find_kernel_names_a_rung_by_its_number():
    with pytest.raises(UsageError, match="go by their names here: rung 3 is shared_tiling"):
        find_kernel("3")
    with pytest.raises(UsageError, match="unknown kernel '99'"):
        find_kernel("99")


def test_the_stride_is_tm():
    kernel = find_kernel("coarsening_1d")
    assert kernel.configure({"stride": 4}) == kernel.configure({"TM": 4})


def test_an_unknown_key_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="no key 'TN'; it has: BM, BN, BK, TM"):
        find_kernel("coarsening_1d").configure({"TN": 4})


@pytest.mark.parametrize(
    "kernel",
    [
        each
        for each in LADDER
        if each.name not in ("split_k", "warp_reduce", "stream_k", *STORED_BY_TMA)
    ],
    ids=lambda kernel: kernel.name,
)
def test_a_plan_covers_the_result(kernel):
    problem = fitting(kernel, in_types_of(kernel, GemmProblem(1000, 700, 30)), H100)
    plan = kernel.plan(problem, kernel.default, H100)
    BM, BN = kernel.default["BM"], kernel.default["BN"]
    assert plan.threads_per_block <= 1024
    rows, columns = plan.grid[1], plan.grid[0]
    if kernel.name == "naive_uncoalesced":
        rows, columns = columns, rows
    # The two blocks of a cluster are neighbors along x, their tiles along M.
    rows, columns = rows * plan.cluster[0], columns // plan.cluster[0]
    assert (rows - plan.cluster[0]) * BM < 1000 <= rows * BM
    assert (columns - 1) * BN < problem.n <= columns * BN
    assert plan.grid[2] == 1


@each_kernel
@pytest.mark.parametrize("shape", [(0, 5, 5), (5, 0, 5)])
def test_an_empty_result_is_an_empty_grid(kernel, shape):
    problem = in_types_of(kernel, GemmProblem(*shape))
    assert kernel.plan(problem, kernel.default, H100).blocks == 0


@each_kernel
def test_no_depth_still_writes_c(kernel):
    problem = fitting(kernel, in_types_of(kernel, GemmProblem(5, 5, 0)), H100)
    plan = kernel.plan(problem, kernel.default, H100)
    assert (problem.k, plan.blocks) == (0, plan.cluster[0])


@pytest.mark.parametrize("rows", [1, MAX_GRID_YZ, MAX_GRID_YZ + 1, 3 * MAX_GRID_YZ, 10_000_019])
def test_many_row_tiles_go_to_z(rows):
    columns, y, z = tile_grid(GemmProblem(rows * 16, 40, 1), 16, 16)
    assert columns == 3
    assert y <= MAX_GRID_YZ
    assert z <= MAX_GRID_YZ
    assert rows <= y * z < rows + z


def test_columns_of_the_uncoalesced_kernel_go_to_z():
    kernel = find_kernel("naive_uncoalesced")
    x, y, z = kernel.plan(GemmProblem(1, 70_000 * 32, 1), kernel.default, H100).grid
    assert (x, y, z) == (1, 35_000, 2)


@pytest.mark.parametrize(
    ("problem", "width"),
    [
        (GemmProblem(3, 8, 12), 4),
        (GemmProblem(3, 8, 12, lda=16, ldb=12, ldc=100), 4),
        (GemmProblem(4, 7, 12), 1),
        (GemmProblem(4, 8, 13), 1),
        (GemmProblem(4, 7, 12, ldb=8, ldc=8), 1),
        (GemmProblem(4, 8, 12, lda=13), 1),
        (GemmProblem(4, 8, 12, ldb=9), 1),
        (GemmProblem(4, 8, 12, ldc=10), 1),
    ],
)
def test_vectors_only_where_all_rows_are_whole_and_aligned(problem, width):
    assert vector_width(problem) == width
    assert (
        f", {width}, Epilogue<"
        in find_kernel("vectorized").plan(problem, find_kernel("vectorized").default, H100).entry
    )


def test_entries_name_template_arguments_and_policy():
    kernel = find_kernel("gemm_tiled")
    problem = GemmProblem(64, 64, 64, epilogue=Epilogue(bias=True, activation="relu"))
    plan = kernel.plan(problem, kernel.configure({"stages": 2}), H100)
    assert plan.entry == (
        "gemm_tiled<Tile{.BM = 128, .BN = 256, .BK = 16, .WM = 64, .WN = 64, .TM = 16, .TN = 8, "
        ".stages = 2, .interleave = 4, .order = 1, .pad = 4, .map_k = 8, .threads = 256, "
        ".min_blocks = 1}, Access{.a = 4, .b = 4, .c = 4}, A_B, "
        "Schedule{.batched = false, .chunks = 1, .raster = 0}, Epilogue<COLUMN_BIAS, Relu>>"
    )
    assert plan.shared_bytes == 2 * 4 * 16 * (128 + 4 + 256)
    naive = find_kernel("naive").plan(GemmProblem(4, 4, 4), find_kernel("naive").default, H100)
    assert naive.entry == "naive<32, 32, Epilogue<NO_BIAS, Identity>>"


def test_the_first_rung_does_not_fuse():
    kernel = find_kernel("naive_uncoalesced")
    problem = GemmProblem(4, 4, 4, epilogue=Epilogue(bias=True))
    with pytest.raises(UnsupportedProblem, match="no fused epilogue; 'gemm_tiled' and"):
        kernel.plan(problem, kernel.default, H100)


@pytest.mark.parametrize("shape", [(2**31 - 1, 1, 1), (1, 2**31 - 1, 1), (1, 1, MAX_EXTENT + 1)])
def test_sizes_past_the_kernels_indices_are_refused(shape):
    kernel = find_kernel("naive")
    assert "32-bit" in str(kernel.supports(GemmProblem(*shape), kernel.default, H100))
    assert kernel.supports(GemmProblem(MAX_EXTENT, 1, 1), kernel.default, H100) is None
