"""Many products in one launch: whose tile is whose, edges, empty ones, layouts, epilogues."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from gemmkit.devices.choose import open_device
from gemmkit.devices.device import Buffer
from gemmkit.dispatch.groups import TILES as CHOICES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import MAX_EXTENT, TileConfig
from gemmkit.kernels.production import gemm_grouped as grouped
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
TILES = TileConfig(BM=16, BN=32, BK=16, WM=16, WN=32, TM=4, TN=4, stages=2, interleave=1, order=2)

# One smaller than a tile, several tiles with edges both ways, some without rows, columns or k.
SHAPES = [(5, 7, 9), (0, 5, 6), (33, 65, 40), (64, 64, 0), (40, 0, 3), (50, 36, 17), (1, 1, 1)]


@pytest.fixture(scope="module")
def device():
    return open_device("emulator", "h100", sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch)


@dataclass
class Member:
    """A product's matrices in memory, each row NaN beyond its end, and their device copies."""

    problem: GemmProblem
    values: dict[str, np.ndarray]
    buffers: dict[str, Buffer]

    @classmethod
    def make(cls, problem, rng, device):
        def draw(rows, columns, ld, *, transposed=False):
            if transposed:
                rows, columns = columns, rows
            storage = np.full((rows, ld), np.nan, np.float32)
            storage[:, :columns] = rng.integers(-4, 5, (rows, columns))
            return storage

        m, n, k, epilogue = problem.m, problem.n, problem.k, problem.epilogue
        values = {
            "A": draw(m, k, problem.lda, transposed=problem.transa),
            "B": draw(k, n, problem.ldb, transposed=problem.transb),
            "C": draw(m, n, problem.ldc),
        }
        if problem.beta == 0:
            values["C"][:] = np.nan
        if epilogue.bias:
            values["bias"] = rng.integers(-4, 5, m if epilogue.bias == "row" else n)
        if epilogue.residual:
            values["residual"] = draw(m, n, n + 3)
        if epilogue.auxiliary:
            values["auxiliary"] = np.full((m, n + 2), np.nan)
        values = {name: each.astype(np.float32) for name, each in values.items()}
        return cls(problem, values, {x: device.upload(each) for x, each in values.items()})

    def address(self, name):
        return self.buffers[name].address if name in self.buffers else 0

    def ld(self, name):
        return self.values[name].shape[1] if name in self.values else 0

    def result(self, name, device):
        """The elements, after a look at what lies beyond the ends of rows."""
        storage = np.empty_like(self.values[name])
        device.download(self.buffers[name], storage)
        assert np.isnan(storage[:, self.problem.n :]).all()
        return storage[:, : self.problem.n]

    @property
    def expected(self):
        """The result and the activation's argument, in float64."""
        p, own = self.problem, self.problem.epilogue
        a, b = self.values["A"].astype(float), self.values["B"].astype(float)
        a = (a[:, : p.m].T if p.transa else a[:, : p.k]) if p.m else np.zeros((0, p.k))
        b = b[:, : p.k].T if p.transb else b[:, : p.n]
        x = p.alpha * (a @ b)
        if p.beta:
            x += p.beta * self.values["C"][:, : p.n]
        if own.bias:
            bias = self.values["bias"]
            x += bias[:, None] if own.bias == "row" else bias
        y = ACTIVATIONS[str(own.activation)](x) * own.scale
        return (y + self.values["residual"][:, : p.n] if own.residual else y), x


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, [float])(x / math.sqrt(2))),
    "custom(x > 0 ? x : slope * x;slope=0.5)": lambda x: np.where(x > 0, x, 0.5 * x),
}


def launch(products, device, *, blocks=None, config=TILES, seed=0):
    """Compute them in one launch, in a grid of `blocks`; they are looked at by the sanitizers."""
    rng = np.random.default_rng(seed)
    members = [Member.make(each, rng, device) for each in products]
    problem = GroupedProblem.of(products)
    plan = grouped.plan(problem, config, H100)
    table = grouped.describe(
        *(problem, config),
        *([each.address(name) for each in members] for name in "ABC"),
        bias=[each.address("bias") for each in members],
        residual=[each.address("residual") for each in members],
        ldr=[each.ld("residual") for each in members],
        auxiliary=[each.address("auxiliary") for each in members],
        ldx=[each.ld("auxiliary") for each in members],
    )
    listed = device.upload(table)
    if blocks is not None:
        plan = replace(plan, grid=(blocks, 1, 1))
    binary = compiled(replace(plan, grid=(1, 1, 1)))
    launched = device.launch(binary, plan, grouped.arguments(problem, table, listed.address))
    assert not launched.findings
    return members


