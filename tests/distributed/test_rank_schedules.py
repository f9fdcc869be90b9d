"""Schedules run by threads: which piece is where, in which order, for all numbers of ranks."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from gemmkit.distributed.execute import Arrays, run
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.schedule import Exchange, Product, schedule
from gemmkit.distributed.splits import Span, consecutive, parts_of, shares
from gemmkit.distributed.threads import Hub
from gemmkit.errors import DistributedError, UsageError

RANKS = (1, 2, 3, 4, 8)
WAYS = (("whole", 1), ("parts", 1), ("parts", 2), ("parts", 3))


def ways(form):
    """Those that a form has."""
    return (*WAYS, ("fused", 1)) if form == "gather" else WAYS


def exact(a, b, out, alpha=1, c=None, beta=0, bias=None, residual=None, epilogue=None):
    """As `gemmkit.matmul`, in float64 of NumPy's."""
    made = alpha * (a.astype(float) @ b.astype(float))
    made = made if c is None else made + beta * c
    made = made if bias is None else made + (bias[:, None] if "row" in str(epilogue) else bias)
    made = np.maximum(made, 0) if "relu" in str(epilogue) else made
    out[:] = made if residual is None else made + residual


def whole_numbers(seed, *shapes):
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


def spread(form, a, b, sizes, depths, way, parts, **options):
    """What each rank gets of a·b."""
    lines, deep = consecutive(sizes), consecutive(depths)

    def work(communicator):
        rank = communicator.rank
        split, fixed, count = a[slice(*lines[rank])], b, len(a)
        if form != "gather":
            split, fixed = a[:, slice(*deep[rank])], b[slice(*deep[rank])]
            count = sizes[rank] if form == "scatter" else len(a)
        out = np.full((count, b.shape[1]), np.nan, np.float32)
        product = LocalProduct(**{"engine": exact, **options})
        arrays = Arrays(
            split,
            fixed,
            out,
            product,
            lambda each: np.full((each, b.shape[1]), np.nan, np.float32),
            product.add,
        )
        steps = schedule(form, way, tuple(sizes), rank, parts)
        run(steps, arrays, communicator, "float32")
        return out

    return Hub(len(sizes), timeout=20).run(work)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (33, 6, 20)])
@pytest.mark.sample(2)
def test_every_rank_gets_its_part_of_the_product(ranks, form, shape):
    m, n, k = shape
    a, b = whole_numbers(m, (m, k), (k, n))
    sizes, depths = ([each.size for each in shares(side, ranks)] for side in (m, k))
    for way, parts in ways(form):
        found = spread(form, a, b, sizes, depths, way, parts)
        if form == "scatter":
            assert np.array_equal(np.concatenate(found), a @ b)
        else:
            assert all(np.array_equal(each, a @ b) for each in found)


@pytest.mark.parametrize("sizes", [(5, 0, 2), (0, 0, 9), (1, 7, 1), (4, 4, 4)])
@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
def test_uneven_and_empty_shares(sizes, form):
    a, b = whole_numbers(3, (sum(sizes), 8), (8, 4))
    for way, parts in ways(form):
        found = spread(form, a, b, sizes, (0, 5, 3), way, parts)
        whole = np.concatenate(found) if form == "scatter" else found[0]
        assert np.array_equal(whole, a @ b)


@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
def test_what_follows_the_sums_follows_the_complete_ones_once(form):
    a, b, bias, residual = whole_numbers(5, (8, 6), (6, 4), (4,), (8, 4))
    sizes, depths = (3, 3, 2), (2, 2, 2)
    want = np.maximum(2 * (a @ b) + bias, 0) + residual
    lines = consecutive(sizes)

    def options(rank):
        own = residual[slice(*lines[rank])] if form == "scatter" else residual
        return {"bias": bias, "residual": own}

    hub_options = {"alpha": 2.0, "epilogue": gemmkit.Epilogue.parse("bias+relu+residual")}

    def work(communicator):
        rank = communicator.rank
        split, fixed = a[:, 2 * rank : 2 * rank + 2], b[2 * rank : 2 * rank + 2]
        if form == "gather":
            split, fixed = a[slice(*lines[rank])], b
        out = np.full((sizes[rank] if form == "scatter" else 8, 4), np.nan, np.float32)
        product = LocalProduct(engine=exact, **hub_options, **options(rank))
        arrays = Arrays(
            split, fixed, out, product, lambda each: np.empty((each, 4), np.float32), product.add
        )
        run(schedule(form, "parts", sizes, rank, 2), arrays, communicator, "float32")
        return out

    assert sum(depths) == a.shape[1]
    found = Hub(3, timeout=20).run(work)
    whole = np.concatenate(found) if form == "scatter" else found[0]
    assert np.array_equal(whole, want)


