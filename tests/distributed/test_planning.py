"""Placements, predictions and the choice of a strategy, without PyTorch and without a GPU."""

from __future__ import annotations

import itertools
import subprocess
import sys

import msgspec
import pytest

from gemmkit import GemmProblem
from gemmkit.distributed import predictions
from gemmkit.distributed.links import known_links, link_of
from gemmkit.distributed.placements import read_placement, read_placements, rule, transposed
from gemmkit.distributed.planning import DistributedPlan, plan, predicted_timeline
from gemmkit.distributed.strategy import Strategy
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.report.ranks import plan_text

LARGE = GemmProblem(8192, 8192, 8192, dtype="bfloat16")
LARGEST = GemmProblem(32768, 8192, 8192, dtype="bfloat16")
FEW_ROWS = GemmProblem(128, 8192, 8192, dtype="bfloat16")
COLUMN = ("S(0)", "S(1)"), "S(1)"
ROW = ("S(1)", "S(0)"), "S(0)"


def test_planning_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import gemmkit.distributed as d; "
        "print(d.plan('512x512x512', 2, ('S(0)', 'S(1)')).form)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.strip() == "gather"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("S(0)", "S(0)"),
        ("Shard(dim=1)", "S(1)"),
        ("s(-1)", "S(1)"),
        ("S(-2)", "S(0)"),
        ("r", "R"),
        ("Replicate()", "R"),
        ("partial", "P"),
    ],
)
def test_placements_by_their_words(text, word):
    assert read_placement(text) == word


@pytest.mark.parametrize("text", ["S(2)", "S(-3)", "S", "rows", "", 3, None])
def test_what_is_no_placement_is_refused(text):
    with pytest.raises(UsageError, match="placement"):
        read_placement(text)


def test_placements_of_a_product():
    assert read_placements("S(0), S(1) -> S(1)") == (("S(0)", "S(1)"), "S(1)")
    assert read_placements("R,S(1)") == (("R", "S(1)"), None)
    for wrong in ("S(0)", "S(0),S(1),R", "S(0),S(1)->"):
        with pytest.raises(UsageError, match="placement"):
            read_placements(wrong)


def test_rules_follow_from_transposes():
    """The rule of C is that of its transpose, Bᵀ·Aᵀ, with rows and columns exchanged."""
    words = ("S(0)", "S(1)", "R", "P")
    for a, b, wanted in itertools.product(words, words, (None, *words)):
        turned = None if wanted is None else transposed(wanted)
        try:
            found = rule(a, b, wanted, bytes_a=1, bytes_b=2)
        except UnsupportedProblem:
            with pytest.raises(UnsupportedProblem):
                rule(transposed(b), transposed(a), turned, bytes_a=2, bytes_b=1)
            continue
        other = rule(transposed(b), transposed(a), turned, bytes_a=2, bytes_b=1)
        if (a, b) != ("P", "P"):
            # Of two sums, either may be completed first.
            assert (transposed(found.a), transposed(found.b)) == (other.b, other.a)
        assert found.form == other.form
        assert transposed(found.result) == other.result


def test_the_smaller_operand_travels():
    assert plan("8192x512x512", 2, COLUMN[0]).travels == "B"
    assert plan("512x8192x512", 2, COLUMN[0]).travels == "A"
    assert plan("8192x512x512", 2, *COLUMN).travels == "A"


def test_large_products_overlap_and_few_rows_do_not():
    for placements in (COLUMN, ROW):
        large = plan(LARGE, 2, *placements, gpu="h200").chosen
        assert Strategy.parse(large.strategy).way == ("fused" if placements is COLUMN else "parts")
        assert large.hidden > 0.9
        assert large.limiter == "product"
        few = plan(FEW_ROWS, 2, *placements, gpu="h200").chosen
        assert few.strategy == "one-shot"
        assert few.total_us < next(
            each.total_us
            for each in plan(FEW_ROWS, 2, *placements, gpu="h200").strategies
            if each.strategy == "collective"
        )


