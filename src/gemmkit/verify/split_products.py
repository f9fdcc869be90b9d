r"""How far products of fp32 in three products of fp16 parts may be from exact ones.

The scheme is that of `gemmkit.split_products`; u = 2^-24. Let x' = x·2^s, of a line (a row of A or
a column of B) whose largest element is in [2^14, 2^15), and 2^e ≤ |x'| < 2^(e+1).

**Parts.** high = fl(x') is within 2^(e-11) of x', or 2^-25 if it is subnormal. The rest x' − high
is exact in fp32 and at most 2^(e-11); low is within 2^(e-23) of it, or 2^-25 if it is subnormal. So

    x' = high + low + Δ,    |Δ| ≤ 2u·|x'| + 2^-25,    |low| ≤ 2^-11·|x'|,

where 2^-25 is at most 2^-39 of the line's largest element. Left out are x·Δy, y·Δx and low·low:

    Σ|x·y − parts| ≤ 8u·(1 + 2^-22)·Σ|x·y| + 2^-39·(X·Σ|y| + Y·Σ|x|)·(1 + 2^-15),

with X and Y the largest magnitudes of both lines: 2u for each operand, 4u for low·low. That is the
analysis of Fasi, Higham, Lopez, Mary and Mikaitis, "Matrix Multiplication in Multiword Arithmetic:
Error Analysis and Application to GPU Tensor Cores" (SIAM J. Sci. Comput. 45, 2023), for two words
of binary16 with round to nearest, and with gradual underflow, which scaling makes relative to the
line.

**Tensor core.** A fused sum of P = 16 products p_i and C (`gemmkit.emulator.numerics.rules`)
truncates each product at F = 25 bits below the largest term, and the result to κ = 23 bits:

    |fused − exact| ≤ n·2^-F·max(|C|, |p_i|) + 2^-κ·|fused|,    n the products that are not zero.

C has 24 bits, of which F keeps all. Truncation is toward zero, so that |fused| ≤ |C| + Σ|p_i|: each
sum of a chunk is at most the sum of magnitudes of the parts' products so far, and that is at most
(1 + 2^-10)²·S_c, where S_c = Σ|x·y| over the chunk. Products with a low part are at most
2^-10·(1 + 2^-11)·S_c: fused sums of these alone, those of the chunk's first stage, lose little.
A chunk of c elements in stages of g has

    c + 2·(c − g) products and ⌈c/P⌉ + 2·⌈(c − g)/P⌉ fused sums                    (c > g)

that may lose 2^-F and 2^-κ of S_c each: for c = 64, 40u if g = 64, and 80u if g = 32. An error is
relative to its own chunk's S_c; these add up to S, so that the bound **does not grow with k**. See
Blanchard, Higham and Mary, "A Class of Fast and Accurate Summation Algorithms" (SIAM J. Sci.
Comput. 42, 2020): blocks summed within, and between.

A subnormal part counts with the exponent of 2^-14, and may so make the largest exponent that of a
product smaller than it says, at most 2^-14 times the other factor. Each fused sum loses at most
P·2^-F·2^-14·max|y'| more, in all 3·2^-35·(Σ|x'| + Σ|y'|) ≤ 3·2^-49·(Y·Σ|x| + X·Σ|y|) in units of
x and y.

**Promotion.** The sums of chunks are added in fp32, rounded to nearest: to zero, which is exact,
then ⌈k/64⌉ − 1 times. Where q blocks of a cluster share k, one of b stages of 32 has ⌈b/2⌉ chunks,
and there are q − 1 more additions: if each has two stages or more, no more in all than by a single
block, else at most q − 1 ≤ 3.

**Scaling back** multiplies by a power of two: exact, or one rounding of a subnormal result, of at
most half the smallest subnormal number, as for any product in fp32.

Together, with p = max(⌈k/64⌉ − 1, 3) additions,

    |fl(A·B) − A·B| ≤ ((1 + e)·(1 + γ_p) − 1)·|A|·|B| + ν·(X·Σ|y| + Y·Σ|x|),

e = 8u + 80u·(1 + 2^-9) + …, or 88.3u, and ν = 2^-39·(1 + 2^-4), which contains the higher orders.
That is at most γ_k, the bound of k fused multiply-adds in fp32, from k = `LEAST_K` on, and k/64 in
place of k for long sums. The second term is norm-wise: it matters only where most of a line's
elements are below 2^-16 of the largest.

Integers of up to 11 bits are their high part. A sum of their products is exact up to 2^24.

A tile in which a line has an element that is infinite or NaN is multiplied by fused multiply-adds
of A and B instead: its finite results have the error γ_k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmkit.emulator.numerics.rules import Kind, Rules, rules_of
from gemmkit.split_products import CHUNK, MOST_BLOCKS, SHORTEST_STAGE

UNIT = 2.0**-24
# Significand bits of a part.
PART_BITS = 11
# Relative errors of both operands' parts, and of low × low.
SPLIT = 8 * UNIT * (1 + 2.0**-22)
# What gradual underflow of parts loses, relative to the largest element of their line.
UNDERFLOW = 2.0**-39 * (1 + 2.0**-4)
# The most that products with a low part amount to, and those of all parts, relative to |x·y|.
OF_LOW, OF_ALL = 2.0**-10 * (1 + 2.0**-11), (1 + 2.0**-10) ** 2


def _wgmma() -> Rules:
    return rules_of(Kind("wgmma", "f16", "f16", "f32", 16), (9, 0))


@dataclass(frozen=True, slots=True)
class SplitProducts:
    """The error of sums of products of parts; see the module's docstring.

    `stage`: elements of k whose products with a low part come before those without.
    """

    stage: int = SHORTEST_STAGE

    @property
    def sum_bits(self) -> int:
        """Bits of a fused sum: sums of integers below two to their power are exact."""
        rules = _wgmma()
        return min(rules.fraction_bits, rules.kept_bits) + 1

    def of_chunk(self, length: int) -> float:
        """The largest error of a chunk of so many elements, relative to its Σ|x·y|."""
        rules = _wgmma()

        def lost(products: int, sums: int) -> float:
            return products * 2.0**-rules.fraction_bits + sums * 2.0**-rules.kept_bits

        first = min(length, self.stage)
        after = length - first
        large = lost(
            length + 2 * after,
            sum(-(-each // rules.products) for each in (first, after, after, after)),
        )
        small = lost(2 * first, 2 * -(-first // rules.products))
        return SPLIT + OF_ALL * large + OF_LOW * small

    def additions(self, k: int) -> int:
        """The most additions in fp32 that the sum of a chunk goes through."""
        return max(-(-k // CHUNK), MOST_BLOCKS) - 1 if k else 0

    def logarithm(self, k: int) -> float:
        """log(1 + e) for sums of k products, without the additions in fp32."""
        return math.log1p(self.of_chunk(min(k, CHUNK))) if k else 0.0
