"""Tensor maps as the emulator holds them in memory: an encoding of its own in 128 bytes.

NVIDIA does not publish the driver's encoding. This one begins with a mark and a version, and ends
with a checksum: other bytes are not taken for a map.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from functools import lru_cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.errors import UsageError
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, MAX_RANK, Element, TensorMap

_MARK = b"GEMMTMA\x01"
# Mark, address, rank, element type, swizzle, L2 promotion, fill; sizes - 1, strides, box sizes and
# element strides.
_FIELDS = struct.Struct("<8sQBBBHB3x5I4Q5H5B")
_CHECKSUM = struct.Struct("<I")
_ELEMENTS: tuple[Element, ...] = get_args(Element)


def encoded(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that a kernel of the emulator takes for a map."""

    def filled(values: tuple[int, ...], count: int) -> tuple[int, ...]:
        return (*values, *(0,) * (count - len(values)))

    fields = _FIELDS.pack(
        _MARK,
        tensor_map.address,
        tensor_map.rank,
        _ELEMENTS.index(tensor_map.element),
        tensor_map.swizzle,
        tensor_map.l2,
        tensor_map.fill_nan,
        *filled(tuple(size - 1 for size in tensor_map.sizes), MAX_RANK),
        *filled(tensor_map.strides, MAX_RANK - 1),
        *filled(tensor_map.box, MAX_RANK),
        *filled(tensor_map.element_strides, MAX_RANK),
    )
    body = fields.ljust(MAP_BYTES - _CHECKSUM.size, b"\0")
    return body + _CHECKSUM.pack(zlib.crc32(body))


# A copy reads its map anew; the maps of a launch are few.
@lru_cache(maxsize=64)
def decoded(data: bytes) -> TensorMap:
    """The map in 128 bytes.

    Raises:
        Misuse: they do not hold one.
    """
    body, sum_ = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if not body.startswith(_MARK) or sum_ != _CHECKSUM.pack(zlib.crc32(body)):
        raise Misuse("invalid tensor map", "uses 128 bytes as a tensor map that do not hold one")
    _, address, rank, element, swizzle, l2, nan, *rest = _FIELDS.unpack_from(body)
    sizes, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:]
    try:
        return TensorMap(
            address,
            _ELEMENTS[element],
            tuple(size + 1 for size in sizes[:rank]),
            tuple(strides[: rank - 1]),
            tuple(box[:rank]),
            tuple(steps[:rank]),
            swizzle,
            bool(nan),
            l2,
        )
    except UsageError as error:
        raise Misuse("invalid tensor map", f"uses a map that is not valid: {error}") from None


def check_place(address: int, *, in_global: bool) -> None:
    """Check where a map lies (PTX ISA, "Tensor-map"); a parameter counts as global memory.

    Raises:
        Misuse: the address is not a multiple of 64, or in shared or local memory.
    """
    if not in_global:
        raise Misuse(
            "invalid tensor map",
            "uses a tensor map in shared or local memory; it must be a parameter "
            "(const __grid_constant__), a constant, or in global memory",
        )
    if address % MAP_ALIGNMENT:
        raise Misuse(
            "misaligned tensor map",
            f"uses a tensor map at {address:#x}, which is not a multiple of {MAP_ALIGNMENT}",
        )


def is_map(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which 64-bit words begin an encoded map."""
    found: NDArray[np.bool_] = words == int.from_bytes(_MARK, "little")
    return found


class EmulatedMaps:
    """The format of tensor maps on the emulator; see `gemmkit.tensor_maps.MapFormat`."""

    def encoded(self, tensor_map: TensorMap) -> bytes:
        """As the function `encoded`."""
        return encoded(tensor_map)

    def move(self, maps: NDArray[np.uint64], addresses: NDArray[np.uint64]) -> None:
        """As `MapFormat.move`: the checksum is of the address too."""
        for number in np.flatnonzero(is_map(maps[:, 0])).tolist():
            moved = replace(decoded(maps[number].tobytes()), address=int(addresses[number]))
            maps[number] = np.frombuffer(encoded(moved), np.uint64)


EMULATED_MAPS = EmulatedMaps()