def check(members, device, tolerance=0.0):
    for number, member in enumerate(members):
        result, argument = member.expected
        for name, right in (("C", result), ("auxiliary", argument)):
            if name in member.values:
                np.testing.assert_allclose(
                    member.result(name, device),
                    right,
                    rtol=0,
                    atol=tolerance * max(1, np.abs(right).max(initial=0)),
                    err_msg=f"product {number}: {member.problem}",
                )


@pytest.mark.parametrize("blocks", [None, 1, 4])
def test_products_of_any_shape(blocks, device):
    products = [GemmProblem(m, n, k, 2.0, lda=k + 1, ldc=n + 3) for m, n, k in SHAPES]
    check(launch(products, device, blocks=blocks), device)


@pytest.mark.parametrize("k", [5, 0])
def test_one_product(k, device):
    check(launch([GemmProblem(20, 40, k, beta=-1.0)], device), device)


def test_a_thousand_tiny_products(device):
    rng = np.random.default_rng(3)
    products = [GemmProblem(*map(int, sizes)) for sizes in rng.integers(0, 7, (1000, 3))]
    check(launch(products, device, blocks=64), device)


def test_alpha_of_zero_reads_neither_operand(device):
    products = [GemmProblem(m, n, 4, 0.0, 0.5) for m, n in ((5, 7), (20, 3))]
    members = launch(products, device)
    for member in members:
        member.values["A"][:] = member.values["B"][:] = 0
    check(members, device)


def test_aligned_products_in_vectors(device):
    products = [GemmProblem(m, 4 * n, 4 * k, beta=1.0) for m, n, k in SHAPES]
    plan = grouped.plan(GroupedProblem.of(products), TILES, H100)
    assert "Access{.a = 4, .b = 4, .c = 4}, A_B, " in plan.entry
    check(launch(products, device, blocks=5), device)


