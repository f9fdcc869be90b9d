r"""How far products of fp32 in three products of parts may be from exact ones: of fp16, or of TF32.

The scheme is that of `gemmkit.split_products`; u = 2^-24. Let x' = x·2^s, of a line (a row of A or
a column of B) whose largest element is in [2^14, 2^15), and 2^e ≤ |x'| < 2^(e+1).

**Parts.** high = fl(x') is within 2^(e-11) of x', or 2^-25 if it is subnormal. The rest x' − high
is exact in fp32 and at most 2^(e-11); low is within 2^(e-23) of it, or 2^-25 if it is subnormal. So

    x' = high + low + δ,    |δ| ≤ 2u·|x'| + 2^-25,    |low| ≤ 2^-11·|x'|,

where 2^-25 is at most 2^-39 of the line's largest element. Left out are x·δy, y·δx and low·low:

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
2^-10·(1 + 2^-11)·S_c; as they come first, their fused sums lose little. The others of a chunk of c
elements are c products in ⌈c/P⌉ fused sums, which may lose 2^-F and 2^-κ of S_c each: c/2 + c/8
units u, 20u for c = 32 and 40u for c = 64. (If the small ones of half a chunk came after the large
ones of the other, it would be 80u.) An error is relative to its own chunk's S_c; these add up to S,
so that the bound **does not grow with k**: the blocked summation of Blanchard, Higham and Mary, "A
Class of Fast and Accurate Summation Algorithms" (SIAM J. Sci. Comput. 42, 2020).

A subnormal part counts with the exponent of 2^-14, and may so make the largest exponent that of a
product smaller than it says, at most 2^-14 times the other factor. Each fused sum loses at most
P·2^-F·2^-14·max|y'| more, in all 3·2^-35·(Σ|x'| + Σ|y'|) ≤ 3·2^-49·(Y·Σ|x| + X·Σ|y|) in units of
x and y.

**Promotion.** The sums of chunks are added in fp32, rounded to nearest: to zero, which is exact,
then ⌈k/c⌉ − 1 times. Where q ≤ 4 blocks of a cluster share k, the largest share has ⌈⌈k/c⌉/q⌉
chunks, and there are q − 1 more additions; that is no more in all, or at most 3 where a share is
one chunk.

**Scaling back** multiplies by a power of two: exact, or one rounding of a subnormal result, of at
most half the smallest subnormal number, as for any product in fp32.

Together, with p = max(⌈k/c⌉ − 1, 3) additions,

    |fl(A·B) − A·B| ≤ ((1 + e)·(1 + γ_p) − 1)·|A|·|B| + ν·(X·Σ|y| + Y·Σ|x|),

where e is 28.1u for c = 32 and 48.2u for c = 64, and ν = 2^-39·(1 + 2^-4) contains the higher
orders. For any c of a kernel that is 51.2u at k = 64, 63.2u at 1,024 and 28u + k/32 units later: at
most γ_k, the bound of k fused multiply-adds in fp32, for each k from 35 on. The second term is
norm-wise: it matters only where most of a line's elements are below 2^-16 of the largest.

Integers of up to 11 bits are their high part. A sum of their products is exact up to 2^24.

A tile in which a line has an element that is infinite or NaN is multiplied by fused multiply-adds
of A and B instead: its finite results have the error γ_k.

**Scales of chunks.** A line may have a scale for each chunk, which the promotion undoes: it adds
2^-(s+t) times the chunk's sum, by a fused multiply-add that rounds once, as an addition does. The
analyses of parts and of tensor cores then hold within each chunk, with X_c and Y_c, the largest
magnitudes there, and add up to no more than above: Σ_c X_c·Σ_c|y| ≤ X·Σ|y|. Elements lose bits to
the largest of their chunk alone, not of their line. Where a sum of fp32 is subnormal, promotion
may lose half the smallest subnormal number, as each fused multiply-add of FFMA may. But sums do
not have the scales of lines: where one overflows, though the total may not, fused multiply-adds of
A and B take its place, with the error γ_k. None does unless k products of the largest elements
are 2^127.

**Parts of TF32** need no scales: their exponents are those of fp32. Of 2^e ≤ |x| < 2^(e+1), high is
within 2^(e-11) of x, and the rest x − high, which is exact in fp32, is a multiple of 2^(e-23) of at
most 2^12 units. The tensor core ignores what lies below its eleventh bit: at most one unit. Below
2^-126 numbers of TF32 are multiples of 2^-136; a rest of less counts as zero. So

    x = high + low + δ,    |δ| ≤ 2u·|x| + 2^-136,    |low| ≤ 2^-11·|x|,

and the same products as above are left out: 8u·Σ|x·y|, and 2^-136·(Σ|x| + Σ|y|) with the higher
orders. It takes elements below 2^-113 for the latter to be more than the former.

Chunks are c = 8 elements, in the same order, of which `mma.sync` adds up P = 4 at a time with
F = 24 bits on compute capability 8 (8 with 25 on Hopper, which loses less): c·2^-F + c/P·2^-κ are
12u, so that e is 20.04u. No blocks share k: p is ⌈k/8⌉ − 1. That is 27.1u at k = 64, 147u at 1,024
and 12u + k/8 units later, at most γ_k from k = 23 on. Subnormal parts count with the exponent of
2^-126: of each of 3k products a fused sum may lose 2^-F·2^-126 times the other factor more.

Sums that are not finite are computed again by fused multiply-adds of A and B; where finite operands
may make such, results have the error γ_k. They cannot if none of them is 2^128·(1 − 2^-12) or more,
which TF32 rounds to infinity, nor k products of the largest are 2^127.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.numerics.rules import Kind, Rules, rules_of
from gemmkit.split_products import LONGEST_CHUNK, MOST_BLOCKS, SHORTEST_CHUNK, TF32_CHUNK
from gemmkit.verify.truncation import truncation_of

UNIT = 2.0**-24
# Significand bits of a part.
PART_BITS = 11
# Relative errors of both operands' parts, and of low × low.
SPLIT = 8 * UNIT * (1 + 2.0**-22)
# What gradual underflow of parts loses, relative to the largest element of their line.
UNDERFLOW = 2.0**-39 * (1 + 2.0**-4)
# The most that products with a low part amount to, and those of all parts, relative to |x·y|.
OF_LOW, OF_ALL = 2.0**-10 * (1 + 2.0**-11), (1 + 2.0**-10) ** 2


# The tensor cores' sums: of Hopper's wgmma, and of mma.sync where they lose the most.
OF_WGMMA = rules_of(Kind("wgmma", "f16", "f16", "f32", 16), (9, 0))
MMA, AMPERE = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", (8, 0)
OF_MMA = rules_of(Kind("mma", "tf32", "tf32", "f32", 8), AMPERE)
# What subnormal parts of TF32 lose of each element; the least number that TF32 rounds to infinity.
TF32_UNDERFLOW = 2.0**-136 * (1 + 2.0**-4)
TF32_OVERFLOW = 2.0**128 * (1 - 2.0**-12)


@dataclass(frozen=True, slots=True)
class SplitProducts:
    """The error of sums of products of parts; see the module's docstring.

    `chunks` are the lengths of chunks that a kernel may have, `blocks` the most that share the k of
    a result, `rules` those of the tensor cores' sums. `of_lines` is what parts underflow by in
    proportion to X·Σ|y| + Y·Σ|x|; `tiny`, of parts without a scale, that of each element.
    `overflows`: sums are added without the scales of lines, and may be infinite where the result is
    not.
    """

    chunks: tuple[int, ...] = (SHORTEST_CHUNK, LONGEST_CHUNK)
    blocks: int = MOST_BLOCKS
    rules: Rules = OF_WGMMA
    of_lines: float = UNDERFLOW
    tiny: float = 0.0
    overflows: bool = False

    @property
    def sum_bits(self) -> int:
        """Bits of a fused sum: sums of integers up to two to their power are exact."""
        return min(self.rules.fraction_bits, self.rules.kept_bits) + 1

    def relative(self, k: int, others: int = 0) -> float:
        """The bound relative to S of sums of k products, each of which is rounded to fp32 `others`
        more times."""
        if not k:
            return _gamma(others)
        return max(
            of_chunk(min(k, chunk), self.rules) * (1 + sums) + sums
            for chunk in self.chunks
            for sums in (self.in_fp32(k, chunk, others),)
        )

    def in_fp32(self, k: int, chunk: int, others: int = 0) -> float:
        """What adding the sums of chunks of this length in fp32 loses, and `others` roundings."""
        return _gamma(max(-(-k // chunk), self.blocks) - 1 + others)

    def underflow(self, k: int, largest_a: float, largest_b: float) -> float:
        """What gradual underflow adds to a sum of k products, beside what is in proportion to
        lines, given the largest magnitudes of A and B."""
        if not self.tiny:
            return 0.0
        lost = truncation_of(MMA, AMPERE).absolute(3 * k, largest_a, largest_b)
        return k * self.tiny * (largest_a + largest_b) + lost

    def may_overflow(self, k: int, largest_a: float, largest_b: float) -> bool:
        """Whether parts of finite numbers, or their sums, may be infinite; those with the scales of
        whole lines never are."""
        if not self.overflows:
            return False
        beyond = bool(self.tiny) and max(largest_a, largest_b) >= TF32_OVERFLOW
        return beyond or k * largest_a * largest_b >= 2.0**127


BY_CHUNK = SplitProducts(overflows=True)
IN_TF32 = SplitProducts((TF32_CHUNK,), 1, OF_MMA, of_lines=0.0, tiny=TF32_UNDERFLOW, overflows=True)


def _gamma(roundings: int) -> float:
    return roundings * UNIT / (1 - roundings * UNIT)


def of_chunk(length: int, rules: Rules = OF_WGMMA) -> float:
    """The largest error e of the sum of a chunk, relative to its Σ|x·y|."""
    large = sum(lost_in_sums(length, rules))
    return SPLIT + OF_ALL * large + 2 * OF_LOW * large


def lost_in_sums(length: int, rules: Rules) -> tuple[float, float]:
    """What so many products on tensor cores lose: each cut off, and their fused sums truncated."""
    fused = -(-length // rules.products)
    return length * 2.0**-rules.fraction_bits, fused * 2.0**-rules.kept_bits
