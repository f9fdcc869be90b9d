"""Elements of each type: encoding, decoding, rounding, and the mark of an element never written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import OPERAND_TYPES, Dtype
from gemmkit.storage import STORAGE, Stored
from gemmkit.verify.arithmetic import FORMATS, Format
from gemmkit.verify.row_blocks import for_each_row_block, on_all_cores, row_blocks

Numbers = NDArray[Any]

# Elements that are rounded at once: they and what is computed of them fit a core's cache.
CHUNK = 2**16

# The significand, subnormal numbers and largest finite number of each type.
ELEMENTS: Mapping[Dtype, Format] = {
    "float64": Format("float64", 53, 0.0),
    "float32": Format("float32", 24, 2.0**-150),
    "float16": FORMATS["float16"],
    "bfloat16": FORMATS["bfloat16"],
    "float8_e4m3": FORMATS["float8_e4m3"],
    "float8_e5m2": FORMATS["float8_e5m2"],
}
LARGEST: Mapping[Dtype, float] = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": (2 - 2.0**-10) * 2.0**15,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float8_e4m3": 448.0,
    "float8_e5m2": 57344.0,
}

# Signaling NaNs: copies preserve them and arithmetic turns them into quiet NaNs, so they mark the
# elements that were never written.
CANARIES: Mapping[Dtype, np.unsignedinteger[Any]] = {
    "float64": np.uint64(0x7FF4DEAD7FA0DEAD),
    "float32": np.uint32(0x7FA0DEAD),
    "float16": np.uint16(0x7D5A),
    "bfloat16": np.uint16(0x7FA5),
    # These have no signaling NaN: no conversion gives one with a sign.
    "float8_e4m3": np.uint8(0xFF),
    "float8_e5m2": np.uint8(0xFF),
}
_BFLOAT16_NAN = 0x7FC0
# Of the types of 8 bits.
_NARROW_SIGN, _NARROW_NAN, _E5M2_INFINITY = 0x80, 0x7F, 0x7C


def encode(values: Numbers, dtype: Dtype) -> Stored:
    """Round numbers to a type, to nearest, as stored; no copy if they already have that type."""
    one: Callable[[Numbers], Stored]
    if dtype in OPERAND_TYPES:
        one = partial(_encode_narrow, dtype=dtype)
    elif dtype == "bfloat16":
        one = _encode_bfloat16
    else:
        with np.errstate(over="ignore"):
            return values.astype(STORAGE[dtype], copy=False)
    if values.size <= CHUNK or not values.flags.c_contiguous:
        return one(values)
    flat, found = values.reshape(-1), np.empty(values.size, STORAGE[dtype])

    def part(rows: slice) -> None:
        for start in range(rows.start, rows.stop, CHUNK):
            chunk = slice(start, min(start + CHUNK, rows.stop))
            found[chunk] = one(flat[chunk])

    for_each_row_block(values.size, 1, part)
    return found.reshape(values.shape)


def _encode_bfloat16(values: Numbers) -> Stored:
    """To nearest, ties to even: half of what is cut off is added, less a bit where that is even."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    found = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        found[nan] = _BFLOAT16_NAN
    return found


def decode(stored: Stored, dtype: Dtype) -> Numbers:
    """Stored elements as float64 if they are float64, else as float32; no copy if they are that."""
    if dtype == "bfloat16":
        bits: NDArray[np.uint32] = np.left_shift(stored, np.uint32(16), dtype=np.uint32)
        return bits.view(np.float32)
    if dtype in OPERAND_TYPES:
        found: Numbers = _narrow_numbers(dtype)[stored]
        return found
    with np.errstate(invalid="ignore"):  # of a signaling NaN
        return stored.astype(np.float64 if dtype == "float64" else np.float32, copy=False)


def _encode_narrow(values: Numbers, dtype: Dtype) -> Stored:
    """To 8 bits, ties to even; what is too large becomes the largest number, infinities as well
    (e4m3 has none)."""
    if values.dtype != np.float32:
        return _nearest_narrow(values, dtype)
    # Rounded to odd, the upper half tells on which side of a tie the number lies.
    bits = values.view(np.uint32)
    half = (bits >> np.uint32(16)).astype(np.uint16)
    half |= (bits & np.uint32(0xFFFF)) != 0
    found: Stored = _narrow_of_halves(dtype)[half]
    return found


