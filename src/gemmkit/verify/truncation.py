r"""How far the fused sums of tensor cores may be from exact ones.

A tensor core adds P products p_i to C in one fused sum (`gemmkit.emulator.numerics.rules`): each
term is truncated at F bits below the exponent of the largest, and the result toward zero to κ bits
of a fraction. With T = |C| + Σ|p_i|, a truncated term loses less than 2^-F·T, and as the largest
one loses nothing, P terms lose less than P·2^-F·T. Truncated terms add up to at most T, of which
the result loses less than 2^-κ. The fused sum is thus within P·δ·T of the exact one, with

    δ = 2^-F + 2^-κ / P,

and after k products in such steps a sum is within ((1 + P·δ)^⌈k/P⌉ − 1)·S ≤ (exp((k + P)·δ) − 1)·S,
the argument of section 4.2 of Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed.
Truncation is biased: sums of terms of one sign come close to this bound, which is linear in k, and
not only to its square root. The error is that of Fasi, Higham, Mikaitis and Pranesh, "Numerical
behavior of NVIDIA tensor cores" (2021), with the number of bits of each architecture. Where fp8 is
widened to binary16, C is added with one more rounding, at most a quarter of 2^-κ per fused sum.

Where fp32 registers take the sums of each c products ("promotion"), an error is relative to its own
chunk's S, and these add up to S: the bound is that of k = c, besides the roundings of fp32.

A denormal operand has the exponent of the smallest normal number ν, so that the largest exponent
may be that of a product smaller than its exponent says, below ν times the largest operand. That
adds at most 2^-F·ν·(max|A| + max|B| + ν) per product. A denormal result loses less than 2^(-126-κ).

The sum of multiples of one power of two g is exact if S is at most 2^(min(F, κ) + 1)·g: then no
term and no result has a bit to lose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from gemmkit.emulator.numerics.formats import FORMATS
from gemmkit.emulator.numerics.rules import FP8, Capability, Kind, Rules, rules_of
from gemmkit.errors import UnsupportedInstruction

_SHAPE = re.compile(r"\.m\d+n\d+k(\d+)\b")
_TYPES = frozenset([*FORMATS, "s32"])
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Truncation:
    """What fused sums lose: `step` is δ; `bits` is min(F, κ) + 1; `normal` is 2^-F·ν and
    `smallest` is ν; `denormal` is 2^(-126-κ)."""

    step: float
    bits: int
    normal: float
    smallest: float
    denormal: float

    def logarithm(self, k: int) -> float:
        """The exponent of the bound for sums of k products."""
        return (k + _DEEPEST) * self.step if k else 0.0

    def absolute(self, k: int, largest_a: float, largest_b: float) -> float:
        """What denormal numbers add, given the largest magnitudes of A and B."""
        return k * (self.normal * (largest_a + largest_b + self.smallest) + self.denormal)


def _of(rules: Rules, operands: Iterable[str]) -> Truncation:
    lost = 2.0**-rules.kept_bits * (1.25 if rules.method == "widened" else 1.0)
    smallest = max(2.0 ** FORMATS[each].lowest for each in operands)
    cut = 2.0**-rules.fraction_bits
    return Truncation(
        cut + lost / rules.products,
        min(rules.fraction_bits, rules.kept_bits) + 1,
        cut * smallest,
        smallest,
        2.0 ** (FORMATS["f32"].lowest - rules.kept_bits),
    )


# The widest errors of any architecture that gemmkit knows a board of: tf32 on Ampere has the fewest
# products in a fused sum, fp8 on Ada the fewest bits.
SIXTEEN_BITS = _of(Rules("fused", "published", 24, 23, 4), ("f16",))
EIGHT_BITS = _of(Rules("fused", "published", 13, 13, 16), FP8)


def truncation_of(opcode: str, capability: Capability) -> Truncation:
    """What the fused sums of a matrix instruction lose on an architecture; if this is unknown, the
    most that they lose on any."""
    words = opcode.split(".")
    types = [each for each in words if each in _TYPES]
    # wmma names only the types of D and C if A and B are binary16.
    result, a, b = types[:3] if len(types) > 2 else (*types[:1], "f16", "f16")
    shape = _SHAPE.search(opcode)
    if shape is not None:
        instruction = cast("Literal['mma', 'wmma', 'wgmma']", words[0])
        try:
            rules = rules_of(Kind(instruction, a, b, result, int(shape[1])), capability)
        except (UnsupportedInstruction, KeyError):
            pass
        else:
            return _of(rules, (a, b))
    return truncation_of_any((a, b))


def truncation_of_any(operands: Iterable[str]) -> Truncation:
    """The most that fused sums of products of these types lose on any architecture."""
    short = {each.removeprefix("float8_") for each in operands}
    return EIGHT_BITS if FP8 & short else SIXTEEN_BITS


def widest(found: Iterable[Truncation]) -> Truncation:
    """One that contains all of these."""
    each = list(found)
    return Truncation(
        max(one.step for one in each),
        min(one.bits for one in each),
        max(one.normal for one in each),
        max(one.smallest for one in each),
        max(one.denormal for one in each),
    )
