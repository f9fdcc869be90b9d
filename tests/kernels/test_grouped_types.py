"""Groups of every type: `grouped_mma` on the tensor cores, `grouped_typed` everywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from gemmkit.bench.workload import Case
from gemmkit.devices.choose import open_device
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel, kernels_for, takers, tunable_kernels
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

H100, T4 = find_board("h100"), find_board("t4")
CONFIGS = {
    "grouped_mma": TileConfig(BM=32, BN=32, BK=16, WM=16, WN=16),
    "grouped_typed": TileConfig(BM=16, BN=32, BK=8, WM=16, WN=32, TM=4, TN=4),
}
TYPES = [
    ("grouped_mma", "bfloat16", None),
    ("grouped_mma", "float16", "float32"),
    ("grouped_mma", "float64", None),
    ("grouped_typed", "float16", None),
    ("grouped_typed", "float64", "bfloat16"),
    ("grouped_typed", "float32", "float16"),
    ("grouped_typed", "float32", None),
]

# One smaller than a tile, several tiles with edges both ways, some without rows, columns or k.
SHAPES = [(5, 7, 9), (0, 5, 6), (33, 65, 40), (64, 64, 0), (40, 0, 3), (50, 36, 17), (1, 1, 1)]


@pytest.fixture(scope="module")
def device():
    return open_device("emulator", "h100", sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch, assemble=False)


def check(name, problem, device, *, blocks=None, kind="integer"):
    """Compute in one launch, in a grid of `blocks`, on poisoned output, with all sanitizers."""
    plan = find_kernel(name).plan(problem, CONFIGS[name], H100)
    if blocks is not None:
        plan = replace(plan, grid=(blocks, 1, 1))
    binary = compiled(replace(plan, grid=(1, 1, 1), table=None))
    launch, verdict = Case.make(problem, device, 0, kind).run(problem, device, binary, plan)
    assert not launch.findings
    assert verdict.correct, verdict.detail


def accesses(name, problem):
    entry = find_kernel(name).plan(problem, CONFIGS[name], H100).entry
    words = entry.partition("Access{")[2].partition("}")[0]
    return tuple(int(each.partition(" = ")[2]) for each in words.split(", "))


@pytest.mark.parametrize(("name", "dtype", "out"), TYPES)
@pytest.mark.sample(4)
def test_products_of_any_shape(name, dtype, out, device):
    types = {"dtype": dtype, "out_dtype": out}
    padded = [(m, n, k, k + 1, n + 2, n + 3) for m, n, k in SHAPES]
    for blocks in (None, 3):
        check(name, GemmProblem.of_groups(padded, alpha=2.0, **types), device, blocks=blocks)
    check(name, GemmProblem.of_groups([(20, 40, 0)], beta=-1.0, **types), device)
    # As memory never written, which initcheck minds.
    check(name, GemmProblem.of_groups("5x7x4,20x3x4", alpha=0.0, beta=0.5, **types), device)
    check(name, GemmProblem(20, 33, 5, ldc=35, batch=3, stride_c=750, **types), device)


@pytest.mark.parametrize(("name", "dtype", "out"), TYPES)
@pytest.mark.sample(2)
def test_aligned_products_in_vectors(name, dtype, out, device):
    shapes = [(m, 8 * n, 8 * k) for m, n, k in SHAPES[:4] + SHAPES[-1:]]
    problem = GemmProblem.of_groups(shapes, beta=1.0, dtype=dtype, out_dtype=out)
    a, b, c = accesses(name, problem)
    assert a == b == 16 // problem.item_bytes
    assert c == (2 if name == "grouped_mma" or dtype == "float64" else 4)
    check(name, problem, device, blocks=5)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize(
    ("layout", "epilogue"),
    [
        ("nt", Epilogue(True, "relu")),
        ("tn", Epilogue("row", "gelu", residual=True)),
        ("tt", Epilogue(True, "none", auxiliary=True, residual=True, scale=2.0)),
    ],
    ids=["nt", "tn", "tt"],
)
@pytest.mark.sample(6)
def test_layouts_and_epilogues(name, dtype, layout, epilogue, device):
    for shapes in (SHAPES, [(8 * m, 8 * n, 8 * k) for m, n, k in ((5, 7, 2), (1, 2, 5))]):
        problem = GemmProblem.of_groups(shapes, epilogue=epilogue, beta=0.5, dtype=dtype)
        check(name, problem.laid_out(layout), device, blocks=4, kind="normal")


@pytest.mark.parametrize("name", CONFIGS)
def test_accesses_are_as_wide_as_all_products_allow(name):
    def widths(text, **rest):
        return accesses(name, GemmProblem.of_groups(text, dtype="bfloat16", **rest))

    most = 2 if name == "grouped_mma" else 4
    assert widths("64x64x64,128x8x8") == (8, 8, most)
    # The least of all rows of A, of B and of C counts, and what is not read does not.
    assert widths("64x64x64,128x8x4") == (4, 8, most)
    assert widths("64x64x64,128x2x8") == (8, 2, 2 if most == 2 else 1)
    assert widths("64x64x64,7x8x8") == (8, 8, most)
    assert widths("64x64x64,0x3x5,8x3x0:1:3:8") == (8, 8, 1)
    assert widths("64x64x64:72:68:67") == (8, 4, 1)
    assert widths("64x64x64", alignment=4) == (2, 2, 2 if most == 2 else 1)
    assert widths("8x64x64,7x64x64", transa=True)[0] == 1


def test_nothing_to_do_launches_nothing():
    for name, config in CONFIGS.items():
        for shapes in ([], [(0, 5, 6), (7, 0, 8)]):
            problem = GemmProblem.of_groups(shapes, dtype="float16")
            assert find_kernel(name).plan(problem, config, H100).blocks == 0


def test_more_than_indices_hold_is_refused():
    for name, config in CONFIGS.items():
        for shapes, words in (
            ([(1, 1, 1), (1, 1, MAX_EXTENT + 1)], "product 1 has k"),
            ([(2**21, 2**21, 1)] * 2, "tiles are more than a launch can number"),
        ):
            problem = GemmProblem.of_groups(shapes, dtype="float64")
            with pytest.raises(UnsupportedProblem, match=words):
                find_kernel(name).plan(problem, config, H100)


def test_the_kernels_for_groups_are_those_of_their_types():
    def names(kernels):
        return [each.name for each in kernels]

    both = ["grouped_typed", "grouped_mma"]
    for types, wanted in (
        ({"dtype": "float16"}, [*both, "grouped_wgmma"]),
        ({"dtype": "float64"}, both),
        ({"out_dtype": "bfloat16"}, both[:1]),
    ):
        problem = GemmProblem.of_groups("8x8x8,4x4x4", **types)
        assert names(kernels_for([problem])) == names(tunable_kernels([problem], H100)) == wanted
    fp32 = GemmProblem.of_groups("8x8x8,4x4x4")
    assert names(kernels_for([fp32])) == names(tunable_kernels([fp32], H100)) == ["gemm_grouped"]
    # Without cp.async.
    assert "grouped_typed" in names(tunable_kernels([fp32], T4))
    assert names(takers(fp32, T4)) == ["grouped_typed"]
    # None of them is run for single products.
    for dtype in ("float64", "float16"):
        single = GemmProblem(8, 8, 8, dtype=dtype)
        assert not set(both) & {
            *names(kernels_for([single])),
            *names(tunable_kernels([single], T4)),
        }
