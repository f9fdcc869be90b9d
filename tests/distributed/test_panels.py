"""SUMMA's panels of k, run by threads: on meshes of all kinds, with shares of any length."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gemmkit
from gemmkit import GemmProblem
from gemmkit.distributed import plan, predicted_timeline
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.panel_run import PanelArrays, run_panels
from gemmkit.distributed.panels import Shares, panel_schedule
from gemmkit.distributed.splits import Span, consecutive, shares
from gemmkit.distributed.threads import Hub, ThreadCommunicator
from gemmkit.errors import DistributedError, UnsupportedProblem, UsageError
from gemmkit.report.ranks import plan_text

SUMMA = ("S(0)", "S(1)"), ("S(0)", "S(1)")
MESHES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (2, 3))


def exact(a, b, out, alpha=1, c=None, beta=0, bias=None, residual=None, epilogue=None):
    """As `gemmkit.matmul`, in float64 of NumPy's."""
    made = alpha * (a.astype(float) @ b.astype(float))
    made = made if c is None else made + beta * c
    made = made if bias is None else made + bias
    made = np.maximum(made, 0) if "relu" in str(epilogue) else made
    out[:] = made if residual is None else made + residual


def whole_numbers(seed, *sizes, dtype=np.float32):
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, size).astype(dtype) for size in sizes]


def sizes_of(side, ranks):
    return tuple(each.size for each in shares(side, ranks))


def plain(lines, columns):
    """The product of a rank, with nothing after it."""
    return LocalProduct(engine=exact)


def summa(a, b, rows, columns, depths, *, parts=1, whole=False, product=plain):
    """What the ranks of a mesh get of a·b, put together: `rows` and `columns` are the shares of the
    result, `depths` those of A's k, as many as columns, and of B's, as many as rows; `product`
    makes that of a rank from the slices of its part."""
    mesh = len(rows), len(columns)
    along_a = [Hub(mesh[1], timeout=20) for _ in rows]
    along_b = [Hub(mesh[0], timeout=20) for _ in columns]
    deep_a, deep_b = (consecutive(each) for each in depths)

    def run(place):
        row, column = place
        lines, wanted = slice(*consecutive(rows)[row]), slice(*consecutive(columns)[column])
        out = np.full((rows[row], columns[column]), np.nan, a.dtype)
        arrays = PanelArrays(
            a[lines, slice(*deep_a[column])],
            b[slice(*deep_b[row]), wanted],
            out,
            product(lines, wanted),
            (lambda: np.full(out.shape, np.nan, np.float32)) if a.itemsize < 4 else None,
        )
        means = (
            ThreadCommunicator(along_a[row], column) if mesh[1] > 1 else None,
            ThreadCommunicator(along_b[column], row) if mesh[0] > 1 else None,
        )
        of_a, of_b = Shares(depths[0], column), Shares(depths[1], row)
        steps = panel_schedule(of_a, of_b, parts, whole=whole)
        run_panels(steps, arrays, means, a.dtype.name, whole=whole)
        return out

    places = list(itertools.product(range(mesh[0]), range(mesh[1])))
    with ThreadPoolExecutor(len(places)) as pool:
        made = list(pool.map(run, places))
    return np.block([made[row * mesh[1] : (row + 1) * mesh[1]] for row in range(mesh[0])])


def spread(a, b, mesh, **options):
    m, k, n = *a.shape, b.shape[1]
    depths = sizes_of(k, mesh[1]), sizes_of(k, mesh[0])
    return summa(a, b, sizes_of(m, mesh[0]), sizes_of(n, mesh[1]), depths, **options)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (6, 9, 20), (4, 4, 0)])
def test_every_rank_gets_its_part_of_the_product(mesh, shape):
    m, n, k = shape
    a, b = whole_numbers(m, (m, k), (k, n))
    for parts, whole in ((1, False), (2, False), (3, False), (1, True)):
        assert np.array_equal(spread(a, b, mesh, parts=parts, whole=whole), a @ b)


@pytest.mark.parametrize(
    ("rows", "columns", "depths"),
    [
        ((3, 4), (5, 0), ((7, 0), (2, 5))),
        ((0, 2), (1, 3), ((0, 6), (6, 0))),
        ((2, 2, 1), (3, 4), ((1, 8), (0, 4, 5))),
    ],
)
def test_uneven_and_empty_shares(rows, columns, depths):
    a, b = whole_numbers(4, (sum(rows), sum(depths[0])), (sum(depths[0]), sum(columns)))
    for parts, whole in ((1, False), (2, False), (1, True)):
        made = summa(a, b, rows, columns, depths, parts=parts, whole=whole)
        assert np.array_equal(made, a @ b)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("activation", ["", "+relu"])
