"""The product of a tensor-core instruction in NumPy, bit for bit: raw bits in, raw bits out.

A fused sum of C and some products (`rules` has the numbers of each architecture):

1. A number below the smallest normal one counts with that one's exponent. A product is exact, with
   the sum of its factors' exponents, so that its significand is in [0, 4). tf32 ignores the low 13
   bits of a word.
2. The sum's exponent is the largest among its terms that are not zero, but at least -133. Every
   term is truncated toward zero at a number of bits below it, and the rest is exact: the order is
   of no consequence, and nothing overflows before the end.
3. An f32 result is truncated toward zero, to infinity from 2^128 on; an f16 result is rounded to
   nearest even. Results below the smallest normal number are kept, and a zero is +0.
4. NaN (an operand, infinity times zero, a sum of opposite infinities) is 0x7FFFFFFF, in f16 0x7FFF.

float64 holds every product and every sum of truncated terms exactly.
"""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.numerics.formats import (
    FORMATS,
    Bits,
    Exponents,
    Format,
    Numbers,
    exponents_of,
    numbers_of,
    raw_of,
)
from gemmkit.emulator.numerics.fused64 import multiply_chain
from gemmkit.emulator.numerics.rules import FLOOR, Capability, Kind, Rules, rules_of

# Less than any exponent.
_NONE = -(1 << 20)


def multiply(kind: Kind, capability: Capability, a: Bits, b: Bits, c: Bits) -> Bits:
    """D = A × B + C as one instruction of an architecture computes it.

    Args:
        kind: the instruction.
        capability: compute capability of the chip, such as (9, 0).
        a: raw bits, (…, M, K); unsigned integers of the operand's width, u32 for tf32.
        b: raw bits, (…, K, N).
        c: raw bits, (…, M, N).

    Raises:
        UnsupportedInstruction: the architecture has no such instruction.
    """
    rules = rules_of(kind, capability)
    if rules.method == "integer":
        return _multiply_integers(kind, a, b, c)
    if rules.method == "chain":
        return multiply_chain(a, b, c)
    if rules.method == "widened":
        return _multiply_widened(kind, rules, a, b, c)
    for start in range(0, kind.depth, rules.products):
        steps = slice(start, start + rules.products)
        factors = (a[..., steps], FORMATS[kind.a]), (b[..., steps, :], FORMATS[kind.b])
        c = _fused_sum(*factors, (c, FORMATS[kind.result]), rules)
    return c


def _fused_sum(
    a: tuple[Bits, Format], b: tuple[Bits, Format], c: tuple[Bits, Format], rules: Rules
) -> Bits:
    left, right, addend = (numbers_of(*each) for each in (a, b, c))
    with np.errstate(invalid="ignore"):
        products = left[..., :, :, None] * right[..., None, :, :]
    exponents = (
        exponents_of(left, a[1])[..., :, :, None] + exponents_of(right, b[1])[..., None, :, :]
    )
    terms = np.concatenate([products, addend[..., :, None, :]], axis=-2)
    exponents = np.concatenate([exponents, exponents_of(addend, c[1])[..., :, None, :]], axis=-2)
    top = np.where(terms != 0, exponents, _NONE).max(axis=-2).clip(FLOOR)
    bits = rules.fraction_bits
    with np.errstate(invalid="ignore"):
        cut = np.trunc(np.ldexp(terms, bits - top[..., :, None, :]))
        # Infinities and NaN go through the additions as IEEE 754 has it.
        total = np.ldexp(cut.sum(axis=-2), top - bits)
    return raw_of(_rounded(total, c[1], rules), c[1])


def _rounded(total: Numbers, to: Format, rules: Rules) -> Numbers:
    """To nearest even for f16, else toward zero with as many bits as the rules keep."""
    kept = to.fraction_bits if to.bits == 16 else rules.kept_bits
    with np.errstate(invalid="ignore"):
        last: Exponents = exponents_of(total, to) - kept
        scaled = np.ldexp(total, -last)
        rounded = np.ldexp(np.rint(scaled) if to.bits == 16 else np.trunc(scaled), last)
    beyond = np.abs(rounded) >= 2.0 ** (1 - to.lowest + 1)
    return np.where(beyond, np.copysign(np.inf, rounded), rounded)


def _multiply_widened(kind: Kind, rules: Rules, a: Bits, b: Bits, c: Bits) -> Bits:
    half, result = FORMATS["f16"], FORMATS[kind.result]
    left, right = (raw_of(numbers_of(x, FORMATS[of]), half) for x, of in ((a, kind.a), (b, kind.b)))
    first = np.arange(kind.depth) % 4 < 2
    total = np.zeros_like(c)
    for steps in (first, ~first):
        factors = (left[..., steps], half), (right[..., steps, :], half)
        total = _fused_sum(*factors, (total, result), rules)
    width = np.float16 if kind.result == "f16" else np.float32
    with np.errstate(all="ignore"):
        added = total.view(width) + c.view(width)
    found: Bits = np.where(np.isnan(added), c.dtype.type(result.nan), added.view(c.dtype))
    return found


def _multiply_integers(kind: Kind, a: Bits, b: Bits, c: Bits) -> Bits:
    left, right = (
        x.view(np.int8 if of == "s8" else np.uint8).astype(np.int64)
        for x, of in ((a, kind.a), (b, kind.b))
    )
    total = left @ right + c.view(np.int32)
    if kind.saturates:
        limits = np.iinfo(np.int32)
        total = np.clip(total, limits.min, limits.max)
    return total.astype(np.uint32)
