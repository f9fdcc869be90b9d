"""Tensor copies in tiled mode: which bytes of the tensor, and of shared memory, belong to a box.

PTX ISA, sections "Tensors" (tiled mode, out-of-bounds access, swizzling modes) and
"cp.async.bulk.tensor". What these leave open is as an H100 does it: the value of the NaN fill, the
rows of a box that is narrower than its swizzle, coordinates that are refused, and what a store
writes past the edge of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.bulk_copies import combined
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.table import form_of
from gemmkit.tensor_maps import Element, TensorMap

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]

# What the address in shared memory must be a multiple of.
SHARED_ALIGNMENT = 128
# What a swizzle moves, and the bytes after which bits of the address begin to move it.
CHUNK, LINE = 16, 128

# What a reduction calls the elements: for sums and extremes, for increments, and for bits.
_TYPES: Mapping[Element, str] = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
_BITS: Mapping[Element, str] = {
    "uint32": "b32",
    "int32": "b32",
    "uint64": "b64",
    "int64": "b64",
}
# What an H100 fills with for NaN, each 16 bits.
NAN_FILL = 0x7FF7
# Types that loads round to ten bits of mantissa, as 2^20 elements that an H100 loaded show: to
# nearest, ties to even, subnormal numbers alike, with every NaN this one. No `_ftz` flushes there.
ROUNDED: frozenset[Element] = frozenset(["tfloat32", "tfloat32_ftz"])
TF32_NAN, TF32_DROPPED = 0x7FFFE000, 13
# Types that stores may change: that is not published, and was not measured.
_CHANGED: frozenset[Element] = ROUNDED | {"float32_ftz"}


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a tensor: `coordinates` of its first element, innermost dimension first.

    `low` and `high` limit, along each dimension, the box's elements that are in the tensor; of a
    store, those that it writes, which end at a multiple of 16 bytes. The box is `empty` if there
    are none. `first` is the address of the first byte in the tensor, and `end` that past the last;
    both are that of the tensor if there is none.
    """

    map: TensorMap
    coordinates: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    empty: bool = field(init=False)
    first: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        # Each copy asks for these several times.
        empty = any(low >= high for low, high in zip(self.low, self.high, strict=True))
        first = end = self.map.address
        if not empty:
            first = self._address(self.low)
            end = self._address([high - 1 for high in self.high]) + self.map.item_bytes
        for name, value in (("empty", empty), ("first", first), ("end", end)):
            object.__setattr__(self, name, value)

    @property
    def whole(self) -> bool:
        """Whether all of it is in the tensor."""
        return not any(self.low) and self.high == self.map.counts

    def _address(self, place: Sequence[int]) -> int:
        each = self.map
        strides = (each.item_bytes, *each.strides)
        return each.address + sum(
            (start + index * step) * stride
            for start, index, step, stride in zip(
                self.coordinates, place, each.steps, strides, strict=True
            )
        )

    def inside(self, data: Bytes) -> Bytes:
        """The bytes within the limits, as a view of memory whose first byte is that of `first`.

        Its shape is the extents, outermost dimension first; the last axis is in bytes.
        """
        shape, strides = self.extent
        return np.ndarray(shape, np.uint8, data, 0, strides)

    @property
    def extent(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape and the strides of `inside`."""
        each = self.map
        extents = [high - low for low, high in zip(self.low, self.high, strict=True)]
        steps = [step * stride for step, stride in zip(each.steps[1:], each.strides, strict=True)]
        return (*extents[:0:-1], extents[0] * each.item_bytes), (*steps[::-1], 1)

    def part(self, dense: Bytes) -> Bytes:
        """The bytes within the limits, as a view of a box without gaps; shaped as `inside`."""
        each = self.map
        size = each.item_bytes
        rows = dense.reshape(*each.counts[:0:-1], each.counts[0] * size)
        outer = zip(self.low[:0:-1], self.high[:0:-1], strict=True)
        cut = (
            *(slice(*limits) for limits in outer),
            slice(self.low[0] * size, self.high[0] * size),
        )
        part: Bytes = rows[cut]
        return part


def box_at(form: Form, tensor_map: TensorMap, coordinates: Sequence[int]) -> Box:
    """The box that a tensor copy moves; coordinates are 32-bit numbers, read as signed.

    Raises:
        Misuse: the map does not fit the instruction, or the hardware refuses the coordinates.
    """
    rank = int(form["N"])
    if tensor_map.rank != rank:
        raise Misuse(
            "wrong tensor map",
            f"copies a box of {rank} dimensions, but its tensor map has {tensor_map.rank}",
        )
    if tensor_map.element in _CHANGED and form["D"] == "global":
        raise Misuse(
            "unsupported tensor map",
            f"stores {tensor_map.element} elements, which may change on the way in a manner that "
            "the emulator does not model; use float32",
        )
    if "O" in form.modifiers:
        reduction_of(form, tensor_map.element)
    signed = tuple((each + 2**31) % 2**32 - 2**31 for each in coordinates)
    stores = form["D"] == "global"
    _check_coordinates(tensor_map, signed, stores=stores)
    sizes = tensor_map.sizes
    if stores:
        sizes = (_stored_size(tensor_map), *sizes[1:])
    low, high = [], []
    for start, count, step, size in zip(
        signed, tensor_map.counts, tensor_map.steps, sizes, strict=True
    ):
        low.append(min(max(-(start // step), 0), count))
        high.append(min(max(-((start - size) // step), 0), count))
    return Box(tensor_map, signed, tuple(low), tuple(high))


def _check_coordinates(
    tensor_map: TensorMap, coordinates: tuple[int, ...], *, stores: bool
) -> None:
    """Refuse what an H100 reports as an illegal instruction."""
    start = coordinates[0] * tensor_map.item_bytes
    if start % CHUNK:
        raise Misuse(
            "misaligned box",
            f"copies a box at coordinates {coordinates}, {start:,} bytes along the innermost "
            f"dimension; it must be a multiple of {CHUNK}, or the GPU reports an illegal "
            "instruction",
        )
    if stores and min(coordinates) < 0:
        raise Misuse(
            "negative coordinate",
            f"stores a box at coordinates {coordinates}; a store with a negative coordinate is an "
            "illegal instruction on the GPU (a load fills)",
        )


def _stored_size(tensor_map: TensorMap) -> int:
    """The innermost size, in elements, as far as stores write: the next multiple of 16 bytes."""
    return -(-tensor_map.sizes[0] * tensor_map.item_bytes // CHUNK) * CHUNK // tensor_map.item_bytes


def check_shared(form: Form, address: int, box: Box) -> None:
    """Check the address in shared memory.

    Raises:
        Misuse: it is not a multiple of 128.
    """
    if address % SHARED_ALIGNMENT:
        name = "destination" if form["D"] == "shared" else "source"
        raise Misuse(
            "misaligned",
            f"copies a box of {box.map.box_bytes:,} bytes, but the {name} in shared memory, "
            f"{address:#x}, is not a multiple of {SHARED_ALIGNMENT}",
        )


def reduction_of(form: Form, element: Element) -> Form:
    """The bulk reduction of single elements that a tensor reduction performs.

    Raises:
        Misuse: there is none of these elements.
    """
    operation = form["O"]
    kind = (_BITS if operation in ("and", "or", "xor") else _TYPES).get(element, "")
    if operation == "add" and kind == "s64":
        kind = "u64"  # the same sums
    rounding = ".noftz" if operation == "add" and kind in ("f16", "bf16") else ""
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{rounding}.{kind}"
    found = form_of(opcode)
    if found is None:
        raise Misuse("wrong tensor map", f"reduces {element} elements by .{operation}")
    return found


@lru_cache(maxsize=256)
def swizzled_chunks(swizzle: int, address: int, row_bytes: int, rows: int) -> Indices:
    """Where the 16-byte chunks of a box are in shared memory, counted in chunks from its address.

    A swizzle of 32, 64 or 128 bytes combines the lowest 1, 2 or 3 bits of a chunk's number with the
    same number of bits from bit 7 of the address on, by exclusive or. Each row begins at a multiple
    of the swizzle from the first one. `address` counts modulo 1024.
    """
    pitch = swizzle or row_bytes
    row = np.arange(row_bytes // CHUNK)
    chunks = (np.arange(rows)[:, None] * (pitch // CHUNK) + row).reshape(-1) + address // CHUNK
    mask = max(swizzle // CHUNK - 1, 0)
    lines = chunks // (LINE // CHUNK)
    return (chunks ^ (lines & mask)) - address // CHUNK


def chunks_of(box: Box, address: int) -> Indices:
    """Where the chunks of a box are in shared memory, see `swizzled_chunks`."""
    each = box.map
    rows = each.box_bytes // each.row_bytes
    return swizzled_chunks(each.swizzle, address % 1024, each.row_bytes, rows)


def footprint(box: Box) -> int:
    """The bytes of shared memory from a box's address on in which it lies: with a swizzle, whole
    lines of 128."""
    nbytes = box.map.shared_bytes
    return -(-nbytes // LINE) * LINE if box.map.swizzle else nbytes


@lru_cache(maxsize=64)
def _outside(tensor_map: TensorMap) -> Bytes:
    """A box whose elements are all outside of the tensor."""
    value = NAN_FILL if tensor_map.fill_nan else 0
    return np.full(tensor_map.box_bytes // 2, value, np.uint16).view(np.uint8)


def read_tensor(box: Box, data: Bytes) -> Bytes:
    """A box without gaps or swizzle, filled where it is outside of the tensor; `data` begins at the
    box's `first` byte."""
    if box.whole:
        dense = box.inside(data).flatten()
    else:
        dense = _outside(box.map).copy()
        if not box.empty:
            box.part(dense)[...] = box.inside(data)
    return _rounded_to_tf32(dense) if box.map.element in ROUNDED else dense


def _rounded_to_tf32(dense: Bytes) -> Bytes:
    """Elements of float32, rounded as a load of type tfloat32 does."""
    words = dense.view(np.uint32)
    half = np.uint32((1 << TF32_DROPPED - 1) - 1)
    odd = words >> np.uint32(TF32_DROPPED) & np.uint32(1)
    rounded = words + half + odd & np.uint32(0xFFFFFFFF << TF32_DROPPED & 0xFFFFFFFF)
    is_nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(TF32_NAN), rounded).view(np.uint8)


def write_tensor(form: Form, box: Box, dense: Bytes, data: Bytes) -> None:
    """Write, or reduce, the elements of a box within its limits; `data` as for `read_tensor`."""
    if box.empty:
        return
    target, part = box.inside(data), box.part(dense)
    if "O" in form.modifiers:
        of = reduction_of(form, box.map.element)
        shape = part.shape
        part = combined(of, target.reshape(-1), part.reshape(-1)).reshape(shape)
    target[...] = part


def read_shared(box: Box, address: int, shared: Bytes) -> Bytes:
    """A box without swizzle; `shared` is its footprint in shared memory."""
    chunks: Bytes = shared.view(np.complex128).take(chunks_of(box, address)).view(np.uint8)
    return chunks


def write_shared(box: Box, address: int, dense: Bytes, shared: Bytes) -> None:
    """Write a box into its footprint in shared memory."""
    if box.map.swizzle:
        shared.view(np.complex128)[chunks_of(box, address)] = dense.view(np.complex128)
    else:
        shared[:] = dense