@pytest.mark.parametrize("parts", [1, 2])
def test_what_follows_the_sums_follows_the_complete_ones_once(dtype, activation, parts):
    a, b, c, residual = whole_numbers(5, (6, 8), (8, 5), (6, 5), (6, 5), dtype=dtype)
    epilogue = gemmkit.Epilogue.parse(f"residual{activation}")

    def product(lines, columns):
        return LocalProduct(
            *(2.0, epilogue),
            residual=residual[lines, columns],
            c=c[lines, columns],
            beta=3.0,
            engine=exact,
        )

    sums = 2 * (a.astype(float) @ b.astype(float)) + 3 * c
    want = (np.maximum(sums, 0) if activation else sums) + residual
    for mesh in ((2, 2), (1, 2), (2, 1)):
        made = spread(a, b, mesh, parts=parts, product=product)
        assert np.array_equal(made, want.astype(dtype))


def test_sums_of_16_bits_are_rounded_once():
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(size).astype(np.float16) for size in ((6, 24), (24, 5)))

    def in_fp32(a, b, out, c=None, beta=0):
        made = a.astype(np.float32) @ b.astype(np.float32)
        out[:] = made if c is None else made + np.float32(beta) * c

    made = spread(a, b, (2, 2), parts=2, product=lambda *_: LocalProduct(engine=in_fp32))
    exactly = a.astype(float) @ b.astype(float)
    # Half a unit in the last place of 11 bits, and the sums' own errors.
    assert np.all(np.abs(made - exactly) <= 2.0**-11 * np.abs(exactly) + 1e-5)


def test_bits_are_those_of_the_schedules_order():
    """On the emulator: each rank's part is the sum of its panels in the order of its schedule."""
    random = np.random.default_rng(9)
    a, b = (random.standard_normal(size, np.float32) for size in ((16, 24), (24, 8)))

    def product(*_):
        return LocalProduct(device="emulator")

    runs = [spread(a, b, (2, 2), product=product) for _ in range(2)]
    assert np.array_equal(*runs)
    for row, column in itertools.product(range(2), range(2)):
        order = panel_schedule(Shares((12, 12), column), Shares((12, 12), row)).products
        lines, wanted = slice(8 * row, 8 * row + 8), slice(4 * column, 4 * column + 4)
        sums = None
        for each in order:
            panel = slice(*each.span)
            sums = gemmkit.matmul(
                a[lines, panel],
                b[panel, wanted],
                device="emulator",
                **({} if sums is None else {"c": sums, "beta": 1.0}),
            )
        assert np.array_equal(runs[0][lines, wanted], sums)
    whole = spread(a, b, (2, 2), whole=True, product=product)
    assert np.array_equal(whole, gemmkit.matmul(a, b, device="emulator"))


def test_a_rank_begins_with_its_own_panels_and_goes_on_in_the_order_of_arrival():
    def order(row, column, a=(4, 4), b=(4, 4), parts=1):
        made = panel_schedule(Shares(a, column), Shares(b, row), parts)
        return [each.span.start for each in made.products]

    assert order(0, 0) == [0, 4]
    assert order(1, 1) == [4, 0]
    # Half of each panel is its own here: what comes first is taken first.
    assert order(0, 1, parts=2) == [0, 4, 2, 6]
    # A alone travels: the own share, then those of the next ranks.
    assert order(0, 1, a=(2, 2, 2), b=(6,)) == [2, 4, 0]
    # Shares that do not end at the same places.
    made = panel_schedule(Shares((5, 3), 0), Shares((2, 6), 0)).products
    assert [(each.span, each.owner_a, each.owner_b) for each in made] == [
        (Span(0, 2), 0, 0),
        (Span(2, 5), 0, 1),
        (Span(5, 8), 1, 1),
    ]
    with pytest.raises(DistributedError, match="A has 8 columns and B has 7 rows"):
        panel_schedule(Shares((8,), 0), Shares((3, 4), 0))


