r"""The arithmetic a kernel computes in, and the relative error that this allows.

`roundings` reads from a kernel's PTX how often a term of the sum is rounded to a narrower type. If
a term is rounded r_f times to each type f with unit roundoff v_f, in addition to the n fp32
roundings of `bounds`, it is multiplied by at most that many factors (1 + δ), so that

    |D − exact| ≤ ((1 + γ_n(u)) · Π_f (1 + v_f)^{r_f} − 1) · S + underflow.

That is Lemma 3.1 of Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., for factors
of several precisions; for products on tensor cores it is the bound of Blanchard, Higham, Lopez,
Mary and Pranesh, "Mixed Precision Block Fused Multiply-Add: Error Analysis and Application to GPU
Tensor Cores" (SIAM J. Sci. Comput. 42, 2020). Two operands, each rounded once and accumulated in
fp32, give r = 2. An accumulator of a narrow type is rounded at each of the k steps, or, on a tensor
core, once per block of at least four steps (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior
of NVIDIA tensor cores", 2021). A result to which atomic operations of a narrow type add is rounded
by each of them, and there may be k. A result that is loaded, added to and stored several times is
rounded by each store. Conversions toward zero
and instructions with directed rounding (.rz, .rm, .rp) are wrong by up to one unit in the last
place, not half of one, which doubles the unit roundoff (Higham, section 2.2). Tensor cores truncate
the terms of their sums: `truncation` has the factor that this adds to the product above.

A kernel that splits each operand x into a high part x_h = fl(x) and a low part fl(x − x_h) of a
type f has x to within v_f²·|x|. The products x_h·y_h + x_h·y_l + x_l·y_h lack x_l·y_l, at most
v_f²·(1 + v_f)²·|x·y|, and so are within 3·v_f² + O(v_f³) of x·y; see Fasi, Higham,
Lopez, Mary and Mikaitis, "Matrix Multiplication in Multiword Arithmetic: Error Analysis and
Application to GPU Tensor Cores" (SIAM J. Sci. Comput. 45, 2023), for two words. Four factors
(1 + v_f²) contain the higher orders, as v_f ≤ 1/8. The sum then has up to four times as many terms,
and a term passes through as many more additions in fp32. More parts are more exact than two.

`gemm_fp16x3` scales its operands first and promotes its sums, and so does `gemm_tf32x3`, without
scales: `split_products` has their bounds.

Gradual underflow adds half of a type's smallest subnormal number per rounding of an operand, times
the other operand.

A library without a kernel for a whole epilogue stores the intermediate result of each kernel in the
type of C, and the next kernel reads it. If that type is narrower than the accumulator type, each
such store is one more rounding. `stored` lists these steps except the last; `bounds` propagates
their errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemmkit.dtypes import full_type_name
from gemmkit.errors import UsageError, unknown_name
from gemmkit.float8_products import CHUNK as FLOAT8_CHUNK
from gemmkit.float8_products import FAST_SUMS, PROMOTED_SUMS
from gemmkit.split_products import (
    CHUNK_SCALED_PRODUCTS,
    LONGEST_CHUNK,
    TF32_CHUNK,
    TF32_PRODUCTS,
)
from gemmkit.split_products import SPLIT_PRODUCTS as IN_SPLIT_PRODUCTS
from gemmkit.verify.split_products import BY_CHUNK, IN_TF32, PART_BITS, SplitProducts
from gemmkit.verify.truncation import EIGHT_BITS, Truncation, truncation_of_any


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point type: significand bits, and half its smallest subnormal number (`tiny`)."""

    name: str
    bits: int
    tiny: float

    @property
    def unit(self) -> float:
        """The unit roundoff of rounding to nearest."""
        return 2.0**-self.bits


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format("tf32", 11, 2.0**-137),
        Format("float16", 11, 2.0**-25),
        Format("bfloat16", 8, 2.0**-134),
        Format("float8_e4m3", 4, 2.0**-10),
        Format("float8_e5m2", 3, 2.0**-17),
    )
}
COMPUTE_DTYPES = ("float32", *FORMATS)
FP32_FORMAT = Format("float32", 24, 2.0**-150)

