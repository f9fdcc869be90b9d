"""Warm calls of `grouped_matmul`: one like a call that this thread has made before only launches.

What a launch depends on is compared: shapes, strides, type, place, and what all addresses are
multiples of. The rest of an earlier call is kept: the choice, the table but for its addresses, and
the packed launch. Where sizes alone are new, as those of a mixture of experts are at every step,
operands are checked as arrays of numbers, and only what depends on sizes is made anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from gemmkit.dispatch.alike import WIDEST_UNIT, rows_class
from gemmkit.dtypes import Dtype
from gemmkit.errors import GemmkitError
from gemmkit.ops import warm
from gemmkit.ops.arrays import Glances, WarmLibrary, library_of
from gemmkit.ops.groups import low_bits
from gemmkit.ops.operands import WIDEST_ACCESS, alignment
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.precision import get_precision
from gemmkit.ops.request import ARRAYS, WRITTEN, Call
from gemmkit.ops.scale_shapes import SCALES
from gemmkit.trials import changes

if TYPE_CHECKING:
    from gemmkit.ops.grouped_gpu import GroupsLaunch
    from gemmkit.ops.prepared_groups import PreparedGroups

# Calls that a thread keeps prepared: each has what it knows of thousands of arrays.
_MOST_KEPT = 64

# What is read and written in vectors where all of it is aligned to them.
_VECTORS = ("a", "b", "out")

Addresses = NDArray[np.int64]


# Rows of so many bytes leave each of several matrices in one allocation aligned to vectors.
_ROW_UNIT = WIDEST_ACCESS


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call's launch depends on, and what its arrays look like by role.

    `family` is all of `key` but sizes and strides.
    """

    library: WarmLibrary
    key: Hashable
    family: Hashable
    glances: dict[str, Glances]


@dataclass(frozen=True, slots=True)
class Family:
    """Calls that differ in sizes and strides alone, of new results and no array but A and B.

    `make` gives the launch for arrays that lie so, None where there is none; `item_bytes` are those
    of an element of A and B, and of the results.
    """

    make: Callable[..., GroupsLaunch | None]
    ordinal: int
    dtype: Dtype | None
    item_bytes: tuple[int, int]
    # By what the B look like, and the class of the rows.
    known: warm.Calls[GroupsLaunch | None] = field(default_factory=lambda: warm.Calls(_MOST_KEPT))

    def prepared(self, seen: Seen) -> Prepared | None:
        """What calls with the same sizes as this one need, as `of_any_sizes`: by far the sooner
        where the B look like those of an earlier call, and only the rows of A are others.

        Raises:
            UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `grouped_matmul`.
        """
        item, out_item = self.item_bytes
        own, b = seen.glances["a"], seen.glances["b"]
        a = _extents(own, item)
        # Those of a mixture of experts are alike.
        alike = len(set(b.shapes)) == len(set(b.strides)) == 1 and len(b.shapes[0]) == 2
        if a is None or not alike or len(a.places) != len(b.shapes):
            return self.of_any_sizes(seen)
        (inner, columns), m = b.shapes[0], a.places[:, 2]
        if (a.places[:, 3] != inner).any() or not a.in_rows.all():
            return self.of_any_sizes(seen)
        lda = a.leading()
        # The pitch of a single row does not matter.
        lda = np.where(m > 1, lda, lda.max(initial=inner))
        units = int(np.bitwise_or.reduce(lda)) % WIDEST_UNIT
        key = (len(m), b.shapes[0], b.strides[0], rows_class(m), units)
        if key not in self.known:
            found = self.of_any_sizes(seen)
            if found is not None:
                self.known.keep(key, found.launch.for_any_rows(b.strides[0]))
            return found
        like = self.known[key]
        launch = None if like is None else like.with_rows(m, lda)
        if launch is None:
            return self.of_any_sizes(seen)
        n = np.full_like(m, columns)
        return Prepared.of(launch, self.ordinal, m, n, self.dtype, out_item, {})

    def of_any_sizes(self, seen: Seen) -> Prepared | None:
        """What calls with the same sizes as this one need; None where only a full reading tells
        what is wrong, or brings operands into rows or columns.

        Raises:
            UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `grouped_matmul`.
        """
        item, out_item = self.item_bytes
        a, b = (_extents(seen.glances[role], item) for role in ("a", "b"))
        if a is None or b is None or len(a.places) != len(b.places):
            return None
        m, n = a.places[:, 2], b.places[:, 3]
        if (a.places[:, 3] != b.places[:, 2]).any():
            return None
        turned = {"transa": _turned(a), "transb": _turned(b)}
        if None in turned.values():
            return None
        # New arrays, which are aligned.
        results = np.zeros((m.size, 6), np.int64)
        results[:, 2], results[:, 3] = m, n
        results[:, 4], results[:, 1::4] = np.maximum(n, 1) * out_item, out_item
        launch = self.make({"a": a, "b": b, "out": Extents((), results)}, **turned)
        if launch is None:
            return None
        return Prepared.of(launch, self.ordinal, m, n, self.dtype, out_item, {})


