"""What is assumed of a kernel whose mainloop is not known, such as a user's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.work import (
    MOST_REGISTERS,
    OTHER_REGISTERS,
    VECTOR_BYTES,
    Copies,
    Demands,
    Way,
    Work,
)
from gemmkit.problem import GemmProblem

# Steps along k that are taken of a kernel whose inside is not known.
UNKNOWN_DEPTH = 16


def by_grid(launch: Callable[[GemmProblem, TileConfig, GpuSpec], LaunchShape]) -> Way:
    """What is taken of a kernel whose inside is not known: C in even shares of its grid, each in
    square tiles of its threads, copied well ahead."""

    def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
        shape = launch(problem, config, gpu)
        ctas, threads = math.prod(shape.grid), math.prod(shape.block)
        results = problem.m * problem.n * problem.batch
        area = ceil_div(results, max(ctas, 1))
        rows = max(min(math.isqrt(area), problem.m), 1)
        steps = max(ceil_div(problem.k, UNKNOWN_DEPTH), 1)
        found = Cut(rows, ceil_div(area, rows), ctas, ctas, steps if results else 0)
        demands = _unknown(rows, found.columns, threads, problem.dtype)
        demands = replace(demands, results=results / max(ctas * threads, 1))
        return Work.of(found, threads, shape.shared_bytes, demands)

    return work


@lru_cache(maxsize=1024)
def _unknown(rows: int, columns: int, threads: int, dtype: str) -> Demands:
    results = max(rows * columns / threads, 1.0)
    side = math.sqrt(results)
    item_bytes = ITEM_BYTES[dtype]  # type: ignore[index]
    lines = UNKNOWN_DEPTH * (rows + columns)
    return Demands(
        math=MathPipe("float64") if dtype == "float64" else FP32,
        multiply_adds=results * UNKNOWN_DEPTH,
        per_instruction=1.0,
        issue=0.0,
        wavefronts=ceil_div(threads, WARP_SIZE) * UNKNOWN_DEPTH * side,
        l2_bytes=float(item_bytes * lines),
        copies=Copies(vectors=lines * item_bytes / VECTOR_BYTES / threads),
        waits=0.0,
        covers=1.0,
        streams=0.0,
        barriers=1,
        results=results,
        registers=math.ceil(results + 4 * side),
        other_registers=OTHER_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
    )
