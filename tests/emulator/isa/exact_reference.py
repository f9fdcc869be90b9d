"""An independent reference: formats as fractions, and the definition of correct rounding."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Layout:
    """Sign, exponent and fraction bits of an IEEE-like format."""

    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    def is_nan(self, bits: int) -> bool:
        return bits & ~self.sign > self.infinity

    def is_infinite(self, bits: int) -> bool:
        return bits & ~self.sign == self.infinity

    def is_subnormal(self, bits: int) -> bool:
        return 0 < bits & ~self.sign < 1 << self.fraction_bits

    def value(self, bits: int) -> Fraction:
        """The number; infinity reads as the next power of two, where rounding would put it."""
        magnitude = bits & ~self.sign
        exponent, fraction = divmod(magnitude, 1 << self.fraction_bits)
        if exponent:
            fraction += 1 << self.fraction_bits
        scale = max(exponent, 1) - (1 << (self.exponent_bits - 1)) + 1 - self.fraction_bits
        number = Fraction(fraction) * Fraction(2) ** scale
        return -number if bits & self.sign else number

    def rounds_to(self, exact: Fraction, bits: int, mode: str) -> bool:
        """Whether `bits` is `exact`, not zero, rounded: n nearest even, z to zero, m down, p up."""
        magnitude, negative = bits & ~self.sign, bool(bits & self.sign)
        if negative != (exact < 0) or magnitude > self.infinity:
            return False
        exact = abs(exact)
        here = self.value(magnitude)
        # Infinity represents everything above it too.
        above = None if magnitude == self.infinity else self.value(magnitude + 1)
        below = None if magnitude == 0 else self.value(magnitude - 1)
        mode = {"m": "z" if not negative else "p", "p": "p" if not negative else "z"}.get(
            mode, mode
        )
        if mode == "z":
            overflow = magnitude == self.infinity - 1
            return magnitude != self.infinity and here <= exact and (overflow or exact < above)
        if mode == "p":
            return (below is None or below < exact) and (above is None or exact <= here)
        middle_above = None if above is None else (here + above) / 2
        middle_below = None if below is None else (here + below) / 2
        even = magnitude % 2 == 0
        return (
            middle_above is None or exact < middle_above or (exact == middle_above and even)
        ) and (middle_below is None or exact > middle_below or (exact == middle_below and even))


LAYOUTS = {
    "f64": Layout(11, 52),
    "f32": Layout(8, 23),
    "f16": Layout(5, 10),
    "bf16": Layout(8, 7),
}


def special_bits(layout: Layout) -> list[int]:
    """Zeros, ones, the ends of the ranges, infinities, NaN; positive and negative."""
    one = ((1 << (layout.exponent_bits - 1)) - 1) << layout.fraction_bits
    smallest_normal = 1 << layout.fraction_bits
    positive = [
        *(0, 1, 2, smallest_normal - 1, smallest_normal, smallest_normal + 1),
        *(one - 1, one, one + 1, one + (1 << (layout.fraction_bits - 1))),
        *(layout.infinity - 1, layout.infinity, layout.infinity | 1 << (layout.fraction_bits - 1)),
    ]
    return positive + [each | layout.sign for each in positive]


def sample_bits(layout: Layout, count: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Raw bits: special values, random bits, and numbers near one, where sums interact."""
    special = np.array(special_bits(layout), np.uint64)
    random = rng.integers(0, 2**layout.bits, count, np.uint64, endpoint=False)
    spread = rng.integers(-(layout.fraction_bits + 4), layout.fraction_bits + 4, count)
    exponent = (1 << (layout.exponent_bits - 1)) - 1 + np.clip(spread, -12, 12)
    near = (random & np.uint64(layout.sign | (1 << layout.fraction_bits) - 1)) | exponent.astype(
        np.uint64
    ) << np.uint64(layout.fraction_bits)
    kind = rng.integers(0, 4, count)
    return np.select([kind == 0, kind == 1], [rng.choice(special, count), random], near)


def typed(bits: NDArray[np.uint64], layout: Layout) -> NDArray[np.unsignedinteger]:
    return bits.astype(f"u{layout.bits // 8}")
