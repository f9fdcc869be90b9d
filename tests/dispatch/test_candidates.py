"""What can be dispatched is listed once, allowed somewhere, right, and breaks no rule.

Checked are all candidates and all configurations in the tables that ship, each compiled instance
once. Those with small tiles are quick and run always; the others are marked slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemmkit.bench.check import check
from gemmkit.dispatch import shipped_file
from gemmkit.dispatch.candidates import (
    CANDIDATES,
    GUIDE_TILES,
    Candidate,
    candidates_for,
    size_class,
)
from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, Dtype
from gemmkit.gpu import BOARDS, GpuSpec, find_board
from gemmkit.kernels.launches import vector_width
from gemmkit.problem import GemmProblem
from gemmkit.split_products import LEAST_K
from gemmkit.trials.exchange import decode_table

# The first that allows a configuration stands for all.
EMULATED = [find_board(key) for key in ("t4", "rtx3090", "rtx4090", "h100")]

# Tiles up to these sizes are quick: with larger ones the emulator needs more than a second to
# compile a kernel and to run it. Each kernel's smallest tile is quick in any case.
QUICK = {"aligned": 32 * 32, "unaligned": 16 * 32, "wide": 64 * 64, "tall, unaligned": 0}


# TMA loads their operands in place, and no rows that are not aligned.
ALIGNED_ALONE = {"grouped_wgmma", "ragged_wgmma", "grouped_fp8", "ragged_fp8"}


def tabled() -> list[Candidate]:
    """All that the tables that ship can make dispatch choose, older than their kernels or not."""
    found = []
    for key in BOARDS:
        path = shipped_file("tables", f"{key}.json")
        if path.is_file():
            entries = decode_table(path.read_bytes(), str(path))
            found += [Candidate(each.kernel, each.tile_config) for each in entries]
    return found


def instances() -> list[Candidate]:
    """One candidate of each compiled instance, with its k cut where that can be."""
    found = {each.instance: each for each in (*CANDIDATES, *tabled())}
    return [each.split(3) if each.config.split_k else each for each in found.values()]


def emulated_board(candidate: Candidate) -> GpuSpec:
    """The first with room for the tile of one of the kernel's types, where 64³ shows that."""
    kernel, config = candidate.kernel, candidate.config
    allowed = [each for each in EMULATED if kernel.rule(config, each) is None]
    own = [GemmProblem(64, 64, 64, dtype=each) for each in kernel.dtypes]
    return next(
        (
            board
            for board in allowed
            if any(kernel.supports(each, config, board) is None for each in own)
        ),
        allowed[0],
    )


def tile_size(candidate: Candidate) -> int:
    """Of C; kernels for skinny products have a tile of B instead."""
    return (candidate.config.BM or candidate.config.BK or 1) * candidate.config["BN"]


def type_of(candidate: Candidate) -> Dtype:
    """The first of the kernel's types that the tile is for: some are for float64 alone."""
    kernel, board = candidate.kernel, emulated_board(candidate)
    own = (GemmProblem(64, 64, 64, dtype=each) for each in kernel.dtypes)
    taken = (each.dtype for each in own if kernel.supports(each, candidate.config, board) is None)
    return next(taken, kernel.dtypes[0])


def problems(candidate: Candidate) -> dict[str, GemmProblem]:
    """Edges both ways, and enough steps of k for tiles to be shared and for rings to turn."""
    config = candidate.config
    BM, BN, BK = config.BM, config["BN"], config.BK or 8
    if BM is None:
        depth, of = 3 * BK, candidate.kernel.dtypes[0]
        unit = 16 // ITEM_BYTES[of]
        return {
            "wide": GemmProblem(3, BN + unit, depth + unit, dtype=of),
            "tall, unaligned": GemmProblem(BN + 3, 11, depth + 3, dtype=of),
        }
    if candidate.name == "gemm_small_k":
        return {
            "aligned": GemmProblem(BM + 4, BN + 8, BK),
            "unaligned": GemmProblem(BM + 13, BN + 13, BK - 1),
        }
    depth = (8 if "stream_k" in candidate.name else 3) * BK
    dtype, precision = type_of(candidate), "ieee"
    board, kernel = emulated_board(candidate), candidate.kernel
    if dtype in OPERAND_TYPES:
        # The largest tiles are for fast accumulation.
        small = GemmProblem(64, 64, 64, dtype=dtype).laid_out(kernel.layouts[0])
        precision = "ieee" if kernel.supports(small, config, board) is None else "fast"
    elif dtype == "float32":
        precision = candidate.kernel.precision
    if precision == "fp32":
        depth = max(depth, LEAST_K)
    # Rows of 16-bit elements are aligned where they have a multiple of 8, of 8-bit ones of 16.
    unit = 16 // min(ITEM_BYTES[dtype], 2)
    found = {
        "aligned": GemmProblem(BM + 3, BN + unit, depth + unit, dtype=dtype, precision=precision),
        "unaligned": GemmProblem(BM + 13, BN + 13, depth + 3, dtype=dtype, precision=precision),
    }
    if candidate.name in ALIGNED_ALONE:
        # Some take no rows of B.
        return {"aligned": found["aligned"].laid_out(candidate.kernel.layouts[0])}
    for_a_in_registers = {name: each.laid_out("tt") for name, each in found.items()}
    refused = [
        kernel.supports(each["aligned"], config, board) for each in (found, for_a_in_registers)
    ]
    return for_a_in_registers if refused[0] and not refused[1] else found


def cases() -> Iterator[object]:
    # The largest first, so that each kernel's smallest is the one that stays.
    ordered = sorted(instances(), key=tile_size, reverse=True)
    smallest = {each.name: each for each in ordered}
    for candidate in ordered:
        for name, problem in problems(candidate).items():
            quick = tile_size(candidate) <= QUICK[name] or candidate == smallest[candidate.name]
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(candidate, problem, id=f"{candidate.label}-{name}", marks=marks)


@pytest.mark.parametrize(("candidate", "problem"), list(cases()))
@pytest.mark.sample(23)
def test_a_candidate_is_right_and_breaks_no_rule(candidate, problem):
    config, board = candidate.config, emulated_board(candidate)
    plan = candidate.kernel.plan(problem, config, board)
    assert plan.blocks > 1
    assert (plan.semaphores > 0) == ("semaphores" in plan.signature), "partial results are tried"
    (record,) = check(candidate.kernel, [problem], config=config.as_dict(), gpu=board.name)
    assert record.verdict == "ok", record.detail


def test_each_kernel_that_can_be_dispatched_is_quickly_checked_with_rows_of_either_alignment():
    dispatched = {each.name for each in (*CANDIDATES, *tabled())}
    quick = [case.values for case in cases() if not case.marks]
    for aligned in (True, False):
        checked = {each.name for each, of in quick if (vector_width(of) > 1) == aligned}
        assert checked == dispatched - (set() if aligned else ALIGNED_ALONE)


def test_what_the_tables_hold_is_checked():
    checked = {each.instance for case in cases() for each in case.values[:1]}
    assert tabled()
    assert {each.instance for each in tabled()} <= checked


def test_candidates_are_listed_once():
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert len({each.instance for each in CANDIDATES}) == len(CANDIDATES)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
@pytest.mark.sample(6)
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