@pytest.mark.parametrize("mesh", MESHES)
def test_what_one_sends_another_receives_at_the_same_place(mesh):
    depths = sizes_of(11, mesh[1]), sizes_of(11, mesh[0])
    sent, received = set(), set()
    for row, column in itertools.product(range(mesh[0]), range(mesh[1])):
        made = panel_schedule(Shares(depths[0], column), Shares(depths[1], row), 2)
        for operand, exchange in made.exchanges:
            here = column if operand == "a" else row
            line = row if operand == "a" else column
            for each in exchange.sends:
                sent.add((operand, line, here, each.peer, each.piece, each.number, each.offset))
            for each in exchange.receives:
                received.add((operand, line, each.peer, here, each.piece, each.number, each.offset))
    assert sent == received


# --- plans ----------------------------------------------------------------------------------------

LARGE = GemmProblem(16384, 16384, 16384, dtype="bfloat16")


def test_a_mesh_is_planned_with_a_timeline():
    made = plan(LARGE, (2, 2), SUMMA, ("S(0)", "S(1)"), gpu="h100")
    assert (made.form, made.travels, made.ranks, made.mesh) == (
        "panels",
        "panels of A and B",
        4,
        (2, 2),
    )
    # What two panels hide is more than what adding to C costs, what four do is less.
    assert made.chosen.strategy == "copies-1"
    strategies = {each.strategy: each for each in made.strategies}
    assert made.chosen.total_us < strategies["copies-whole"].total_us
    assert made.chosen.total_us < strategies["copies-2"].total_us
    # Each rank sends half of its row's A and of its column's B.
    assert {each.sent_bytes for each in made.strategies} == {2 * 8192 * 8192 * 2}
    assert strategies["copies-whole"].hidden < 0.01 < 0.4 < made.chosen.hidden < 1
    # Two ranks have a panel of A and of B; the others wait for one, and begin with the first.
    first = predicted_timeline(LARGE, (2, 2), SUMMA, strategy="copies-1", gpu="h100")
    sent = next(each for each in first.intervals if each.lane == "send")
    starts = [
        min(e.start for e in first.intervals if (e.rank, e.lane) == (rank, "product"))
        for rank in range(4)
    ]
    assert starts == [0.0, sent.stop, sent.stop, 0.0]
    timeline = predicted_timeline(LARGE, (2, 2), SUMMA, strategy="copies-2", gpu="h100")
    arrived = {}
    for each in timeline.intervals:
        if each.lane == "send":
            arrived.setdefault((each.peer, each.span), []).append(each.stop)
    for rank in range(4):
        for lane in ("product", "send"):
            own = [each for each in timeline.intervals if (each.rank, each.lane) == (rank, lane)]
            assert len(own) == 4
            assert all(one.stop <= two.start for one, two in itertools.pairwise(own))
            for each in own if lane == "product" else ():
                assert each.start >= max(arrived.get((rank, each.span), [0.0]))
    text = plan_text(made, timeline)
    assert "on a mesh of 2×2 H100" in text
    assert "A S(0) S(1), B S(0) S(1) → C S(0) S(1)" in text


def test_one_operand_travels_along_one_dimension():
    for placements, travels in ((("S(1)", "S(1)"), "A"), (("S(0)", "S(0)"), "B")):
        made = plan(LARGE, 2, placements, gpu="h100")
        assert (made.form, made.travels, made.first) == ("panels", f"panels of {travels}", ())
        # No panel waits: each rank has one of its own to begin with.
        hidden = {each.strategy: each.hidden for each in made.strategies}
        assert hidden["copies-1"] == hidden["copies-2"] == 1.0
        on_a_mesh = plan(LARGE, (1, 2) if travels == "A" else (2, 1), SUMMA, gpu="h100")
        assert on_a_mesh.strategies == made.strategies


@pytest.mark.parametrize(
    ("mesh", "placements", "error", "said"),
    [
        ((2, 2), (("S(0)", "R"), ("R", "S(0)")), UnsupportedProblem, "SUMMA's placement"),
        ((2, 2), (("S(0)", "S(0)"), ("R", "S(1)")), UnsupportedProblem, "over two dimensions"),
        ((2, 2), ("S(0)", "S(1)"), UsageError, "1 placement for a mesh of 2 dimensions"),
        ((2, 0), SUMMA, UsageError, "1 rank or more"),
    ],
)
def test_other_plans_over_a_mesh_are_refused(mesh, placements, error, said):
    with pytest.raises(error, match=said):
        plan("64", mesh, placements)
