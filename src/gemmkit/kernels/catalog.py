"""Every kernel of gemmkit's own by its name: the rungs and the production kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import LADDER
from gemmkit.kernels.ladder.warp_tiled import KERNEL as WARP_TILED
from gemmkit.kernels.production import PRODUCTION
from gemmkit.problem import GemmProblem
from gemmkit.units import counted

__all__ = [
    "LADDER",
    "PRODUCTION",
    "alternatives",
    "find_kernel",
    "instead_of",
    "kernels_for",
    "merged_refusals",
    "takers",
    "tunable_kernels",
]

# Kernels that are named; more would hide the reason.
NAMED = 2

# The types of the kernels that are tuned for fp32.
_FP32 = set(WARP_TILED.dtypes)

_FOR_GROUPS = tuple(each for each in PRODUCTION if each.takes_groups)
# Those that read where groups end go before those that read a table.
_FOR_RAGGED = (*(each for each in PRODUCTION if each.takes_ragged), *_FOR_GROUPS)
_FOR_ONE_SHAPE = tuple(each for each in PRODUCTION if not each.is_for_groups)


def kernels_for(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    """What is run where nobody names kernels: the rungs for the problems' types, and for groups and
    types that no rung takes the production kernels for these."""
    if _have_groups(problems):
        return _of_types(_for_groups(problems), problems)
    rungs = tuple(each for each in LADDER if any(map(each.takes_types, problems)))
    if all(any(each.takes_types(problem) for each in rungs) for problem in problems):
        return rungs
    return _of_other_types(_FOR_ONE_SHAPE, problems)


def tunable_kernels(problems: Sequence[GemmProblem], gpu: GpuSpec) -> tuple[Kernel, ...]:
    """What is tuned where nobody names kernels: the production kernels for the problems' types, or
    for groups, and for boards without cp.async the rung that serves them.

    Where none of these takes a problem on the board, as with batches or NT without cp.async, the
    other production kernels that do are among them.
    """
    usual = _tunable_anywhere(problems)
    left = [each for each in problems if not any(_takes(kernel, each, gpu) for kernel in usual)]
    able = _for_groups(problems) if _have_groups(problems) else _FOR_ONE_SHAPE
    further = (
        kernel
        for kernel in able
        if kernel not in usual and any(_takes(kernel, each, gpu) for each in left)
    )
    return (*usual, *further)


def _takes(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> bool:
    return kernel.supports(problem, kernel.default, gpu) is None


def _tunable_anywhere(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    if _have_groups(problems):
        return _of_types(_for_groups(problems), problems)
    fp32 = (WARP_TILED,) if _types(problems) <= _FP32 else ()
    return (*fp32, *_of_types(_FOR_ONE_SHAPE, problems))


def _have_groups(problems: Sequence[GemmProblem]) -> bool:
    return any(problem.groups is not None for problem in problems)


def _for_groups(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    return _FOR_RAGGED if any(problem.ragged for problem in problems) else _FOR_GROUPS


def _types(problems: Sequence[GemmProblem]) -> set[str]:
    return {each for problem in problems for each in (problem.dtype, problem.result_dtype)}


def _of_types(kernels: Iterable[Kernel], problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    """Those for the problems' types; where all are of float32, those that are tuned for it, or
    multiply it in a lower precision that a problem allows."""
    if _types(problems) <= _FP32:
        return tuple(
            each
            for each in kernels
            if (set(each.dtypes) <= _FP32 and each.precision == "ieee")
            or (each.precision != "ieee" and any(map(each.takes_types, problems)))
        )
    return _of_other_types(kernels, problems)


def _of_other_types(
    kernels: Iterable[Kernel], problems: Sequence[GemmProblem]
) -> tuple[Kernel, ...]:
    wanted = _types(problems) - _FP32
    return tuple(
        each
        for each in kernels
        if wanted & set(each.dtypes) and any(map(each.takes_types, problems))
    )


def find_kernel(name: str) -> Kernel:
    """Find a rung or a production kernel by its name.

    Args:
        name: such as "naive"; case and dashes do not matter. Settings after a colon, as in
            `naive:BM=16,BN=16`, change the default configuration of the kernel returned.

    Raises:
        UsageError: no such kernel or key; the message suggests the nearest names.
        UnsupportedType: the name is not a string.
    """
    if not isinstance(name, str):
        raise UnsupportedType(f"{name!r} is not the name of a kernel, such as 'gemm_tiled'")
    name, colon, settings = name.partition(":")
    wanted = name.strip().lower().replace("-", "_")
    by_name = {kernel.name: kernel for kernel in (*LADDER, *PRODUCTION)}
    kernel = by_name.get(wanted)
    if kernel is None:
        raise UsageError(_no_kernel(name, wanted, by_name))
    if not colon:
        return kernel
    return replace(kernel, default=kernel.configure(read_settings(settings)))


def _no_kernel(name: str, wanted: str, known: Iterable[str]) -> str:
    """Why a name, as it was given and as it was looked up, is that of no kernel."""
    if wanted.endswith((".cu", ".cuh", ".ptx")):
        return (
            f"'{name}' is a file, and a kernel of gemmkit is needed here: `gemmkit check`, "
            "`explain` and `bench` take files, and in Python Kernel.from_file and from_ptx make "
            "kernels of them"
        )
    rungs = {str(each.rung): each.name for each in LADDER}
    if wanted in rungs:
        return f"kernels go by their names here: rung {wanted} is {rungs[wanted]}"
    return unknown_name("kernel", name, known)


def read_settings(text: str) -> dict[str, int]:
    """Read `KEY=VALUE,…`.

    Raises:
        UsageError: a part is not of that form, or a key is given twice.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _equals, number = (word.strip() for word in part.partition("="))
        if not (key and number.isdecimal()):
            raise UsageError(f"'{part}' is not KEY=VALUE with an integer")
        if key in found:
            raise UsageError(f"'{key}' is given twice")
        found[key] = int(number)
    return found