@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
def test_bits_are_those_of_one_rank_or_of_the_same_order_of_sums(form):
    """On the emulator: with k whole, as of one product; with k split, the same on all ranks."""
    random = np.random.default_rng(9)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((24, 16), (16, 8)))
    options = {"engine": gemmkit.matmul, "device": "emulator"}
    sizes, depths = (16, 8), (8, 8)
    runs = [spread(form, a, b, sizes, depths, "parts", parts, **options) for parts in (1, 2, 1)]
    whole = [np.concatenate(each) if form == "scatter" else each[0] for each in runs]
    assert np.array_equal(whole[0], whole[2])
    # Where a part ends does not change the order of an element's sum.
    assert np.array_equal(whole[0], whole[1])
    if form == "gather":
        assert np.array_equal(whole[0], gemmkit.matmul(a, b, device="emulator"))
    elif form == "reduce":
        assert np.array_equal(*runs[0])
    reference = a.astype(float) @ b.astype(float)
    bound = 20 * 2.0**-24 * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    assert np.all(np.abs(whole[0] - reference) <= bound)


def test_a_rank_begins_with_its_own_lines_and_goes_on_in_the_order_of_arrival():
    steps = schedule("gather", "parts", (4, 4, 4), 1, 2).steps
    assert [each.owner for each in steps if isinstance(each, Product)] == [1, 2, 2, 0, 0]
    targets = [
        transfer.peer for each in steps if isinstance(each, Exchange) for transfer in each.sends
    ]
    # In each step every rank sends to one peer, and receives from another one.
    assert targets == [0, 0, 2, 2]


@pytest.mark.parametrize("form", ["scatter", "reduce"])
def test_one_launch_waits_for_shares_of_an_operand_alone(form):
    with pytest.raises(UsageError, match=f"form '{form}' and way 'fused'"):
        schedule(form, "fused", (4, 4), 0)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("form", "way", "parts"),
    [(form, *way) for form in ("gather", "scatter", "reduce") for way in ways(form)],
)
def test_what_one_sends_another_receives_at_the_same_place(ranks, form, way, parts):
    sizes = tuple(each.size for each in shares(2 * ranks + 1, ranks))
    every = [schedule(form, way, sizes, rank, parts) for rank in range(ranks)]
    sent, received = set(), set()
    for own in every:
        for step in own.steps:
            if isinstance(step, Exchange):
                sent |= {
                    (own.rank, each.peer, step.cargo, each.piece, each.number, each.offset)
                    for each in step.sends
                }
                received |= {
                    (each.peer, own.rank, step.cargo, each.piece, each.number, each.offset)
                    for each in step.receives
                }
    assert sent == received
    assert len({own.lines for own in every}) == 1


def test_splits():
    assert shares(7, 3) == (Span(0, 3), Span(3, 6), Span(6, 7))
    assert [each.size for each in shares(2, 4)] == [1, 1, 0, 0]
    assert parts_of(Span(4, 14), 3) == (Span(4, 8), Span(8, 12), Span(12, 14))
    assert parts_of(Span(0, 10), 4, multiple=4) == (Span(0, 4), Span(4, 8), Span(8, 10))
    assert parts_of(Span(3, 3), 2) == ()
    with pytest.raises(UsageError, match="1 rank or more"):
        shares(4, 0)


def test_a_rank_that_ends_is_an_error_on_the_others_and_no_hang():
    a, b = whole_numbers(1, (4, 2), (2, 2))

    def work(communicator):
        if communicator.rank == 1:
            return "ended"
        out = np.empty((4, 2), np.float32)
        product = LocalProduct(engine=exact)
        arrays = Arrays(a[:2], b, out, product, lambda each: out, product.add)
        with pytest.raises(DistributedError, match=r"rank 1's part 0 .* did not come within"):
            run(schedule("gather", "parts", (2, 2), 0), arrays, communicator, "float32")
        return "told"

    assert Hub(2, timeout=0.2).run(work) == ["told", "ended"]
