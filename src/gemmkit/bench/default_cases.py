"""The problems that `check` runs without `shapes`: edge cases, or what a kernel takes near them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from gemmkit.bench.edge_cases import (
    NON_FINITE,
    TALL_AND_WIDE,
    case_name,
    edge_cases,
    tall_and_wide,
)
from gemmkit.bench.persistent_cases import persistent_cases, with_own_tiles
from gemmkit.dtypes import is_narrow
from gemmkit.errors import UnsupportedProblem
from gemmkit.frontends.tiles import Tiles, tiles_of, with_buffered
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.fitting import (
    default_problem,
    expressible,
    fitting,
    in_whole_tiles,
)
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.sizes import with_padding_in
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify import InputKind

# A problem of many tiles that a kernel takes only with more products than these is not run: on the
# emulator it takes a second.
MOST_PRODUCTS = 2**28


@dataclass(frozen=True, slots=True)
class Case:
    """A problem to check, under a name, and what its inputs are."""

    name: str
    problem: GemmProblem
    inputs: InputKind = "normal"


def default_cases(
    kernel: Kernel,
    config: TileConfig,
    gpu: GpuSpec,
    asked: Asked,
) -> list[Case]:
    """The edge cases, or the nearest problems to them that the kernel takes, each once."""
    tiles = tiles_of(kernel, config)
    own = not kernel.user_defined
    fusing = own and kernel.fuses and asked.epilogue is None
    element = asked.problem((1, 1, 1), kernel)
    extents = tiles if own else with_buffered(tiles, kernel, config, element, gpu).enough
    found: dict[tuple[GemmProblem, InputKind], Case] = {}
    cases = edge_cases(
        extents,
        fusing=fusing,
        batched=kernel.takes_batches,
        # Of groups, B alone can be prepared.
        grouped=kernel.takes_groups and "a" not in (asked.prepared or "").lower(),
        ragged=kernel.takes_ragged and "a" not in (asked.prepared or "").lower(),
        vector=VECTOR_BYTES // element.item_bytes,
    )
    if is_narrow(element.result_dtype):
        # Such results go without C.
        kept = {name: each for name, each in cases.items() if not each.beta or "beta" not in name}
        cases = {name: replace(each, beta=0.0) for name, each in kept.items()}
    for name, each in cases.items():
        problem = _taken(kernel, config, gpu, asked, tiles, each)
        if problem is None:
            continue
        inputs: InputKind = "normal"
        if name == NON_FINITE:
            # A and B are not read where α = 0; of NaN, activations other than these make anything.
            if problem.alpha == 0 or problem.epilogue.activation not in ("none", "relu"):
                continue
            inputs = "non-finite"
        shown = case_name(name, problem, max(extents.step, 2))
        found.setdefault((problem, inputs), Case(shown, problem, inputs))
    extents = with_own_tiles(kernel, config, gpu, extents)
    for name, each in _of_many_tiles(kernel, config, gpu, extents):
        covered = any(_covers(case.problem, each, extents) for case in found.values())
        if covered and name in TALL_AND_WIDE:
            continue
        problem = _taken(kernel, config, gpu, asked, tiles, each)
        if problem is not None and problem.flops // 2 <= MOST_PRODUCTS:
            found.setdefault((problem, "normal"), Case(name, problem))
    return [*found.values()]


def _of_many_tiles(
    kernel: Kernel, config: TileConfig, gpu: GpuSpec, tiles: Tiles
) -> Iterator[tuple[str, GemmProblem]]:
    """The largest first, as they cover the others."""
    cubes = kernel.sizes is not None and bool(kernel.sizes.only or kernel.sizes.tied)
    yield from persistent_cases(kernel, config, gpu, tiles, cubes=cubes)
    yield from tall_and_wide(tiles, cubes=cubes).items()


def _taken(
    kernel: Kernel,
    config: TileConfig,
    gpu: GpuSpec,
    asked: Asked,
    tiles: Tiles,
    problem: GemmProblem,
) -> GemmProblem | None:
    """The nearest problem that the kernel takes; None where another of the cases is that one."""
    own = not kernel.user_defined
    if not own:
        given = problem
        problem = expressible(kernel, given)
        if (_scales(given), _padded(given)) != (_scales(problem), _padded(problem)):
            return None
        problem = default_problem(kernel, in_whole_tiles(problem, tiles.multiples))
        if problem.stride_b == BROADCAST:
            # What a user's kernel takes for batches, maps of three dimensions, holds a B for each.
            problem = replace(problem, stride_b=0)
    problem = asked.problem(problem, kernel)
    if own:
        problem = kernel.lay_out(problem)
    if kernel.sizes is not None and kernel.sizes.maps:
        # Rows of whole units first, which depend on the type: no other padding will fit.
        problem = kernel.sizes.nearest(problem)
        problem = with_padding_in(problem, kernel.sizes.all_multiples(problem))
    with suppress(UnsupportedProblem):
        whole = tiles.rows, tiles.columns, tiles.step
        problem = fitting(kernel, problem, gpu, config, whole)
    if not own and _padded(problem):
        declared = kernel.sizes.all_multiples(problem) if kernel.sizes is not None else (1, 1, 1)
        m, n, k = map(math.lcm, declared, tiles.multiples)
        problem = with_padding_in(problem, (m, n, k))
    return problem


def _covers(case: GemmProblem, wanted: GemmProblem, tiles: Tiles) -> bool:
    """Whether a problem has as many tiles along M and N as another, but for partial ones."""
    if case.groups is not None:
        return False
    rows, columns = tiles.rows, tiles.columns
    return (
        case.m // rows >= wanted.m // rows
        and case.n // columns >= wanted.n // columns
        and case.k > 0
    )


def _scales(problem: GemmProblem) -> tuple[float, float]:
    return problem.alpha, problem.beta


def _padded(problem: GemmProblem) -> bool:
    return (problem.lda, problem.ldb, problem.ldc) != problem.tight
