"""`choose_alike`: one choice for groups of different sizes that are alike, as those of a mixture of
experts are.

A router sends other numbers of tokens to the experts at every step, and estimating all candidates
anew would take longer than the products.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from gemmkit.dispatch.choose import Choice, Dispatcher, dispatcher
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.groups import STEP_LOG2, Sizes
from gemmkit.kernels.production import PRODUCTION
from gemmkit.problem import GemmProblem
from gemmkit.trials import changes

# Choices that are remembered for each board.
MOST_REMEMBERED = 4096

# Sides of square tiles whose numbers stand for those of all candidates' tiles.
TILE_SIDES = (32, 64, 128, 256)
_SIDES = np.array(TILE_SIDES, float)[:, None]
# Kernels that read where the rows of ragged groups end.
READING_OFFSETS = tuple(each for each in PRODUCTION if each.takes_ragged)
# Elements; no kernel asks for rows of larger multiples.
WIDEST_UNIT = 16


@dataclass(frozen=True, slots=True)
class GroupsClass:
    """What estimates of groups depend on; quantities are powers of 2^(1/2), rounded.

    `shared` is what all products have in common: α, β, epilogue, layout, types, precision, prepared
    operands, alignment and kinds of scales. `units` are the largest powers of two, up to
    `WIDEST_UNIT` elements, that divide the rows and the leading dimensions of all A, B and C.
    `sizes` are the number of products, their tiles of each side of `TILE_SIDES`, multiply-adds,
    elements of C and of A and B, and the largest m, n, k and leading dimensions. `empty` says that
    nothing is multiplied.
    """

    shared: tuple[Hashable, ...]
    units: tuple[int, ...]
    sizes: tuple[int, ...]
    empty: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> GroupsClass | None:
        """That of a problem; None if its products are all equal, and so those of a batch, or if it
        has no groups."""
        p, groups = problem, problem.groups
        if groups is None or not groups.count:
            return None
        table = groups.table
        if (table[:3] == table[:3, :1]).all():
            return None
        m, n, k = table[:3].astype(float)
        tiles = np.ceil(m / _SIDES) * np.ceil(n / _SIDES)
        results = m * n
        multiply_adds = float(results @ k)
        quantities = np.concatenate(
            [
                tiles.sum(axis=1),
                table.max(axis=1),
                (groups.count, multiply_adds, results.sum(), (m + n) @ k),
            ]
        )
        steps = np.rint(np.log2(np.maximum(quantities, 1.0)) / STEP_LOG2).astype(np.int64)
        units = tuple(min(each & -each or WIDEST_UNIT, WIDEST_UNIT) for each in p.extents)
        # fmt: off
        shared = (
            p.alpha, p.beta, p.epilogue, p.transa, p.transb, p.transc, p.dtype, p.out_dtype,
            p.precision, p.prepared, p.alignment, p.scales,
        )
        # fmt: on
        return cls(shared, units, tuple(steps.tolist()), not multiply_adds)


def rows_class(m: Sizes) -> tuple[int, ...]:
    """What stands for a `GroupsClass` where groups have one n and k, and rows alone are new at
    each call: the sum of these, as a power of 2^(1/2), and the most of one, as a power of 2.

    It tells fewer groups apart, so that calls seldom meet a new class, and their tiles are about as
    many where sum and maximum are alike.
    """
    total, most = int(m.sum()), int(m.max(initial=0))
    return round(log2(max(total, 1)) / STEP_LOG2), most.bit_length()


class ChoicesAlike:
    """Choices of one dispatcher, each made for the first groups of its class."""

    def __init__(self, own: Dispatcher) -> None:
        self._dispatcher = own
        self._seen = changes.count
        self._chosen: dict[GroupsClass, Choice] = {}

    def choose(self, problem: GemmProblem) -> Choice:
        """As `choose_alike`."""
        if changes.count != self._seen:
            self._seen = changes.count
            self._chosen.clear()
        own = self._dispatcher
        alike = None if own.has_tuned_groups else GroupsClass.of(problem)
        if alike is None:
            return own.choose(problem)
        found = self._chosen.get(alike)
        if found is None:
            if len(self._chosen) >= MOST_REMEMBERED:
                self._chosen.clear()
            found = self._chosen[alike] = own.choose(problem)
        return found


@lru_cache(maxsize=64)
def choices_alike(gpu: GpuSpec) -> ChoicesAlike:
    """Those for a board, with the user's store."""
    return ChoicesAlike(dispatcher(gpu))


def choose_alike(problem: GemmProblem, gpu: GpuSpec) -> Choice:
    """A kernel and configuration that suit a problem.

    They are those of `choose` for the first groups of the same `GroupsClass` that this process
    asked about, and so are the reason and the time. Where groups were tuned, or all products are
    equal, they are those for this very problem. A kernel may refuse one problem of a class and not
    another, such as for the leading dimension of a product of one row: its plan tells, and `choose`
    has another then.

    Raises:
        UnsupportedProblem: no kernel takes it; the message says why.
    """
    return choices_alike(gpu).choose(problem)


def choose_ragged(problem: GemmProblem, gpu: GpuSpec) -> Choice | None:
    """The kernel and configuration for ragged groups that reads where their rows end; None if none
    takes them.

    It is the same for any division of the rows, and for all numbers of rows whose mean in a group
    rounds to the same power of 2^(1/2).
    """
    if not problem.results or all(each.accepts(problem, gpu) for each in READING_OFFSETS):
        return None
    return _chosen_for_rows(problem.representative, gpu, changes.count)


@lru_cache(maxsize=1024)
def _chosen_for_rows(typical: GemmProblem, gpu: GpuSpec, _: int) -> Choice | None:
    """The same, for the division that stands for others."""
    try:
        choice = dispatcher(gpu).choose(typical)
    except UnsupportedProblem:
        return None
    return choice if choice.kernel.takes_ragged else None