@pytest.mark.parametrize("odd", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(
    "config",
    [pytest.param(each.config, marks=pytest.mark.slow) for each in CHOICES],
    ids=[str(each.config) for each in CHOICES],
)
def test_all_tiles_that_are_chosen_from(config, odd, device):
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    products = [
        GemmProblem(BM + 3, BN + 4 + odd, 3 * BK + 4 + odd),
        GemmProblem(2, 4 + odd, 4),
        GemmProblem(BM, 2 * BN, 8 + odd),
    ]
    check(launch(products, device, blocks=3, config=config), device)


LEAKY = Epilogue.custom("x > 0 ? x : slope * x", slope=0.5, scale=2.0, auxiliary=True)


@pytest.mark.parametrize(
    ("layout", "epilogue", "tolerance"),
    [
        ("nt", Epilogue(True, "relu"), 0),
        ("tn", Epilogue("row", "gelu", residual=True), 1e-6),
        ("tt", LEAKY, 0),
    ],
    ids=["nt", "tn", "tt"],
)
def test_layouts_and_epilogues(layout, epilogue, tolerance, device):
    products = [
        GemmProblem(m, n, k, transa=layout[0] == "t", transb=layout[1] == "t", epilogue=epilogue)
        for m, n, k in SHAPES
    ]
    check(launch(products, device, blocks=4), device, tolerance)


# --- plans --------------------------------------------------------------------------------------


def planned(*products):
    return grouped.plan(GroupedProblem.of(products), TILES, H100)


def test_nothing_to_do_launches_nothing():
    assert planned().blocks == 0
    assert planned(GemmProblem(0, 5, 6), GemmProblem(7, 0, 8)).blocks == 0


def test_little_work_of_one_depth_fills_the_board_and_other_tiles_have_blocks_of_their_own():
    square, deep = GemmProblem(512, 512, 32), GemmProblem(512, 512, 128)
    alike, unlike = [square] * 50, [square] * 49 + [deep]
    tiles = 50 * (512 // 16) * (512 // 32)
    assert planned(*unlike).grid == planned(*[deep] * 50).grid == (tiles, 1, 1)
    assert planned(*alike).grid[0] < tiles
    assert planned(*alike).grid[0] % H100.sm_count == 0


def test_one_member_that_is_not_aligned_takes_the_vectors_from_all():
    aligned = GemmProblem(8, 8, 8)
    width = {
        other: grouped.vector_width(GroupedProblem.of([aligned, other]))
        for other in (
            aligned,
            GemmProblem(3, 8, 8),
            GemmProblem(8, 8, 7),
            GemmProblem(8, 8, 8, ldc=9),
            GemmProblem(8, 8, 8, alignment=8),
            GemmProblem(0, 8, 7),
            GemmProblem(8, 8, 0),
        )
    }
    assert list(width.values()) == [4, 4, 1, 1, 1, 4, 4]


def test_the_longest_products_come_first():
    products = [GemmProblem(40, 40, k) for k in (3, 30, 0, 30)]
    problem = GroupedProblem.of(products)
    table = grouped.describe(problem, TILES, [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12])
    assert table["A"].tolist() == [2, 4, 1, 3]
    assert table["C"].tolist() == [10, 12, 9, 11]
    assert table["first_tile"].tolist() == [0, 6, 12, 18]
    assert grouped.arguments(problem, table, 256)["tile_count"] == 24


def test_more_than_indices_hold_is_refused():
    with pytest.raises(UnsupportedProblem, match=r"product 1 has k = \d+: indices are 32-bit"):
        planned(GemmProblem(1, 1, 1), GemmProblem(1, 1, MAX_EXTENT + 1))
    with pytest.raises(UnsupportedProblem, match="tiles are more than a launch can number"):
        planned(*[GemmProblem(2**20, 2**20, 1)] * 2)
    with pytest.raises(UnsupportedProblem, match="ldx = 2147483649: indices are 32-bit"):
        grouped.describe(GroupedProblem.of([GemmProblem(2, 2, 2)]), TILES, 0, 0, 0, ldx=[2**31 + 1])
    with pytest.raises(UnsupportedProblem, match=r"cp\.async needs compute capability 8\.0"):
        grouped.plan(GroupedProblem.of([GemmProblem(1, 1, 1)]), TILES, find_board("t4"))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (GemmProblem(2, 2, 2, 2.0), "product 1 has alpha = 2.0, the first 1.0: all must agree"),
        (GemmProblem(2, 2, 2, transa=True), "product 1 has transa = True, the first False"),
        (GemmProblem(2, 2, 2, batch=3), "product 1 is a batch of 3: list its products"),
    ],
)
def test_products_that_do_not_go_together(second, words):
    with pytest.raises(UsageError, match=words):
        GroupedProblem.of([GemmProblem(1, 1, 1), second])


def test_sizes_that_cannot_be():
    ones = np.ones(2, np.int64)
    with pytest.raises(UsageError, match="product 1: k = -1: sizes must be 0 or more"):
        GroupedProblem(ones, ones, [1, -1], ones, ones, ones)
    with pytest.raises(UsageError, match="product 1: ldb = 1 is smaller than a row of 5 elements"):
        GroupedProblem(ones, [1, 5], ones, ones, ones, [1, 5])
    with pytest.raises(UsageError, match="n has 1 entries where m has 2"):
        GroupedProblem(ones, [1], ones, ones, ones, ones)
    with pytest.raises(UsageError, match="alpha = nan is not a finite fp32 number"):
        GroupedProblem(*[ones] * 6, alpha=math.nan)
    with pytest.raises(UsageError, match="groups must be float32, not float64"):
        GroupedProblem.of([GemmProblem(1, 1, 1, dtype="float64")])


def test_work_of_all_products():
    problem = GroupedProblem.of([GemmProblem(2, 3, 4, beta=1.0), GemmProblem(5, 6, 0, beta=1.0)])
    assert problem.count == 2
    assert problem.flops == 48
    assert problem.minimal_bytes == 4 * (8 + 12 + 12 + 60)
    # B is not read where C has no rows.
    assert GroupedProblem.of([GemmProblem(0, 3, 4), GemmProblem(1, 1, 1)]).minimal_bytes == 12