@cache
def _narrow_of_halves(dtype: Dtype) -> Stored:
    """The 8 bits that each upper half of a float32 is rounded to."""
    halves = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):  # of a signaling NaN
        return _nearest_narrow(halves.view(np.float32), dtype)


def _nearest_narrow(values: Numbers, dtype: Dtype) -> Stored:
    numbers = _narrow_numbers(dtype)[:_NARROW_SIGN]
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    size = np.abs(values.astype(np.float64))
    above = np.minimum(np.searchsorted(finite, size), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    middle = (finite[above] + finite[below]) / 2
    nearest = np.where((size > middle) | ((size == middle) & (above % 2 == 0)), above, below)
    bits = nearest | np.where(np.signbit(values), _NARROW_SIGN, 0)
    return np.where(np.isnan(values), _NARROW_NAN, bits).astype(np.uint8)


@cache
def _narrow_numbers(dtype: Dtype) -> Numbers:
    """The number that each pattern of 8 bits is."""
    fraction_bits = ELEMENTS[dtype].bits - 1
    bits = np.arange(2 * _NARROW_SIGN)
    fraction = bits & (1 << fraction_bits) - 1
    field = (bits & _NARROW_SIGN - 1) >> fraction_bits
    lowest = int(np.log2(2 * ELEMENTS[dtype].tiny))
    significand = fraction + np.where(field > 0, 1 << fraction_bits, 0)
    size = np.ldexp(significand.astype(np.float32), lowest + np.maximum(field - 1, 0))
    size[size > LARGEST[dtype]] = np.nan
    if dtype == "float8_e5m2":
        size[bits & _NARROW_SIGN - 1 == _E5M2_INFINITY] = np.inf
    found: Numbers = np.where(bits & _NARROW_SIGN, -size, size).astype(np.float32)
    return found


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as stored; what is read of it is decoded, and nothing else.

    With `scales`, elements are multiplied by one for each `shared` rows and columns of them, as
    float64.
    """

    stored: Stored
    dtype: Dtype
    scales: Numbers | None = None
    shared: tuple[int, int] = (1, 1)
    # The rows and columns of the whole matrix that these are.
    rows: NDArray[np.intp] | None = None
    columns: NDArray[np.intp] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.stored.shape
        return rows, columns

    def part(self, rows: Any, columns: Any) -> Matrix:
        """The chosen rows and columns."""
        found = self.stored[rows][:, columns]
        if self.scales is None:
            return Matrix(found, self.dtype)
        places = self._places
        return Matrix(
            found, self.dtype, self.scales, self.shared, places[0][rows], places[1][columns]
        )

    def __getitem__(self, rows: slice) -> Numbers:
        """The numbers of some rows."""
        found = decode(self.stored[rows], self.dtype)
        if self.scales is None:
            return found
        (down, along), (of_rows, of_columns) = self._places, self.shared
        with np.errstate(invalid="ignore"):  # of infinity times 0
            return found * self.scales[np.ix_(down[rows] // of_rows, along // of_columns)].astype(
                np.float64
            )

    @property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The rows and columns of the whole matrix that these are."""
        rows, columns = self.shape
        down = np.arange(rows) if self.rows is None else self.rows
        return down, np.arange(columns) if self.columns is None else self.columns


def extremes(values: Matrix) -> tuple[float, bool]:
    """The largest finite magnitude of a matrix, 0 if there is none, and whether all are finite."""

    def of_rows(rows: slice) -> tuple[float, bool]:
        block = values[rows]
        largest = max(float(block.max(initial=0.0)), -float(block.min(initial=0.0)))
        if np.isfinite(largest):
            return largest, True
        sizes = np.abs(block)
        return float(sizes.max(initial=0.0, where=np.isfinite(sizes))), False

    parts = on_all_cores(of_rows, row_blocks(*values.shape))
    return max((each for each, _ in parts), default=0.0), all(finite for _, finite in parts)


def canaries(size: int, dtype: Dtype = "float32") -> Stored:
    """An array of `size` canaries, as stored."""
    return np.full(size, CANARIES[dtype]).view(STORAGE[dtype])


def is_canary(stored: Stored, dtype: Dtype = "float32") -> NDArray[np.bool_]:
    """Which elements still hold the canary."""
    canary = CANARIES[dtype]
    return np.asarray(stored.view(canary.dtype) == canary)
