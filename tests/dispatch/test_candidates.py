"""What can be dispatched is listed once, allowed somewhere, right, and breaks no rule."""

from __future__ import annotations

from collections.abc import Iterator

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

# With larger tiles the emulator needs more than a second to compile a kernel and to run it.
QUICK = {"aligned": 64 * 64, "unaligned": 32 * 64, "wide": 64 * 64, "tall, unaligned": 0}


def instances() -> list[Candidate]:
    """One candidate of each compiled instance, with its k cut where that can be."""
    return [each.split(3) if each.config.split_k == 1 else each for each in CANDIDATES]


def problems(candidate: Candidate) -> dict[str, GemmProblem]:
    """Edges both ways, and enough steps of k for tiles to be shared and for rings to turn."""
    config = candidate.config
    BM, BN, BK = config.BM, config["BN"], config.BK or 8
    if BM is None:
        depth = 3 * BK
        return {
            "wide": GemmProblem(3, BN + 4, depth + 4),
            "tall, unaligned": GemmProblem(BN + 3, 11, depth + 3),
        }
    depth = (8 if candidate.name == "stream_k" else 3) * BK
    return {
        "aligned": GemmProblem(BM + 3, BN + 4, depth + 4),
        "unaligned": GemmProblem(BM + 3, BN + 3, depth + 3),
    }


def cases() -> Iterator[object]:
    for candidate in instances():
        size = (candidate.config.BM or candidate.config.BK or 1) * candidate.config["BN"]
        for name, problem in problems(candidate).items():
            marks = [pytest.mark.slow] if size > QUICK[name] else []
            yield pytest.param(candidate, problem, id=f"{candidate.label}-{name}", marks=marks)


@pytest.mark.parametrize(("candidate", "problem"), list(cases()))
def test_a_candidate_is_right_and_breaks_no_rule(candidate, problem):
    config = candidate.config
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