@pytest.mark.parametrize(
    ("scales", "placements", "fits"),
    [
        ("", COLUMN, True),
        ("tensor", COLUMN, False),
        ("tensor,none", COLUMN, False),
        ("none,tensor", COLUMN, True),
        ("none,tensor", (("S(0)", "S(1)"), "S(0)"), False),
        ("tensor", ROW, True),
    ],
)
def test_one_shot_sends_no_scales(scales, placements, fits):
    problem = GemmProblem(16, 8192, 4096, dtype="float8_e4m3", scales=scales)
    found = plan(problem, 2, *placements, gpu="h200").strategies
    assert ("one-shot" in [each.strategy for each in found]) == fits


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bytes_that_travel(ranks):
    problem = GemmProblem(4096, 2048, 1024, dtype="bfloat16")
    whole_a, whole_c = 4096 * 1024 * 2, 4096 * 2048 * 2
    share = -(-4096 // ranks) / 4096
    for each in plan(problem, ranks, *COLUMN, gpu="h200").strategies:
        kept = each.sent_bytes / whole_a
        # A rank pushes its share to each of the others; a ring passes on all shares but one.
        assert kept == pytest.approx(
            (ranks - 1) * share if each.strategy != "collective" else 1 - share
        )
    for each in plan(problem, ranks, *ROW, gpu="h200").strategies:
        assert each.sent_bytes / whole_c == pytest.approx(1 - share, abs=share)


def test_an_activation_follows_complete_sums():
    plain = {each.strategy for each in plan(LARGE, 2, *ROW, gpu="h200").strategies}
    fused = GemmProblem(8192, 8192, 8192, dtype="bfloat16", epilogue="relu")
    found = {each.strategy for each in plan(fused, 2, *ROW, gpu="h200").strategies}
    assert plain - found == {"collective", "copies-whole"}
    gathered = {each.strategy for each in plan(fused, 2, *COLUMN, gpu="h200").strategies}
    assert "collective" in gathered


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("result", ["S(1)", "S(0)"])
def test_one_launch_waits_for_the_shares_of_an_operand(ranks, result):
    made = plan(LARGE, ranks, COLUMN[0], result, gpu="h200")
    found = {each.strategy: each for each in made.strategies}["copies-fused"]
    assert (found.products, found.limiter) == (1, "product")
    timeline = predicted_timeline(
        LARGE, ranks, COLUMN[0], result, strategy="copies-fused", gpu="h200"
    )
    assert found.total_us == pytest.approx(timeline.total)
    arrived = {
        (each.peer, each.owner): each.stop for each in timeline.intervals if each.lane == "send"
    }
    for rank in range(ranks):
        own = [each for each in timeline.intervals if (each.rank, each.lane) == (rank, "product")]
        assert [each.owner for each in own] == [(rank + step) % ranks for step in range(ranks)]
        assert own[0].start == 0
        for before, each in itertools.pairwise(own):
            assert each.start == max(before.stop, arrived[rank, each.owner])


@pytest.mark.parametrize(
    ("problem", "placements", "result"),
    [
        (LARGE, *ROW),
        (GemmProblem(8192, 8192, 8192), *COLUMN),
        # Shares that no tile divides.
        (GemmProblem(8000, 8192, 8192, dtype="bfloat16"), *COLUMN),
        # The last rank has no rows.
        (GemmProblem(9, 8192, 8192, dtype="bfloat16"), *COLUMN),
    ],
)
def test_where_no_launch_waits_for_shares(problem, placements, result):
    made = plan(problem, 4, placements, result, gpu="h200")
    assert "copies-fused" not in {each.strategy for each in made.strategies}


def test_parts_hide_transfers_where_the_whole_splits_k_by_its_shape():
    # Stream-K, whose order of sums is that of the shape in any case.
    assert plan("8192", 2, *COLUMN, gpu="h200").chosen.strategy == "copies-1"
    assert plan("8192", 2, *ROW, gpu="h200").chosen.strategy == "copies-2"


def test_gpus_that_do_not_reach_each_other_make_no_copies():
    for each in plan(LARGE, 2, *COLUMN, gpu="h200", copies=False).strategies:
        assert not each.strategy.startswith("copies")


@pytest.mark.parametrize("placements", [COLUMN, ROW, (ROW[0], "R")])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_timeline_keeps_the_order_of_what_depends_on_each_other(placements, ranks):
    timeline = predicted_timeline(LARGEST, ranks, *placements, strategy="copies-2", gpu="h200")
    assert {each.rank for each in timeline.intervals} == set(range(ranks))
    for rank in range(ranks):
        for lane in ("product", "send"):
            own = [each for each in timeline.intervals if (each.rank, each.lane) == (rank, lane)]
            assert all(one.stop <= two.start for one, two in itertools.pairwise(own))
    assert timeline.total == pytest.approx(max(each.stop for each in timeline.intervals))
    if placements is COLUMN:
        arrived = {
            (each.peer, each.span): each.stop for each in timeline.intervals if each.lane == "send"
        }
        for each in timeline.intervals:
            if each.lane == "product" and each.owner != each.rank:
                assert each.start >= arrived[each.rank, each.span]


def test_links():
    for link in known_links():
        sizes = [size for size, _ in link.bus]
        assert sizes == sorted(sizes)
        assert link.bus_gb_per_s(1e12) == link.bus[-1][1]
        assert link.bus_gb_per_s(1) == link.bus[0][1]
        assert link.source
    h200 = link_of(find_board("h200"), 2)
    assert h200.bus_gb_per_s(40e6) == pytest.approx((146 + 212) / 2)
    assert link_of(find_board("h200"), 8).ranks == 4
    assert not link_of(find_board("rtx 3090"), 2).copies
    with pytest.raises(UsageError, match="1 rank or more"):
        plan(LARGE, 0, *COLUMN)


@pytest.mark.parametrize(
    "text", ["collective", "copies-whole", "copies-2", "group-16", "copies-fused"]
)
def test_strategies_by_their_words(text):
    assert str(Strategy.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["copies", "copies-0", "collective-2", "copies-x", "nccl-2", "group-fused", ""]
)
def test_what_is_no_strategy_is_refused(text):
    with pytest.raises(UsageError, match="strategy"):
        Strategy.parse(text)


def test_many_ranks_are_planned_at_once(monkeypatch):
    monkeypatch.setattr(
        predictions, "play", lambda *_: pytest.fail("a schedule was played through")
    )
    made = plan("8192", 1024, ("S(0)", "S(1)"), gpu="h100")
    assert made.chosen.strategy == "collective"


def test_batches_have_no_plan():
    with pytest.raises(UnsupportedProblem, match="no batches"):
        plan("64x64x64x4", 2, *COLUMN)


def test_the_text_shows_what_was_predicted():
    made = plan(LARGE, 2, *ROW, gpu="h200")
    timeline = predicted_timeline(LARGE, 2, *ROW, strategy=made.chosen.strategy, gpu="h200")
    text = plan_text(made, timeline)
    assert "each rank sends 67.1 MB" in text
    assert f"strategy  {made.chosen.strategy}" in text
    lanes = [line.split("|", 1)[1] for line in text.splitlines() if line.startswith("rank")]
    # Each rank multiplies its peer's lines first, and its own last.
    assert lanes[0].startswith("1111")
    assert lanes[0].rstrip("|").endswith("000")
    assert lanes[1].startswith("0000")
    assert msgspec.json.decode(made.to_json(), type=DistributedPlan) == made


def test_a_local_product_has_no_transfers():
    made = plan(LARGE, 4, ("R", "S(1)"), gpu="h200")
    assert (made.form, made.result, made.travels) == ("local", "S(1)", "nothing")
    assert "overlap" not in plan_text(made, None)
