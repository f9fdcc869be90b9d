"""Warm calls of `grouped_matmul`: one like a call that this thread has made before only launches.

What a launch depends on is compared array by array: shape, strides, type, place, and what all
addresses are multiples of. The rest of an earlier call is kept: the choice, the table but for its
addresses, and the packed launch.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype
from gemmkit.errors import GemmkitError
from gemmkit.ops import warm
from gemmkit.ops.arrays import WarmLibrary, library_of
from gemmkit.ops.groups import low_bits
from gemmkit.ops.operands import alignment
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.precision import get_precision
from gemmkit.ops.request import ARRAYS, WRITTEN, Call
from gemmkit.trials import changes

if TYPE_CHECKING:
    from gemmkit.ops.grouped_gpu import GroupsLaunch
    from gemmkit.ops.prepared_forms import Forms

# Calls that a thread keeps prepared: each has what it knows of thousands of arrays.
_MOST_KEPT = 64

# What is read and written in vectors where all of it is aligned to them.
_VECTORS = ("a", "b", "out")

Addresses = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call's launch depends on, and the addresses of its arrays by role."""

    library: WarmLibrary
    key: Hashable
    addresses: dict[str, Addresses]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The launch of calls that look alike; `shapes` are those of their results.

    `dtype` is their type, None for that of the operands. `reach` holds first byte and end of each
    array from its address, by role.
    """

    launch: GroupsLaunch
    ordinal: int
    shapes: tuple[tuple[int, int], ...]
    dtype: Dtype | None
    reach: Mapping[str, tuple[Addresses, Addresses]]

    def run(self, call: Call, seen: Seen, held: Forms | None) -> list[Any] | None:
        """The results, or None where only a full reading of the call tells whether it is valid."""
        library, addresses = seen.library, seen.addresses
        if call.out is None:
            made = [
                library.new(a, shape, self.dtype)
                for a, shape in zip(call.a, self.shapes, strict=True)
            ]
            results: list[Any] = [array for array, _ in made]
            addresses = addresses | {"out": _numbers(address for _, address in made)}
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


class _Ready(threading.local):
    """What a thread has prepared."""

    def __init__(self) -> None:
        self.calls: warm.Calls[Prepared] = warm.Calls(_MOST_KEPT)


_ready = _Ready()


def glance(call: Call, prepared: bool) -> Seen | None:
    """What the launch of a call depends on, with b `prepared` or not; None where a call has to be
    read in full."""
    library = warm.LIBRARIES.get(type(call.a[0])) if call.a else None
    if library is None or call.stream is not None or call.device is not None or library.watched():
        return None
    if not (isinstance(call.alpha, Real) and isinstance(call.beta, Real)):
        # Such as tensors of one element, whose value may change.
        return None
    if call.beta != 0 and call.c is not call.out:
        return None
    addresses: dict[str, Addresses] = {}
    precision = get_precision() if call.precision is None else call.precision
    key: list[Hashable] = [call.alpha, call.beta, call.epilogue, precision, prepared]
    try:
        for role, members in zip(ARRAYS, call, strict=False):
            if members is None or role == "c":
                key.append(None if members is None else len(members))
                continue
            glances = [library.glance(each) for each in members]
            addresses[role] = _numbers(address for address, _ in glances)
            key += [tuple(seen for _, seen in glances), frozenset(map(type, members))]
        hash((call.epilogue, precision))
    except (AttributeError, TypeError, ValueError, RuntimeError, GemmkitError):
        # Operands of several libraries, or no arrays: reading them tells what is wrong.
        return None
    vectors = (addresses[role] for role in _VECTORS if role in addresses)
    key.append(alignment(low_bits(vectors)))
    return Seen(library, tuple(key), addresses)


def repeated(call: Call, held: Forms | None) -> list[Any] | None:
    """The results of a call like one that this thread has kept; None if there is none.

    Raises:
        UsageError: an array may not be overwritten now.
        DeviceError: the driver refuses the launch.
    """
    seen = glance(call, held is not None)
    if seen is None:
        return None
    calls = _ready.calls
    if calls.version != changes.count:
        calls.forget()
    found = calls.get(seen.key)
    return None if found is None else found.run(call, seen, held)


def keep(
    call: Call,
    launch: GroupsLaunch,
    ordinal: int,
    extents: Mapping[str, Extents],
    dtype: Dtype | None,
    held: Forms | None,
) -> None:
    """Have the next call that looks like this one use its launch; `dtype` is as in `Prepared`."""
    library, kind = library_of(call.a[0], "a"), type(call.a[0])
    if hasattr(library, "glance"):
        warm.LIBRARIES.setdefault(kind, cast(WarmLibrary, library))
    seen = glance(call, held is not None)
    if seen is None:
        return
    m = extents["a"].places[:, 2].tolist()
    n = extents["b"].places[:, 3].tolist()
    reach = {
        role: (its.start - its.places[:, 0], its.end - its.places[:, 0])
        for role, its in extents.items()
        if role != "c"
    }
    shapes = tuple(zip(m, n, strict=True))
    _ready.calls.keep(seen.key, Prepared(launch, ordinal, shapes, dtype, reach))


def _numbers(addresses: Any) -> Addresses:
    return np.fromiter(addresses, np.int64)