def takers(problem: GemmProblem, gpu: GpuSpec) -> tuple[Kernel, ...]:
    """gemmkit's kernels that take a problem on a board in their default configuration, production
    kernels first, then rungs from the last one. Those for groups are for these alone."""
    production = _FOR_ONE_SHAPE if problem.groups is None else _for_groups([problem])
    return tuple(each for each in (*production, *reversed(LADDER)) if _takes(each, problem, gpu))


def alternatives(problem: GemmProblem, gpu: GpuSpec) -> str:
    """The end of a refusal: which kernels take the problem on the board, or each of its products.

    Empty where there are none.
    """
    names = [f"'{each.name}'" for each in takers(problem, gpu)[:NAMED]]
    if names:
        return _that_take_it(names)
    groups = problem.groups
    if groups is None or not groups.count:
        return ""
    # One product of each size.
    first = {size: number for number, size in enumerate(zip(*groups.table.tolist(), strict=True))}
    singles = [problem.product(number) for number in first.values()]
    for kernel in takers(singles[0], gpu):
        if all(_takes(kernel, each, gpu) for each in singles):
            return f"; '{kernel.name}' takes each of its products in a launch of its own"
    return ""


def _that_take_it(names: Sequence[str]) -> str:
    return f"; {' and '.join(names)} {'takes' if len(names) == 1 else 'take'} it"


_THAT_TAKE_IT = re.compile(r"; ('\w+'(?: and '\w+')*) takes? it$")
_NUMBER = re.compile(r"\d[\d,x]*")


def merged_refusals(refusals: Iterable[str]) -> str:
    """Refusals of several problems: of those that differ in their numbers alone, or in the kernels
    that they name at the end, the first, with how many other numbers there are.

    It names the kernels that all of them name; its own, where there are none.
    """
    alike: dict[str, dict[str, list[list[str]]]] = {}
    for refusal in refusals:
        reason, *ends = _THAT_TAKE_IT.split(refusal)
        names = ends[0].split(" and ") if ends else []
        kind = alike.setdefault(_NUMBER.sub("0", reason), {})
        kind.setdefault(reason, []).append(names)
    told = []
    for kind in alike.values():
        first, *others = kind
        named = [names for each in kind.values() for names in each]
        common = [name for name in named[0] if all(name in names for names in named)] or named[0]
        likewise = f" (and likewise for {counted(len(others), 'other')})" if others else ""
        told.append(first + (_that_take_it(common) if common else "") + likewise)
    return "; ".join(told)


# Fields of a problem that are the same for all of its products.
_OF_ALL_PRODUCTS = (
    *("dtype", "out_dtype", "precision", "scales", "epilogue", "alpha", "beta", "alignment"),
)


def instead_of(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> str:
    """The same for a kernel that refused a problem; empty for a user's own, or where only the
    configuration was refused. Of kernels for groups, others for groups are named."""
    if kernel.user_defined or _takes(kernel, problem, gpu):
        return ""
    if kernel in _FOR_RAGGED and problem.groups is None:
        sizes = [(problem.m, problem.n, problem.k)] * problem.batch
        rest = {each: getattr(problem, each) for each in _OF_ALL_PRODUCTS}
        problem = GemmProblem.of_groups(sizes, problem.layout[:2], **rest)
    return alternatives(problem, gpu)


# What a refusal ends with, of whatever kernel.
Kernel.recommendation = instead_of
