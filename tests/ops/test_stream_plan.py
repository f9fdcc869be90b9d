"""How products of host matrices are cut, and what that costs."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS
from gemmkit.ops.streamed.entry import read_bytes
from gemmkit.ops.streamed.explain import explain_stream
from gemmkit.ops.streamed.planner import LONGEST_STEP_S, plan_stream
from gemmkit.ops.streamed.sizes import StreamProblem, Tiling
from gemmkit.ops.streamed.timeline import (
    Rates,
    estimate,
    panels_loaded,
    simulate,
    step_seconds,
)
from gemmkit.ops.streamed.traversal import Deal, Slots, shares, tiles_in_order
from gemmkit.problem import GemmProblem
from gemmkit.report.streamed import stream_text

GIB = 1 << 30
H100 = Rates(product=54e12)
CUBE = StreamProblem(16384, 16384, 16384)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tiles_cover_the_result_once_in_every_order(data):
    m, n, k, batch = (data.draw(st.integers(1, 9), label=name) for name in ("m", "n", "k", "batch"))
    problem = StreamProblem(m, n, k, batch)
    tiling = Tiling(
        *(data.draw(st.integers(1, size)) for size in (m, n, k)),
        by_rows=data.draw(st.booleans()),
        squares=data.draw(st.booleans()),
    )
    tiles = list(tiles_in_order(problem, tiling))
    _, rows, columns = tiling.counts(problem)
    places = {(each.group, each.row, each.column) for each in tiles}
    assert len(places) == len(tiles) == batch * rows * columns
    if tiling.squares:
        seen = [(each.row, each.column) for each in tiles if each.group == 0]
        assert [max(each) for each in seen] == sorted(max(each) for each in seen)
        return
    # Neighbors share a panel: the row's or the column's.
    for one, other in pairwise(tiles):
        assert (one.row == other.row) or (one.column == other.column)


def test_devices_take_contiguous_shares_and_then_from_the_longest():
    assert [len(each) for each in shares(10, 3)] == [3, 3, 4]
    deal = Deal(StreamProblem(8, 1, 1), Tiling(1, 1, 1), 2)
    assert [deal.own(0).row for _ in range(4)] == [0, 1, 2, 3]
    assert deal.own(0) is None
    assert [deal.others().row, deal.own(1).row] == [7, 4]
    assert [deal.own(1).row, deal.others().row] == [5, 6]
    assert deal.own(1) is None
    assert deal.others() is None


def test_the_panel_longest_unused_makes_room():
    slots = Slots(2)
    x, y = (slots.take(each)[0] for each in "xy")
    assert slots.take("x") == (x, False)
    assert slots.take("z") == (y, True)
    assert slots.take("y") == (x, True)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_formula_counts_the_panels_that_are_loaded(data):
    rows, columns, chunks = (data.draw(st.integers(1, 6)) for _ in range(3))
    batch = data.draw(st.integers(1, 3), label="batch")
    shared = [data.draw(st.booleans()) and batch > 1 for _ in "ab"]
    problem = StreamProblem(
        4 * rows, 4 * columns, 4 * chunks, batch, shared_a=shared[0], shared_b=shared[1]
    )
    slots_a, slots_b = (data.draw(st.integers(1, 40), label=f"slots of {name}") for name in "ab")
    # Those of a product are of use to the next one by accident where they are not shared.
    slots_a = slots_a if shared[0] else min(slots_a, rows * chunks)
    slots_b = slots_b if shared[1] else min(slots_b, columns * chunks)
    by_rows = data.draw(st.booleans(), label="by rows")
    tiling = Tiling(4, 4, 4, slots_a=slots_a, slots_b=slots_b, by_rows=by_rows)
    held = {"a": Slots(slots_a), "b": Slots(slots_b)}
    loaded = {"a": 0, "b": 0}
    for tile in tiles_in_order(problem, tiling):
        for chunk in tile.chunks(chunks):
            loaded["a"] += held["a"].take(tile.panel_a(chunk, problem))[1]
            loaded["b"] += held["b"].take(tile.panel_b(chunk, problem))[1]
    assert panels_loaded(problem, tiling, 1) == pytest.approx((loaded["a"], loaded["b"]))


def test_what_fits_goes_over_the_link_once():
    plan = plan_stream(CUBE, 70 * GIB, H100)
    assert plan.estimate.bytes_in == pytest.approx(CUBE.operand_bytes)
    assert plan.estimate.bytes_out == CUBE.result_bytes
    assert plan.estimate.limiter == "product"
    # Little more than the product alone takes.
    assert plan.estimate.seconds < 1.1 * CUBE.flops / H100.product


def test_a_tile_is_split_along_k_so_that_the_first_product_need_not_wait():
    plan = plan_stream(CUBE, 70 * GIB, H100)
    whole = replace(plan.tiling, k=CUBE.k, slots_a=4, slots_b=4)
    tiles = list(tiles_in_order(CUBE, whole))
    assert plan.estimate.seconds < simulate(CUBE, whole, H100, tiles).seconds


@pytest.mark.parametrize("memory", [GIB // 4, GIB, 8 * GIB, 70 * GIB])
@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.sample(3)
def test_plans_keep_to_the_memory_and_less_memory_moves_more(memory, item):
    problem = StreamProblem(65536, 65536, 65536, item=item, out_item=item)
    plan = plan_stream(problem, memory, H100)
    assert plan.device_bytes <= memory
    assert sum(each.nbytes * each.slots for each in plan.tiling.parts(problem).values()) <= memory
    assert step_seconds(problem, plan.tiling, H100) <= LONGEST_STEP_S
    more = plan_stream(problem, 2 * memory, H100)
    assert more.estimate.seconds <= plan.estimate.seconds * 1.02


def test_two_devices_halve_the_time_and_share_the_tiles_evenly():
    one, two = (plan_stream(CUBE, 70 * GIB, H100, count) for count in (1, 2))
    assert two.estimate.seconds < 0.55 * one.estimate.seconds


def test_products_that_the_link_limits_say_so():
    half = StreamProblem(16384, 16384, 16384, item=2, out_item=2)
    rates = Rates(product=700e12, to_device=10e9, to_host=10e9)
    plan = plan_stream(half, 70 * GIB, rates)
    assert plan.estimate.limiter == "copies to the device"
    assert plan.estimate.seconds == pytest.approx(half.operand_bytes / 10e9, rel=0.3)


def test_many_small_products_are_copied_in_groups():
    problem = StreamProblem(64, 64, 64, batch=100_000)
    plan = plan_stream(problem, GIB, H100)
    assert plan.tiling.group > 50
    assert (plan.tiling.m, plan.tiling.n, plan.tiling.k) == (64, 64, 64)
    assert estimate(problem, plan.tiling, H100, 1).bytes_in == pytest.approx(problem.operand_bytes)


def test_where_the_link_limits_products_keep_up_with_the_panels():
    half = StreamProblem(16384, 16384, 16384, item=2, out_item=2)
    rates = Rates(product=700e12)
    plan = plan_stream(half, 70 * GIB, rates)
    assert plan.tiling.squares
    assert panels_loaded(half, plan.tiling, 1)[0] == plan.tiling.slots_a
    assert plan.estimate.bytes_in == pytest.approx(half.operand_bytes)
    rows = replace(plan.tiling, squares=False)
    in_rows = simulate(half, rows, rates, list(tiles_in_order(half, rows)))
    assert plan.estimate.seconds < 0.95 * in_rows.seconds


@pytest.mark.parametrize("sides", [(1, 16384), (16384, 1), (4, 30000)])
def test_few_lines_take_as_long_as_their_copies(sides):
    m, n = sides
    told = explain_stream(GemmProblem(m=m, n=n, k=16384), BOARDS["h100"])
    assert told.limiter == "copies to the device"
    assert told.seconds < 1.1 * told.in_s
    assert told.tiles * told.chunks < 300


def test_a_long_sum_of_few_elements_takes_few_steps():
    told = explain_stream(GemmProblem(m=1, n=1, k=10**8), BOARDS["h100"])
    assert told.chunks < 20


def test_too_little_memory_names_what_is_needed():
    with pytest.raises(UsageError, match=r"device_memory = 10 B .* need \d+ B"):
        plan_stream(CUBE, 10, H100)


@pytest.mark.parametrize("memory", ["300MiB", "2GiB", "40GiB"])
def test_scratch_memory_counts(memory):
    problem = GemmProblem(m=30000, n=20000, k=17000, precision="fp32")
    told = explain_stream(problem, BOARDS["h100"], device_memory=memory)
    assert told.device_bytes <= told.memory_bytes == read_bytes(memory)
    m, n = told.tile
    # Both operands of a step in two parts of 16 bits, and two panels of each.
    assert told.device_bytes > 4 * (3 * (m + n) * told.depth + m * n)


def test_scratch_memory_that_cannot_be_had_is_named(monkeypatch):
    monkeypatch.setattr("gemmkit.ops.streamed.multiply.scratch_of", lambda *_: (GIB, 0))
    with pytest.raises(UsageError, match=r"too little .* launches need 1\.0 GiB"):
        explain_stream(GemmProblem(m=512, n=512, k=512), BOARDS["h100"], device_memory=GIB)


def test_more_memory_than_a_board_has_is_refused():
    problem = GemmProblem(m=512, n=512, k=512)
    with pytest.raises(UsageError, match=r"101,376\.0 GiB: H100 has 80 GiB"):
        explain_stream(problem, BOARDS["h100"], device_memory="99TiB")
    assert explain_stream(problem, BOARDS["h100"], device_memory="80GiB").memory_bytes == 80 * GIB


def test_what_is_told_of_a_product():
    told = explain_stream(GemmProblem(m=16384, n=16384, k=16384), BOARDS["h100"])
    assert told.limiter == "product"
    assert told.bytes_in == pytest.approx(told.least_bytes_in) == 2 * 4 * 16384**2
    assert told.seconds < 0.9 * told.serial_s
    assert "product" in stream_text(told)
    slow = explain_stream(GemmProblem(m=4096, n=4096, k=4096), BOARDS["h100"], link_gb_per_s=1)
    assert slow.limiter == "copies to the device"
