"""The number formats of tensor cores: raw bits to numbers and exponents, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
Numbers = NDArray[np.float64]
Exponents = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format, stored in `bits` bits, of which the low `unused` are ignored.

    `has_infinity`: the largest exponent stands for infinities and NaN, as in IEEE 754; without it
    (e4m3) only the number of all ones is NaN.
    """

    bits: int
    exponent_bits: int
    fraction_bits: int
    unused: int = 0
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def infinity(self) -> int:
        """The bits of +infinity."""
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def nan(self) -> int:
        """The bits of the only NaN that tensor cores return: all ones without the sign."""
        return (1 << (self.exponent_bits + self.fraction_bits)) - 1


FORMATS: Mapping[str, Format] = {
    "f16": Format(16, 5, 10),
    "bf16": Format(16, 8, 7),
    "tf32": Format(32, 8, 10, unused=13),
    "e4m3": Format(8, 4, 3, has_infinity=False),
    "e5m2": Format(8, 5, 2),
    "f32": Format(32, 8, 23),
}


def numbers_of(raw: Bits, of: Format) -> Numbers:
    """The numbers that raw bits represent, exactly."""
    bits = raw.astype(np.int64) >> of.unused
    fraction = bits & ((1 << of.fraction_bits) - 1)
    field = bits >> of.fraction_bits & ((1 << of.exponent_bits) - 1)
    significand = fraction + np.where(field > 0, 1 << of.fraction_bits, 0)
    exponent = np.maximum(field - of.bias, of.lowest) - of.fraction_bits
    size = np.ldexp(significand.astype(np.float64), exponent)
    last = field == (1 << of.exponent_bits) - 1
    if of.has_infinity:
        size = np.where(last, np.where(fraction == 0, np.inf, np.nan), size)
    else:
        size = np.where(last & (fraction == (1 << of.fraction_bits) - 1), np.nan, size)
    negative = bits >> (of.exponent_bits + of.fraction_bits) & 1
    return np.where(negative == 1, -size, size)


def exponents_of(numbers: Numbers, of: Format) -> Exponents:
    """The exponents of numbers of a format: that of the smallest normal number for those below
    it, zero included."""
    exponents: Exponents = np.maximum(np.frexp(numbers)[1].astype(np.int64) - 1, of.lowest)
    return exponents


def raw_of(numbers: Numbers, of: Format) -> Bits:
    """The bits of numbers that the format represents exactly; of zeros +0, of NaN the one that
    tensor cores return."""
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    exponent = exponents_of(finite, of)
    significand = np.abs(np.ldexp(finite, of.fraction_bits - exponent)).astype(np.int64)
    # The leading one of a normal number adds one to the exponent's field.
    bits = ((exponent - of.lowest) << of.fraction_bits) + significand
    bits = np.where(significand == 0, 0, bits)
    bits = np.where(np.isinf(numbers), of.infinity, bits)
    bits |= np.where(numbers < 0, 1 << (of.exponent_bits + of.fraction_bits), 0)
    return np.where(np.isnan(numbers), of.nan, bits).astype(f"u{of.bits // 8}")