# The steps of an epilogue, in this order. The residual is the last one, and is stored anyway.
Step = Literal["product", "bias", "activation", "scale"]

# The fewest steps of k that a tensor core accumulates before it rounds.
TENSOR_BLOCK = 4


# Roundings with the squared unit roundoff, and products for each of A·B, of operands in two parts.
SPLIT_ROUNDINGS, SPLIT_PRODUCTS = 4, 4


@dataclass(frozen=True, slots=True)
class Rounded:
    """How often each term is rounded to a type.

    `times` is a fixed count. If `block` is not 0, the term is also rounded `rate` times per `block`
    steps of k. `cut` means truncation instead of rounding to nearest. What is split into `parts` of
    the type has the unit roundoff to the power of their number.
    """

    format: Format
    times: int = 0
    block: int = 0
    rate: int = 1
    cut: bool = False
    parts: int = 1

    def count(self, k: int) -> int:
        """The number of roundings of one of k terms."""
        return self.times + (self.rate * -(-k // self.block) if self.block else 0)

    @property
    def unit(self) -> float:
        """The largest relative change that one rounding makes."""
        return (self.format.unit * (2 if self.cut else 1)) ** self.parts


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is rounded to which type between A and B and the result.

    `rounded` is empty for plain fp32. `tensor`: what the sums of tensor cores lose, if these
    accumulate: all products, or `promoted` of them at a time, whose sums are then added in fp32.
    `sums` are the types that accumulators, and not only operands, are rounded to. `directed`:
    arithmetic of the sums' type rounds toward zero or an infinity, which doubles its unit roundoff.
    `stored` are the steps of an epilogue after which a kernel stores its result in the type of C
    for the next kernel.
    `split`: products of parts, whose sums are promoted; all else is fp32 then.
    `tolerance` replaces the bound: the allowed error as a fraction of S. `reason` is a phrase that
    names the source of all this.
    """

    rounded: tuple[Rounded, ...] = ()
    tensor: Truncation | None = None
    promoted: int = 0
    sums: tuple[Format, ...] = ()
    tolerance: float | None = None
    stored: tuple[Step, ...] = ()
    directed: bool = False
    split: SplitProducts | None = None
    reason: str = field(default="fp32", compare=False)

    @property
    def plain(self) -> bool:
        """Whether fp32's own bound holds."""
        more = self.rounded or self.stored or self.directed
        other = self.tensor is not None or self.split is not None or self.tolerance is not None
        return not more and not other

    @property
    def widening(self) -> int:
        """By how much instructions other than a tensor core's enlarge the sums' unit roundoff."""
        return 2 if self.directed and self.tensor is None else 1

    @property
    def operand_bits(self) -> int:
        """Bits of the narrowest type: integers of that many bits are not rounded."""
        if self.split is not None:
            return PART_BITS
        return min((each.format.bits for each in self.rounded), default=24)

    @property
    def sum_bits(self) -> int:
        """Bits of the narrowest type that accumulators are rounded to, or of a fused sum."""
        kept = [each.bits for each in self.sums]
        if self.tensor is not None:
            kept.append(self.tensor.bits)
        if self.split is not None:
            kept.append(self.split.sum_bits)
        return min(kept, default=24)

    @property
    def of_lines(self) -> float:
        """What is lost in proportion to X·Σ|b| + Y·Σ|a|, where X and Y are the largest magnitudes
        of the row of A and the column of B."""
        if self.split is None or self.tolerance is not None:
            return 0.0
        return self.split.of_lines

    def relative(self, k: int, fp32: float) -> float:
        """The bound as a fraction of S, given the bound `fp32` of the fp32 roundings.

        It is finite for every k: (1 + v)^r is finite where γ_r is undefined.
        """
        if self.tolerance is not None:
            return self.tolerance
        logs = sum(each.count(k) * math.log1p(each.unit) for each in self.rounded)
        if self.tensor is not None:
            logs += self.tensor.logarithm(min(k, self.promoted or k))
        return math.expm1(min(logs, 700.0) + math.log1p(fp32))

    def underflow(self, k: int, largest_a: float, largest_b: float) -> float:
        """What gradual underflow may add to Σ|A|·|B| over k terms.

        `largest_a` and `largest_b` are the largest magnitudes of A and B.
        """
        if self.tolerance is not None:
            return 0.0
        tiny = max((each.format.tiny for each in self.rounded), default=0.0)
        found = 2 * tiny * k * (largest_a + largest_b + 2)
        if self.tensor is not None:
            found += self.tensor.absolute(k, largest_a, largest_b)
        if self.split is not None:
            found += self.split.underflow(k, largest_a, largest_b)
        return found


FP32 = Arithmetic()


def named_arithmetic(compute_dtype: str, tolerance: float | None) -> Arithmetic | None:
    """The arithmetic that the user names, or None if it is to be read from the kernel.

    Args:
        compute_dtype: the type of `COMPUTE_DTYPES` that operands are rounded to, optionally
            followed by a comma and the accumulator type if it is not fp32: `float16,float16`. May
            be empty. Short names are accepted: see `full_type_name`.
        tolerance: the allowed |error| as a fraction of |α|·Σ|A|·|B| + |β·C|.

    Raises:
        UsageError: the type is unknown, or the tolerance is negative or not finite.
    """
    if tolerance is not None:
        if not 0 <= tolerance < math.inf:
            raise UsageError(f"the tolerance is {tolerance}: give a finite number of 0 or more")
        return Arithmetic(tolerance=tolerance, reason=f"a tolerance of {tolerance:g}, as requested")
    if not compute_dtype:
        return None
    if compute_dtype == IN_SPLIT_PRODUCTS:
        return Arithmetic(
            split=SplitProducts(),
            reason="operands scaled by line and split into high and low parts in float16; sums on "
            f"tensor cores over at most {LONGEST_CHUNK} of k, added in fp32",
        )
    if compute_dtype == CHUNK_SCALED_PRODUCTS:
        return Arithmetic(
            split=BY_CHUNK,
            reason="operands scaled by line, in each chunk of k, and split into high and low parts "
            f"in float16; sums on tensor cores over at most {LONGEST_CHUNK} of k, added in fp32",
        )
    if compute_dtype == TF32_PRODUCTS:
        return Arithmetic(
            split=IN_TF32,
            reason="operands split into high and low parts in tf32; sums on tensor cores over "
            f"{TF32_CHUNK} of k, added in fp32",
        )
    if compute_dtype in (PROMOTED_SUMS, FAST_SUMS):
        promoted = compute_dtype == PROMOTED_SUMS
        chunks = f" over {FLOAT8_CHUNK} of k, added in fp32" if promoted else ""
        return Arithmetic(
            tensor=EIGHT_BITS,
            promoted=FLOAT8_CHUNK if promoted else 0,
            reason=f"sums with {EIGHT_BITS.bits} bits on tensor cores{chunks}",
        )
    # In a CUDA source `float` is fp32.
    spoken = (each.strip() for each in compute_dtype.split(","))
    names = ["float32" if each == "float" else full_type_name(each) for each in spoken]
    unknown = [each for each in names if each not in COMPUTE_DTYPES]
    sums = ", and after a comma the accumulator type if it is not float32"
    if unknown:
        raise UsageError(unknown_name("compute type", unknown[0], COMPUTE_DTYPES, sums))
    if len(names) > 2:
        raise UsageError(f"'{compute_dtype}' names {len(names)} types: give one{sums}")
    operand, total = FORMATS.get(names[0]), FORMATS.get(names[-1]) if len(names) > 1 else None
    rounded = [Rounded(operand, 2)] if operand is not None else []
    if total is not None:
        rounded.append(Rounded(total, 2, block=1))
    words = f"operands in {names[0]}, accumulators in {names[1] if len(names) > 1 else 'float32'}"
    if names == ["float32"]:
        words = "fp32"
    return Arithmetic(
        tuple(rounded),
        tensor=truncation_of_any([operand.name]) if operand is not None else None,
        sums=(total,) if total is not None else (),
        reason=f"{words}, as requested",
    )
