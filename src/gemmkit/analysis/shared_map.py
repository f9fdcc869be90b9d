"""Which element of A or B lies in which word of shared memory, for any kernel.

A block runs with matrices whose elements all have different bits, and its shared memory is read
when it first holds all tiles: at the barrier behind the last store to a byte never stored to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.shared_order import Order, order_of
from gemmkit.analysis.trace import Trace
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.emulator.counters.rules import WORD_BYTES
from gemmkit.emulator.watching import SharedContent, WatchedAccess
from gemmkit.gpu import GpuSpec
from gemmkit.jit.compiler import compile_plan
from gemmkit.storage import STORAGE, Layout, placements
from gemmkit.verify.encoding import encode

Ints = NDArray[np.int64]

# What a place of shared memory holds instead of an element: a value that is none of them, or
# nothing, since no thread ever stores there.
OTHER, NEVER = -2, -1

# The share of a rectangle of elements that a tile fills at least.
_LEAST_SHARE = 0.75

# More barriers than any block has.
_UNUSED = 1 << 30

# The types to which a kernel may convert the numbers below without rounding them.
_CONVERSIONS: dict[Dtype, tuple[Dtype, ...]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32", "float16"),
    "float64": ("float64", "float32", "float16"),
}


@dataclass(frozen=True, slots=True, eq=False)
class SharedPart:
    """The tile of A or B in one stage of an array of shared memory.

    `elements` has row and column in the matrix for each place from the address `start` in shared
    memory on, of the size of a `dtype`; `OTHER` or `NEVER` in both where there is no
    element. `stage` of `stages` counts by address, `tile` along k.
    """

    array: str
    matrix: str
    dtype: Dtype
    start: int
    stage: int
    stages: int
    tile: int
    elements: Ints
    order: Order

    @property
    def words(self) -> int:
        """Words of 4 bytes from its first to its last."""
        return -(-len(self.elements) * ITEM_BYTES[self.dtype] // WORD_BYTES)

    @property
    def origin(self) -> tuple[int, int]:
        """The least row and column."""
        held = self.elements[self.elements[:, 0] >= 0]
        return int(held[:, 0].min()), int(held[:, 1].min())


@dataclass(frozen=True, slots=True, eq=False)
class SharedMap:
    """The parts of a block's shared memory that hold tiles.

    `unknown` are arrays that threads store to, of which no element can be told. `starts` are the
    arrays' addresses.
    """

    kernel: str
    parts: tuple[SharedPart, ...]
    unknown: tuple[str, ...]
    starts: dict[str, int]


def shared_map(traced: Trace, gpu: GpuSpec, *, cache_dir: Path | None = None) -> SharedMap | None:
    """Find out what shared memory holds; None for a kernel that uses none or loads no element of A
    and B, and for elements of 8 bits.

    Args:
        traced: the requests of the first block.
        gpu: the board.
        cache_dir: root of the compiler's cache; by default the user's.

    Raises:
        DeviceError: the kernel failed.
    """
    stored = _first_stores(traced)
    # Types of 8 bits have too few numbers to tell elements apart.
    if stored is None or traced.problem.dtype not in _CONVERSIONS:
        return None
    numbers = _numbers(traced.problem.dtype)
    places = _numbered(traced, len(numbers))
    of_a, known = len(places["A"]), np.concatenate([places[name] for name in "AB"])
    if not len(known):
        return None
    barriers = int(stored[stored < _UNUSED].max()) + 1
    content = _content(traced, gpu, places, numbers, barriers, cache_dir)
    written = np.zeros(len(content.data), bool)
    within = stored[content.start :][: len(written)] < _UNUSED
    written[: len(within)] = within
    read = _first_reads(traced, barriers)
    parts: list[SharedPart] = []
    unknown: list[str] = []
    for array, (address, size) in content.variables.items():
        at = address - content.start
        if not size or not written[at : at + size].any():
            continue
        dtype, found = _identified(
            content.data[at : at + size], traced.problem.dtype, numbers[: len(known)]
        )
        item = ITEM_BYTES[dtype]
        used = written[at : at + size // item * item].reshape(-1, item).any(1)
        found = np.where(used, np.where(found >= 0, found, OTHER), NEVER)
        before = len(parts)
        for matrix, low, high in (("A", 0, of_a), ("B", of_a, len(known))):
            own = (found >= low) & (found < high)
            every = np.where(
                own[:, None], known[np.maximum(found, 0)], np.minimum(found, NEVER)[:, None]
            )
            # Elements of the other matrix are no part of this one.
            every[(found >= 0) & ~own] = OTHER
            taken = read[(read >= address) & (read < address + len(found) * item)]
            parts += _stages(array, matrix, dtype, address, every, (taken - address) // item)
        if len(parts) == before:
            unknown.append(array)
    starts = {name: address for name, (address, _) in content.variables.items()}
    return SharedMap(traced.kernel, tuple(parts), tuple(unknown), starts)


def _first_stores(traced: Trace) -> Ints | None:
    """Barriers before the first store to each byte of shared memory, by address; None if there is
    none."""
    stores = [
        (_bytes(access), access.barriers)
        for access in traced.accesses
        if access.space == "shared" and access.kind != "load"
    ]
    if not stores:
        return None
    first = np.full(max(int(each.max()) for each, _ in stores) + 1, _UNUSED)
    for each, barriers in stores:
        first[each] = np.minimum(first[each], barriers)
    return first


def _first_reads(traced: Trace, barriers: int) -> Ints:
    """Addresses from which warps load after so many barriers, before the next one."""
    loads = [
        _bytes(access)
        for access in traced.accesses
        if access.space == "shared" and access.kind == "load" and access.barriers == barriers
    ]
    return np.unique(np.concatenate(loads)) if loads else np.zeros(0, np.int64)


def _bytes(access: WatchedAccess) -> Ints:
    starts = np.array([each for each in access.offsets if each is not None], np.int64)
    return np.add.outer(starts + access.base, np.arange(access.bytes_per_lane)).ravel()


def _numbered(traced: Trace, most: int) -> dict[str, Ints]:
    """Row and column of the elements of A and B that get numbers, in the order of first use; those
    for which there are no more numbers have none."""
    places = {name: _loaded(traced, name) for name in "AB"}
    if sum(map(len, places.values())) > most:
        return {name: each[: most // 2] for name, each in places.items()}
    return places


def _loaded(traced: Trace, array: str) -> Ints:
    """Row and column of each element of A or B that the block loads, in order of first use."""
    problem = traced.problem
    item, found = problem.item_bytes, dict[int, None]()
    for access in traced.accesses:
        if access.array == array and access.space == "global" and access.kind in ("load", "copy"):
            each = max(access.bytes_per_lane // item, 1)
            for offset in access.offsets:
                if offset is not None:
                    found.update(dict.fromkeys(range(offset // item, offset // item + each)))
    places = (traced.element(array, number * item) for number in found)
    high, wide = (problem.m, problem.k) if array == "A" else (problem.k, problem.n)
    inside = [place for place in places if place and place[0] < high and place[1] < wide]
    return np.array(inside, np.int64).reshape(-1, 2)


def _numbers(dtype: Dtype) -> NDArray[np.float64]:
    """Different normal numbers of a type, as many as there are of 16 bits.

    Those of fp16 also where elements are larger: conversions to fp16 or TF32 do not change them.
    """
    bits = np.arange(1 << 16, dtype=np.uint16)
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):
            numbers = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        least, most = 2.0**-126, 2.0**127
    else:
        with np.errstate(invalid="ignore"):
            numbers = bits.view(np.float16).astype(np.float64)
        least, most = 2.0**-14, 2.0**16
    magnitudes = np.abs(numbers)
    found: NDArray[np.float64] = numbers[(magnitudes >= least) & (magnitudes < most)]
    return found


def _content(
    traced: Trace,
    gpu: GpuSpec,
    places: dict[str, Ints],
    numbers: NDArray[np.float64],
    barriers: int,
    cache_dir: Path | None,
) -> SharedContent:
    """Shared memory after so many barriers, if the elements at `places` are these numbers."""
    problem, plan = traced.problem, traced.plan
    device = EmulatedDevice(gpu, cache_dir=cache_dir)
    operands = Operands.zeros(device, problem)
    layouts = placements(problem)
    for name, buffer in (("A", operands.a), ("B", operands.b)):
        layout = layouts[name.lower()]
        assert isinstance(layout, Layout)
        host = np.zeros(layout.size, STORAGE[problem.dtype])
        some = places[name]
        own, numbers = numbers[: len(some)], numbers[len(some) :]
        transposed = problem.transa if name == "A" else problem.transb
        major, minor = some.T[::-1] if transposed else some.T
        host[major * layout.ld + minor] = encode(own, problem.dtype)
        device.memory.view(buffer.address, host.nbytes)[:] = host.view(np.uint8)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)  # must outlive the launch
    binary = compile_plan(plan, gpu.arch, cache_dir=cache_dir)
    return device.read_shared(binary, plan, bound | scratch.arguments, 0, barriers)


def _identified(data: bytes, dtype: Dtype, numbers: NDArray[np.float64]) -> tuple[Dtype, Ints]:
    """The type in which memory holds most of the numbers, and which of them each place holds; -1
    for none."""
    best: tuple[int, Dtype, Ints] | None = None
    for stored in _CONVERSIONS[dtype]:
        item = ITEM_BYTES[stored]
        kind = f"u{item}"
        patterns = encode(numbers, stored).view(kind)
        order = np.argsort(patterns)
        held = np.frombuffer(data[: len(data) // item * item], kind)
        at = np.minimum(np.searchsorted(patterns, held, sorter=order), len(patterns) - 1)
        found = np.where(patterns[order[at]] == held, order[at], -1)
        share = item * int((found >= 0).sum())
        if best is None or share > best[0]:
            best = share, stored, found
    assert best is not None
    return best[1:]


def _stages(
    array: str, matrix: str, dtype: Dtype, address: int, elements: Ints, taken: Ints
) -> Iterator[SharedPart]:
    """A part for each stage. A tile is as deep as what warps read between two barriers."""
    item, along = ITEM_BYTES[dtype], 1 if matrix == "A" else 0
    depths = elements[:, along]
    held = np.flatnonzero(depths >= 0)
    if not len(held):
        return
    read = np.unique(depths[taken][depths[taken] >= 0])
    deep = len(read) or int(np.ptp(depths[held])) + 1
    tiles: defaultdict[int, list[int]] = defaultdict(list)
    for place in held.tolist():
        tiles[int(depths[place]) // deep].append(place)
    whole = ((tile, places) for tile, places in tiles.items() if _is_tile(elements[places]))
    ordered = sorted(whole, key=lambda each: each[1][0])
    for stage, (tile, places) in enumerate(ordered):
        # Padding behind the last line belongs to the tile too.
        follows = ordered[stage + 1][1][0] if stage + 1 < len(ordered) else len(elements)
        mine = np.full_like(elements, OTHER)
        mine[places] = elements[places]
        mine[elements[:, 0] == NEVER] = NEVER
        order = order_of(elements[places], np.array(places), item)
        first, last = places[0], places[-1] + 1
        end = min(first + order.lines * order.pitch, follows)
        while last < end and mine[last, 0] == NEVER:
            last += 1
        yield SharedPart(
            array=array,
            matrix=matrix,
            dtype=dtype,
            start=address + first * item,
            stage=stage,
            stages=len(ordered),
            tile=tile,
            elements=mine[first:last],
            order=order,
        )


def _is_tile(elements: Ints) -> bool:
    """Whether elements are most of a rectangle: numbers that other values happen to equal are not.

    Some may be there twice, as where a kernel loads the last row again instead of those past it.
    """
    high, wide = np.ptp(elements, axis=0) + 1
    different = len(np.unique(elements, axis=0))
    return bool(different >= max(_LEAST_SHARE * high * wide, len(elements) / 2))
