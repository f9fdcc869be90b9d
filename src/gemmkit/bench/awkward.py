"""Problems that kernels get wrong: edges, primes, empty sizes, padding, epilogues, batches."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.epilogue import Epilogue
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import BROADCAST, GemmProblem

# Stands for the tile of a kernel that does not tell its own.
ASSUMED_TILE, ASSUMED_STEP = 128, 32
QUAD = 4
# More than the few rows and columns past the last tiles for which some rungs have strips.
SOME = 11


def awkward_problems(
    config: TileConfig, *, fusing: bool, blas: bool = True, batched: bool = False
) -> dict[str, GemmProblem]:
    """Problems by name, a few tiles of the configuration in size, so that emulating them is quick.

    With `fusing`, one has an epilogue, with `batched` some have several products. With `blas`, one
    has α = 0, where BLAS reads neither A nor B: few kernels but its own follow that, and without
    NaN in A or B it makes no difference.
    """
    rows, columns = config.BM or ASSUMED_TILE, config.BN or ASSUMED_TILE
    step = config.BK or ASSUMED_STEP
    # A ring of stages must go round once, and two steps are what a missing barrier needs.
    depth = max(config.stages or 0, 2) * step
    m, n, k = rows + 1, columns + 1, depth + 1
    padded = GemmProblem(
        rows + QUAD,
        columns + QUAD,
        step + QUAD,
        lda=step + 2 * QUAD,
        ldb=columns + 3 * QUAD,
        ldc=columns + 2 * QUAD,
    )
    found = {
        "whole tiles": GemmProblem(rows, columns, depth),
        "several blocks": GemmProblem(2 * rows, 2 * columns, depth + step),
        "one more": GemmProblem(m, n, k),
        "one less": GemmProblem(max(rows - 1, 1), max(columns - 1, 1), max(depth - 1, 1)),
        "some more": GemmProblem(rows + SOME, columns + SOME, k),
        "one quad more": GemmProblem(rows + QUAD, columns + QUAD, depth + QUAD),
        "primes": GemmProblem(61, 103, 37),
        "one element": GemmProblem(1, 1, 1),
        "one row": GemmProblem(1, 2 * columns + 1, k),
        "one column": GemmProblem(2 * rows + 1, 1, k),
        "k below the step": GemmProblem(m, n, max(step // 2 - 1, 1)),
        "no rows": GemmProblem(0, columns, step),
        "no columns": GemmProblem(rows, 0, step),
        "no products": GemmProblem(m, n, 0),
        "no products, beta": GemmProblem(m, n, 0, beta=0.5),
        "padded rows": padded,
        "odd padding": GemmProblem(m, n, k, lda=k + 1, ldb=n + 3, ldc=n + 2),
        "alpha and beta": GemmProblem(m, n, k, alpha=-1.5, beta=0.5),
        "padded, alpha, beta": replace(padded, alpha=-1.5, beta=0.5),
    }
    if blas:
        found["alpha 0"] = GemmProblem(m, n, k, alpha=0.0, beta=0.5)
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
    return found