@dataclass(frozen=True, slots=True)
class Prepared:
    """The launch of calls that look alike, whose results have so many rows and columns.

    `dtype` is their type, None for that of the operands; `together` says whether they may lie in
    one allocation. `reach` holds first byte and end of each array from its address, by role.
    """

    launch: GroupsLaunch
    ordinal: int
    rows: list[int]
    columns: list[int]
    together: bool
    dtype: Dtype | None
    reach: Mapping[str, tuple[Addresses, Addresses]]

    @classmethod
    def of(
        cls,
        launch: GroupsLaunch,
        ordinal: int,
        m: Addresses,
        n: Addresses,
        dtype: Dtype | None,
        out_item: int,
        reach: Mapping[str, tuple[Addresses, Addresses]],
    ) -> Prepared:
        """The same for products of these sizes, with results of so many bytes an element."""
        together = bool((n == n[0]).all()) and int(n[0]) * out_item % _ROW_UNIT == 0
        return cls(launch, ordinal, m.tolist(), n.tolist(), together, dtype, reach)

    def run(self, call: Call, seen: Seen, held: PreparedGroups | None) -> list[Any] | None:
        """The results, or None where only a full reading of the call tells whether it is valid."""
        library = seen.library
        addresses = {role: each.addresses for role, each in seen.glances.items()}
        if call.out is None:
            results, addresses["out"] = self._new_results(library, call.a[0])
            if low_bits([addresses["out"]]):
                return None
        else:
            results = call.out
        if (call.out is not None or call.auxiliary is not None) and self._may_overlap(addresses):
            return None
        for array in (*(call.out or ()), *(call.auxiliary or ())):
            library.overwritten(array)
        self.launch.run(addresses, library.current_stream(self.ordinal), held)
        return results

    def _new_results(self, library: WarmLibrary, like: Any) -> tuple[list[Any], Addresses]:
        """New arrays and their addresses."""
        if self.together:
            return library.new_matrices(like, self.rows, self.columns[0], self.dtype)
        shapes = zip(self.rows, self.columns, strict=True)
        made = [library.new(like, shape, self.dtype) for shape in shapes]
        addresses = np.fromiter((address for _, address in made), np.int64, len(made))
        return [array for array, _ in made], addresses

    def _may_overlap(self, addresses: Mapping[str, Addresses]) -> bool:
        """Whether the stretch of memory of something written meets another array's."""
        start, end = (
            {role: addresses[role] + its[side] for role, its in self.reach.items()}
            for side in (0, 1)
        )
        written = [role for role in WRITTEN if role in addresses]
        starts, ends = (np.concatenate([each[role] for role in written]) for each in (start, end))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        if (ends[:-1] > starts[1:]).any():
            return True
        for role in addresses.keys() - set(written):
            # The last written one that begins before an array ends: those before it end earlier.
            last = np.searchsorted(starts, end[role], "left") - 1
            if ((last >= 0) & (ends[last] > start[role])).any():
                return True
        return False


def _extents(seen: Glances, item: int) -> Extents | None:
    """Where matrices lie; None if they are not all matrices."""
    if any(len(each) != 2 for each in seen.shapes):
        return None
    places = np.empty((len(seen.shapes), 6), np.int64)
    places[:, 0], places[:, 1] = seen.addresses, item
    flat = chain.from_iterable
    places[:, 2:4] = np.fromiter(flat(seen.shapes), np.int64).reshape(-1, 2)
    places[:, 4:6] = np.fromiter(flat(seen.strides), np.int64).reshape(-1, 2) * item
    return Extents((), places)


