"""`fitting`: the nearest problem that a kernel takes, for kernels of one kind of shape only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gemmkit.dtypes import OPERAND_TYPES, full_type_name, precisions_of
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.catalog import instead_of
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.limits import SHORT_K, SKINNY
from gemmkit.kernels.plan import LEADING_DIMENSIONS, TileConfig, ceil_div
from gemmkit.kernels.sizes import SIZES, Multiples
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import GemmProblem
from gemmkit.scales import UNSCALED


def fitting(
    kernel: Kernel,
    problem: GemmProblem,
    gpu: GpuSpec,
    config: TileConfig | None = None,
    tiles: Multiples = (1, 1, 1),
) -> GemmProblem:
    """The problem itself where the kernel takes it, else the first of its neighbors that it takes.

    They are, in this order: as the kernel's rule of sizes has it, in whole `tiles` of M, N and K,
    with rows of whole vectors, a cube, a cube of whole tiles, `SKINNY` rows, `SKINNY` columns, a k
    of `SHORT_K`, and a k of one step of the configuration. Pitches and strides that another size
    does not need become tight, or keep the padding that they had.

    Raises:
        UnsupportedProblem: the kernel takes none of them.
    """
    config = config or kernel.default
    for each in _neighbors(kernel, kernel.lay_out(problem), tiles, config):
        if kernel.supports(each, config, gpu) is None:
            return each
    reason, instead = kernel.supports(problem, config, gpu), instead_of(kernel, problem, gpu)
    raise UnsupportedProblem(f"{kernel.name}: {reason}{instead}")


def _neighbors(
    kernel: Kernel, problem: GemmProblem, tiles: Multiples, config: TileConfig
) -> Iterator[GemmProblem]:
    yield problem
    if problem.groups is not None:
        return
    if kernel.sizes is not None:
        yield kernel.sizes.nearest(problem)
        yield kernel.sizes.nearest(in_whole_tiles(problem, tiles))
    yield in_whole_tiles(problem, tiles)
    yield in_aligned_rows(problem)
    largest = max(problem.m, problem.n, problem.k) if problem.flops else 0
    cube = problem.resized(largest, largest, largest)
    yield cube
    yield in_whole_tiles(cube, tiles)
    rows, columns = min(problem.m, SKINNY), min(problem.n, SKINNY)
    yield replace(problem, m=rows)
    yield replace(problem, n=columns, ldb=0, ldc=0, stride_b=min(problem.stride_b, 0), stride_c=0)
    for most in (SHORT_K, config.BK or SHORT_K):
        yield problem.resized(problem.m, problem.n, min(problem.k, most))


def in_types_of(kernel: Kernel, problem: GemmProblem) -> GemmProblem:
    """The problem itself where the kernel takes its types, else in the first of the kernel's."""
    if kernel.takes_types(problem):
        return problem
    return replace(problem, **kernel.types(None, None))


def in_types(
    problem: GemmProblem,
    dtype: str | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
) -> GemmProblem:
    """The problem with other types and another precision, where they are given.

    With one of the types alone, C has the type of A and B, and A and B keep theirs. A precision
    that is not given stays as it is where the type has it, and so do scales.

    Raises:
        UsageError: there is no such precision, or not of this type.
        UnsupportedType: there is no such type.
    """
    changes: dict[str, Any] = {}
    if dtype is not None or out_dtype is not None:
        changes |= {"dtype": dtype or problem.dtype, "out_dtype": out_dtype}
    if precision is not None:
        changes["precision"] = precision
    elif problem.precision not in precisions_of(full_type_name(dtype or problem.dtype)):
        changes["precision"] = "ieee"
    if dtype is not None and full_type_name(dtype) not in OPERAND_TYPES:
        changes["scales"] = UNSCALED
    return replace(problem, **changes)


def in_whole_tiles(problem: GemmProblem, tiles: Multiples) -> GemmProblem:
    """The problem with M, N and K rounded up to multiples of these."""
    sizes = (problem.m, problem.n, problem.k)
    return problem.resized(
        *(ceil_div(size, tile) * tile for size, tile in zip(sizes, tiles, strict=True))
    )


def in_aligned_rows(problem: GemmProblem) -> GemmProblem:
    """The problem with N and K rounded up to whole vectors of 16 bytes, and rows without padding
    where theirs is none of such vectors."""
    unit = VECTOR_BYTES // min(problem.item_bytes, problem.out_item_bytes)
    n, k = (ceil_div(size, unit) * unit for size in (problem.n, problem.k))
    found = problem.resized(problem.m, n, k)
    odd = (found.lda | found.ldb | found.ldc) % unit
    return replace(found, lda=0, ldb=0, ldc=0) if odd else found


def default_problem(
    kernel: Kernel,
    problem: GemmProblem,
    gpu: GpuSpec | None = None,
    config: TileConfig | None = None,
) -> GemmProblem:
    """A problem whose sizes were not asked for, of the sizes and layout that a kernel takes.

    With a board it is the nearest of `fitting`, or the problem itself where none of these will do.
    """
    problem = kernel.lay_out(problem)
    if kernel.sizes is not None:
        problem = kernel.sizes.nearest(problem)
    if gpu is not None:
        with suppress(UnsupportedProblem):
            return fitting(kernel, problem, gpu, config)
    return problem


def with_own_bias(kernel: Kernel, epilogue: Epilogue) -> Epilogue:
    """The epilogue with a bias where a user's kernel has a parameter for one."""
    if kernel.user_defined and "bias" in kernel.passed:
        return Epilogue(True, epilogue.activation)
    return epilogue


def refuse_unknown_sizes(kernel: Kernel) -> None:
    """Raise a UsageError for a kernel of a file whose sizes are compiled in, and nothing names."""
    if kernel.sizes is None or kernel.file is None or kernel.file.language == "python":
        return
    given = kernel.variables.given if kernel.variables is not None else ()
    used = kernel.passed.union(*(value.names for _, values in given for value in values))
    known = bool(kernel.sizes.only) or len(kernel.sizes.fixed) == len(SIZES)
    if not known and not used & {*SIZES, *LEADING_DIMENSIONS}:
        raise UsageError(
            f"no parameter of '{kernel.name}' passes M, N or K, and no constants in its code have "
            "such names: give the sizes that are compiled in by --shape MxNxK"
        )


def expressible(kernel: Kernel, problem: GemmProblem) -> GemmProblem:
    """The problem without what no argument of a user's kernel can pass on, and with its bias.

    α becomes 1, β becomes 0 and rows become tight where the kernel's signature lacks them.
    """
    if not kernel.user_defined:
        return problem
    used = kernel.passed
    if "alpha" not in used:
        problem = replace(problem, alpha=1.0)
    if "beta" not in used:
        problem = replace(problem, beta=0.0)
    lacking = (name for name in LEADING_DIMENSIONS if name not in used)
    tight: dict[str, Any] = dict.fromkeys(lacking, 0)
    return replace(problem, epilogue=with_own_bias(kernel, problem.epilogue), **tight)
