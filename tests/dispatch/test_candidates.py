"""What can be dispatched is listed once, allowed somewhere, right, and breaks no rule."""

from __future__ import annotations

import pytest

from gemmkit.bench.check import check
from gemmkit.dispatch.candidates import (
    CANDIDATES,
    GUIDE_TILES,
    Candidate,
    candidates_for,
    size_class,
)
from gemmkit.gpu import BOARDS, find_board
from gemmkit.problem import GemmProblem

WITH_ASYNC, WITHOUT_ASYNC = find_board("rtx3090"), find_board("t4")

# The emulator needs more than a second to compile and run kernels with larger tiles.
QUICK_TILE = 64 * 128


def instances() -> list[Candidate]:
    """One candidate of each compiled instance, with its k cut where that can be."""
    found: dict[str, Candidate] = {}
    for each in CANDIDATES:
        candidate = each if each.config.split_k is None else each.split(3)
        found.setdefault(each.instance, candidate)
    return list(found.values())


def area(candidate: Candidate) -> int:
    return (candidate.config.BM or 1) * (candidate.config.BN or 1)


def case(candidate: Candidate, *, aligned: bool) -> object:
    slow = area(candidate) > QUICK_TILE or (not aligned and area(candidate) > 32 * 64)
    marks = [pytest.mark.slow] if slow else []
    rows = "aligned" if aligned else "unaligned"
    return pytest.param(candidate, aligned, id=f"{candidate.instance}-{rows}", marks=marks)


@pytest.mark.parametrize(
    ("candidate", "aligned"),
    [case(each, aligned=aligned) for each in instances() for aligned in (True, False)],
)
def test_a_candidate_is_right_and_breaks_no_rule(candidate, aligned):
    config = candidate.config
    more = 4 if aligned else 3
    # Edges both ways, and enough steps of k for tiles to be shared and for rings to turn.
    steps = 8 if candidate.name == "stream_k" else 3
    rows = 3 if config.BM is None else config.BM + 3
    problem = GemmProblem(rows, config["BN"] + more, (config.BK or 8) * steps + more)
    board = WITH_ASYNC if candidate.kernel.rule(config, WITHOUT_ASYNC) else WITHOUT_ASYNC
    plan = candidate.kernel.plan(problem, config, board)
    assert plan.blocks > 1
    assert (plan.arrivals > 0) == ("arrivals" in plan.signature), "partial results are tried"
    (record,) = check(candidate.kernel, [problem], config=config.as_dict(), gpu=board.name)
    assert record.verdict == "ok", record.detail


def test_candidates_are_listed_once():
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert len({each.instance for each in CANDIDATES}) == len(CANDIDATES)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_a_candidate_says_all_keys_of_its_kernel_and_is_allowed_somewhere(candidate):
    assert candidate.kernel.configure(candidate.config.as_dict()) == candidate.config
    assert any(candidate in candidates_for(board) for board in BOARDS.values())


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
def test_every_board_has_the_tile_that_the_guide_has_for_each_size_or_smaller(board):
    tiles = {(each.config.BM, each.config.BN) for each in candidates_for(board)}
    wanted = {GUIDE_TILES["small"], GUIDE_TILES["medium"]}
    if board.capability.major >= 8:
        wanted.add(GUIDE_TILES["large"])
    assert wanted <= tiles


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((511, 9000, 1), "small"),
        ((512, 512, 9), "medium"),
        ((2048, 9999, 9), "medium"),
        ((2049, 2049, 1), "large"),
    ],
)
def test_sizes_are_those_of_the_guide(shape, size):
    assert size_class(GemmProblem(*shape)) == size