def _turned(extents: Extents) -> bool | None:
    """Whether all matrices lie in columns, and not in rows; None where some lie otherwise."""
    if extents.in_rows.all():
        return False
    return True if extents.in_columns.all() else None


class _Ready(threading.local):
    """What a thread has prepared."""

    def __init__(self) -> None:
        self.calls: warm.Calls[Prepared] = warm.Calls(_MOST_KEPT)
        self.families: warm.Calls[Family] = warm.Calls(_MOST_KEPT)


_ready = _Ready()


def glance(call: Call, held: PreparedGroups | None) -> Seen | None:
    """What the launch of a call depends on, b being the prepared operands `held` if they are; None
    where a call has to be read in full."""
    library = warm.LIBRARIES.get(type(call.a[0])) if call.a else None
    if library is None or call.stream is not None or call.device is not None or library.watched():
        return None
    if not (isinstance(call.alpha, Real) and isinstance(call.beta, Real)):
        # Such as tensors of one element, whose value may change.
        return None
    if call.beta != 0 and call.c is not call.out:
        return None
    glances: dict[str, Glances] = {}
    precision = get_precision() if call.precision is None else call.precision
    family: list[Hashable] = [call.alpha, call.beta, call.epilogue, precision, held is not None]
    sizes: list[Hashable] = []
    try:
        scales = zip(SCALES, (call.scale_a, call.scale_b), strict=True)
        for role, members in (*zip(ARRAYS, call, strict=False), *scales):
            if members is None or role == "c":
                family.append(members is None)
                sizes.append(None if members is None else len(members))
                continue
            known = held.glances(library) if role == "b" and held is not None else None
            if known is not None:
                glances[role], number = known
                family.append(number)
                continue
            found = glances[role] = library.glance_at_many(members)
            family += [found.kind, frozenset(map(type, members))]
            sizes += [found.shapes, found.strides]
        hash((call.epilogue, precision))
    except (AttributeError, TypeError, ValueError, RuntimeError, GemmkitError):
        # Operands of several libraries, or no arrays: reading them tells what is wrong.
        return None
    vectors = (glances[role].addresses for role in _VECTORS if role in glances)
    family.append(alignment(low_bits(vectors)))
    found_family = tuple(family)
    return Seen(library, (found_family, *sizes), found_family, glances)


def repeated(call: Call, held: PreparedGroups | None) -> list[Any] | None:
    """The results of a call like one that this thread has kept, or one that differs from it in
    sizes alone; None if there is none.

    Raises:
        UsageError: an array may not be overwritten now.
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `grouped_matmul`.
    """
    seen = glance(call, held)
    if seen is None:
        return None
    calls, families = _ready.calls, _ready.families
    if calls.version != changes.count:
        calls.forget()
        families.forget()
    found = calls.get(seen.key)
    if found is None:
        family = families.get(seen.family)
        found = None if family is None else family.prepared(seen)
        if found is None:
            return None
        calls.keep(seen.key, found)
    return found.run(call, seen, held)


def keep(
    call: Call,
    launch: GroupsLaunch,
    ordinal: int,
    extents: Mapping[str, Extents],
    dtype: Dtype | None,
    held: PreparedGroups | None,
    make: Callable[..., GroupsLaunch | None],
) -> None:
    """Have the next call that looks like this one use its launch; `dtype` is as in `Prepared`, and
    `make` as in `Family`."""
    library, kind = library_of(call.a[0], "a"), type(call.a[0])
    if hasattr(library, "glance"):
        warm.LIBRARIES.setdefault(kind, cast(WarmLibrary, library))
    seen = glance(call, held)
    if seen is None:
        return
    a, b, out = (extents[role].places for role in ("a", "b", "out"))
    reach = {
        role: (its.start - its.places[:, 0], its.end - its.places[:, 0])
        for role, its in extents.items()
        if role != "c"
    }
    item, out_item = int(a[0, 1]), int(out[0, 1])
    found = Prepared.of(launch, ordinal, a[:, 2], b[:, 3], dtype, out_item, reach)
    _ready.calls.keep(seen.key, found)
    if seen.glances.keys() == {"a", "b"} and call.c is None:
        _ready.families.keep(seen.family, Family(make, ordinal, dtype, (item, out_item)))
