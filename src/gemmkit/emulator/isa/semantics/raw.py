"""Raw bits read as PTX's integer types, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.types import PtxType

Bits = NDArray[np.unsignedinteger]
Integers = NDArray[np.integer]
Mask = NDArray[np.bool_]
Raw = NDArray[Any]  # Bits, or a Mask for predicates
Operation = Callable[..., Raw | tuple[Raw, ...]]

UNSIGNED: Mapping[int, type[np.unsignedinteger[Any]]] = {
    8: np.uint8,
    16: np.uint16,
    32: np.uint32,
    64: np.uint64,
}
SIGNED: Mapping[int, type[np.signedinteger[Any]]] = {
    8: np.int8,
    16: np.int16,
    32: np.int32,
    64: np.int64,
}


def integers(bits: Bits, of: PtxType) -> Integers:
    """Raw bits as the numbers of an integer type."""
    return bits.view(SIGNED[of.bits]) if of.is_signed else bits


def raw(values: Integers, width: int) -> Bits:
    """The low `width` bits of integers, sign- or zero-extended if they are narrower."""
    return values.astype(UNSIGNED[width])


def ones(width: int) -> np.unsignedinteger[Any]:
    """All bits set."""
    return UNSIGNED[width](2**width - 1)
