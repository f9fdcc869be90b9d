"""Problems that kernels get wrong: residues, primes, empty sizes, padding, scales, batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmkit.epilogue import Epilogue
from gemmkit.frontends.tiles import Tiles
from gemmkit.groups import Groups
from gemmkit.problem import BROADCAST, GemmProblem

PAIR, QUAD = 2, 4
PRIMES = (61, 103, 37)
# More rows and columns past the last whole tiles than some kernels compute as residue tiles.
SOME = 11
# A k that every kernel takes in one step, or nearly every.
LITTLE = 7
# Tiles along one side, so that groups of up to ten rows or columns of tiles leave a partial one.
MANY = 11
# What 8 bits count.
NARROW = 256
# Times that a circular buffer wraps; for those of unknown depth, the least steps and the most.
ROUNDS, LEAST_STEPS, MOST_STEPS = 3, 10, 64


# Scales that neither fp32 nor a narrower type holds exactly: a scale that is converted to one of
# them on its way shows, but for the kernel's own type of it.
ALPHA, BETA = -1.3, 1 / 3

# The case whose A and B hold a few NaN and infinities.
NON_FINITE = "NaN and infinities"

# The cases of `tall_and_wide`.
TALL_AND_WIDE = ("many rows", "many columns")

# What a problem is called that a kernel takes in place of one of these, and is none of them.
NEAREST = "nearest size taken"


def case_name(name: str, problem: GemmProblem, step: int) -> str:
    """The name of a case, unless `problem`, which stands in for it, is no such case."""
    m, n, k = problem.m, problem.n, problem.k
    padding = (ld - row for ld, row in zip(_leading(problem), problem.tight, strict=True))
    holds = {
        "primes": {m, n, k} <= {*PRIMES},
        "one element": m == n == k == 1,
        "one row": m == 1,
        "one column": n == 1,
        "k below the step": k < step,
        "no rows": m == 0,
        "no columns": n == 0,
        "no products": k == 0,
        "no products, beta": k == 0,
        "odd padding": any(each % 2 for each in padding),
        "batch, one B": problem.stride_b == BROADCAST,
    }
    return name if holds.get(name, True) else NEAREST


def _leading(problem: GemmProblem) -> tuple[int, int, int]:
    return problem.lda, problem.ldb, problem.ldc


def edge_cases(
    tiles: Tiles,
    *,
    fusing: bool,
    batched: bool = False,
    grouped: bool = False,
    ragged: bool = False,
    vector: int = QUAD,
) -> dict[str, GemmProblem]:
    """Problems by name, a few tiles in size, so that emulating them is quick.

    α and β are 0, 1 and neither in every pair, where k > 0: BLAS libraries have code of its own for
    each. With `fusing`, one has an epilogue, with `batched` some have several products, with
    `grouped` some have products of different shapes, with `ragged` those of rows of one A. `vector`
    is the number of elements of A in 16 bytes: where it is more than four, residues and padding of
    such vectors are other cases.
    """
    rows, columns, step = tiles.rows, tiles.columns, tiles.step
    # A circular buffer must wrap once, and two steps are what a missing barrier needs.
    stages = max(tiles.stages, 2)
    depth = stages * step
    unknown = min(ROUNDS * tiles.buffered // step + 1, MOST_STEPS)
    steps = max(ROUNDS * stages + 1, LEAST_STEPS, unknown)
    m, n, k = rows + 1, columns + 1, depth + 1
    padded = GemmProblem(
        rows + QUAD,
        columns + QUAD,
        step + QUAD,
        lda=step + 2 * QUAD,
        ldb=columns + 3 * QUAD,
        ldc=columns + 2 * QUAD,
    )
    below = max(step // 2 - 1, 1)
    quads = rows + QUAD, columns + QUAD
    found = {
        "whole tiles": GemmProblem(rows, columns, depth),
        "several blocks": GemmProblem(2 * rows, 2 * columns, depth + step),
        "many steps": GemmProblem(rows, columns, steps * step),
        "one more": GemmProblem(m, n, k),
        "one less": GemmProblem(max(rows - 1, 1), max(columns - 1, 1), max(depth - 1, 1)),
        "some more": GemmProblem(rows + SOME, columns + SOME, k),
        "four more": GemmProblem(*quads, depth + QUAD),
        "two more": GemmProblem(_pairs_past(rows), _pairs_past(columns), _pairs_past(depth)),
        "one step": GemmProblem(rows, columns, step),
        "primes": GemmProblem(*PRIMES),
        "one element": GemmProblem(1, 1, 1),
        "one row": GemmProblem(1, 2 * columns + 1, k),
        "one column": GemmProblem(2 * rows + 1, 1, k),
        "k below the step": GemmProblem(m, n, below),
        "no rows": GemmProblem(0, columns, step),
        "no columns": GemmProblem(rows, 0, step),
        "no products": GemmProblem(m, n, 0),
        "no products, beta": GemmProblem(m, n, 0, beta=0.5),
        "padded rows": padded,
        "odd padding": GemmProblem(m, n, k, lda=k + 1, ldb=n + 3, ldc=n + 2),
        NON_FINITE: GemmProblem(m, n, k),
        "alpha and beta": GemmProblem(m, n, k, alpha=-1.5, beta=0.5),
        "negative beta": GemmProblem(rows, columns, depth, beta=-7 * BETA),
        "padded, alpha, beta": replace(padded, alpha=-1.5, beta=0.5),
        "alpha alone": GemmProblem(m, n, below, alpha=0.1),
        "beta 1": GemmProblem(*quads, below, beta=1.0),
        "alpha, beta 1": GemmProblem(m, n, below, alpha=ALPHA, beta=1.0),
        "inexact scales": GemmProblem(*quads, below, alpha=ALPHA, beta=BETA),
        "alpha 0": GemmProblem(m, n, k, alpha=0.0, beta=BETA),
        "alpha 0, beta 1": GemmProblem(m, n, below, alpha=0.0, beta=1.0),
        "alpha 0, beta 0": GemmProblem(m, n, below, alpha=0.0),
    }
    if vector > QUAD:
        past = rows + vector, columns + vector
        found["a vector more"] = GemmProblem(*past, depth + vector)
        found["padded by vectors"] = GemmProblem(
            *(*past, step + vector, -1.5, 0.5),
            lda=step + 2 * vector,
            ldb=columns + 3 * vector,
            ldc=columns + 2 * vector,
        )
    if fusing:
        found["bias and relu"] = GemmProblem(m, n, k, -1.5, 0.5, epilogue=Epilogue(True, "relu"))
    if batched:
        found["batch, gaps between"] = GemmProblem(
            *(m, n, k, -1.5, 0.5, k + 1, n + 3, n + 2),
            batch=3,
            stride_a=m * (k + 1) + 3,
            stride_b=k * (n + 3) + 1,
            stride_c=m * (n + 2) + 5,
        )
        found["batch, one B"] = GemmProblem(rows // 2 + 1, n, k, batch=3, stride_b=BROADCAST)
        found["batch of none"] = GemmProblem(m, n, k, batch=0)
    if grouped:
        found |= _groups(tiles, depth, vector)
    if ragged:
        found |= _ragged(tiles, depth, vector, fusing=fusing)
    return found


def _pairs_past(size: int) -> int:
    """The next size that has pairs of elements, but no vectors of four."""
    return size - size % QUAD + QUAD + PAIR if size % QUAD >= PAIR else size - size % QUAD + PAIR


def tall_and_wide(tiles: Tiles, *, cubes: bool = False) -> dict[str, GemmProblem]:
    """Problems of many tiles along one side and two along the other, with a small k.

    Grouped rasterization, which numbers the blocks by groups of rows or columns of tiles, has a
    last group of fewer of them there. Rows or columns are more than 8 bits count, except with
    `cubes`: for kernels that take M = N = K alone, it would be a cube, four times as large.
    """
    rows, columns, k = tiles.rows, tiles.columns, min(max(tiles.step // 2 - 1, 1), LITTLE)
    least = 0 if cubes else NARROW
    many = [max((MANY - 1) * each, least) + 1 for each in (rows, columns)]
    return {
        TALL_AND_WIDE[0]: GemmProblem(many[0], columns + 1, k),
        TALL_AND_WIDE[1]: GemmProblem(rows + 1, many[1], k),
    }


def _ragged(tiles: Tiles, depth: int, vector: int, *, fusing: bool) -> dict[str, GemmProblem]:
    """Groups of the rows of one matrix: of a row, without rows at both ends and between, of whole
    tiles and of partial ones, more than a warp has lanes; in rows of vectors."""
    rows, columns, step = tiles.rows, tiles.columns, tiles.step
    n, k = columns + vector, depth + vector
    unlike, many = (0, 1, rows, 0, rows + 1, 2 * rows - 1, SOME, 0), (1, SOME, 0) * 23
    pitches = k + vector, n + 3 * vector, n + 2 * vector
    groups = {
        "ragged groups": Groups.of(unlike, n, k, ragged=True),
        "ragged, padded rows": Groups.of(unlike, n, k, *pitches, ragged=True),
        "ragged, many of few rows": Groups.of(many, n, step, ragged=True),
        "ragged, without rows": Groups.of((0, 0), n, k, ragged=True),
    }
    found = {name: GemmProblem.of_groups(each) for name, each in groups.items()}
    for name in ("ragged groups", "ragged, padded rows"):
        found[f"{name}, alpha, beta"] = replace(found[name], alpha=-1.5, beta=0.5)
    if fusing:
        own = Epilogue(True, "relu", residual=True, auxiliary=True)
        found["ragged, bias and more"] = replace(found["ragged groups"], epilogue=own)
        rows_own = Epilogue("row", residual=True)
        found["ragged, bias of rows"] = replace(found["ragged groups"], epilogue=rows_own)
    return found


def _groups(tiles: Tiles, depth: int, vector: int) -> dict[str, GemmProblem]:
    """Products of different shapes: in vectors, with residues, empty ones, with padded rows."""
    rows, columns, step = tiles.rows, tiles.columns, tiles.step
    m, n, k = rows + 1, columns + 1, depth + 1
    unlike = ((m, n, k), (1, 1, 1), (2 * rows, columns, step), (QUAD, n, depth), PRIMES)
    vectors = ((rows, columns, depth), (QUAD, 2 * columns, step), (rows + QUAD, QUAD, QUAD))
    empty = ((0, n, k), (m, n, k), (m, 0, k), (m, n, 0), (SOME, SOME, SOME), (0, 0, 0))
    padded = tuple((*sizes, sizes[2] + 1, sizes[1] + 3, sizes[1] + 2) for sizes in unlike)
    scales: dict[str, Any] = {"alpha": -1.5, "beta": 0.5}
    found = {
        "groups": GemmProblem.of_groups(unlike),
        "groups in vectors": GemmProblem.of_groups(vectors),
        "groups, some empty": GemmProblem.of_groups(empty, **scales),
        "groups, odd padding": GemmProblem.of_groups(padded, **scales),
        "groups of small k": GemmProblem.of_groups([(m, n, SOME)] * 3 + [(SOME, 1, SOME)] * SOME),
    }
    if vector > QUAD:
        n, k = columns + vector, depth + vector
        wide = (
            (0, n, k),
            (m, n, k),
            (1, vector, vector),
            (2 * rows - 1, columns, 0),
            (SOME, n, step),
        )
        found["groups in rows of vectors"] = GemmProblem.of_groups(wide, **scales)
    return found
