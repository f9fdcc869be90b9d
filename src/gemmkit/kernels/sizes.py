"""`SizeRule`: which M, N and K a kernel of a user's own takes, and the nearest that it does."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemmkit.errors import UsageError
from gemmkit.kernels.plan import ceil_div
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.problem import GemmProblem

SIZES = ("M", "N", "K")

Multiples = tuple[int, int, int]


def multiples_text(multiples: Sequence[int]) -> str:
    """What M, N and K are multiples of, in words: `M is a multiple of 8 and N of 32`."""
    told = {name: each for name, each in zip(SIZES, multiples, strict=True) if each > 1}
    if len(told) > 1 and len(set(told.values())) == 1:
        *names, last = told
        return f"{', '.join(names)} and {last} are multiples of {told[last]}"
    (name, first), *others = told.items()
    parts = [f"{name} is a multiple of {first}", *(f"{each} of {size}" for each, size in others)]
    return ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]


def with_padding_in(problem: GemmProblem, multiples: Multiples) -> GemmProblem:
    """The problem with the padding of its rows rounded up to multiples of what they run along.

    A kernel whose N is a multiple of 4, say, may load vectors of 4 along the rows of B and C, which
    misalign where `ldb` or `ldc` is no multiple of 4 as well.
    """
    if problem.groups is not None:
        return problem
    m, n, k = multiples
    along = (
        m if problem.transa else k,
        k if problem.transb else n,
        m if problem.transc else n,
    )
    names = ("lda", "ldb", "ldc")
    padded: dict[str, Any] = {
        name: row + ceil_div(getattr(problem, name) - row, unit) * unit
        for name, row, unit in zip(names, problem.tight, along, strict=True)
    }
    if all(getattr(problem, name) == value for name, value in padded.items()):
        return problem
    return replace(problem, **padded)


@dataclass(frozen=True, slots=True)
class SizeRule:
    """`only` is the name of the one size of a kernel for square matrices, empty for others.

    `fixed` holds sizes that are constants of the source, `multiples` what M, N and K have to be
    multiples of: at least one whole tile, where that is more than 1. `tied` says that M and N are
    arguments and nothing says what K is, so that it may be either: a cube suits both. The rows of
    matrices with `maps` in global memory must be multiples of 16 bytes.
    """

    only: str = ""
    fixed: Mapping[str, int] = field(default_factory=dict)
    multiples: Multiples = (1, 1, 1)
    tied: bool = False
    maps: tuple[MapRule, ...] = ()

    @classmethod
    def of(
        cls,
        names: Collection[str],
        compiled_in: Mapping[str, int],
        multiples: Multiples,
        maps: tuple[MapRule, ...] = (),
    ) -> SizeRule:
        """What follows from the names in a signature and the sizes that are constants.

        A size that is not an argument but a constant is fixed. A kernel whose only size, argument
        or constant, is called N, say, is for square matrices.
        """
        passed = [name for name in SIZES if name in names]
        fixed = {name: value for name, value in compiled_in.items() if name not in passed}
        known = {*passed, *fixed}
        tied = known == {"M", "N"} and not {"lda", "ldb"} & set(names)
        return cls(known.pop() if len(known) == 1 else "", fixed, multiples, tied, maps)

    def refusal(self, problem: GemmProblem) -> str | None:
        """Why a kernel does not take a problem of these sizes, or None."""
        sizes = dict(zip(SIZES, (problem.m, problem.n, problem.k), strict=True))
        if self.only and not problem.m == problem.n == problem.k:
            return f"its only size is {self.only}, so it takes square matrices only"
        for name, value in self.fixed.items():
            if sizes[name] != value:
                return (
                    f"{name} is {value}, a constant of its source, so it takes no other {name}; "
                    f"the nearest is {self.nearest(problem).shape}"
                )
        for (name, size), multiple in zip(sizes.items(), self.multiples, strict=True):
            if multiple > 1 and (size == 0 or size % multiple):
                return (
                    f"it takes multiples of {multiple} only as {name}, by --multiple-of, and not "
                    f"{size}; the nearest is {self.nearest(problem).shape}"
                )
        return None

    def nearest(self, problem: GemmProblem) -> GemmProblem:
        """The nearest problem that the rule takes, no smaller where nothing is fixed.

        An empty problem stays empty, but for sizes that are to be multiples.
        """
        sizes = [problem.m, problem.n, problem.k]
        if self.only or self.tied:
            sizes = [0 if 0 in sizes else max(sizes)] * 3
        wanted = [
            max(ceil_div(size, multiple), multiple > 1) * multiple
            for size, multiple in zip(sizes, self.all_multiples(problem), strict=True)
        ]
        for place, name in enumerate(SIZES):
            wanted[place] = self.fixed.get(name, wanted[place])
        if self.only and self.fixed:
            wanted = [*self.fixed.values()] * 3
        return problem.resized(*wanted)

    def all_multiples(self, problem: GemmProblem) -> Multiples:
        """`multiples` with those that tensor maps ask of a problem's type and layout, for sizes
        that are one and the same their least common one."""
        m, n, k = self.multiples
        for name, unit in (each.along(problem) for each in self.maps):
            m, n, k = (
                math.lcm(size, unit if name == each else 1)
                for each, size in zip(SIZES, (m, n, k), strict=True)
            )
        if not (self.only or self.tied):
            return m, n, k
        common = math.lcm(m, n, k)
        return common, common, common


def read_multiples(given: str | int | Sequence[int]) -> Multiples:
    """What M, N and K must be multiples of, from `128,128,8`, `16`, a number or three of them.

    Raises:
        UsageError: it is anything else, or one is not positive.
    """
    if isinstance(given, str):
        parts = [part.strip() for part in re.split(r"[,x]", given)]
        numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    else:
        numbers = [given] if isinstance(given, int) else list(given)
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3 or min(numbers) < 1:
        raise UsageError(
            f"'{given}' does not say what M, N and K are multiples of: write, for example, "
            "128,128,8, or 16 for all three"
        )
    m, n, k = numbers
    return m, n, k
