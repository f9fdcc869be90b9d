r"""In which arithmetic a kernel of fp32 matrices computes, and what relative error that allows.

`roundings` reads from a kernel's PTX how often a term of the sum is rounded to a narrower type. If
it is rounded r_f times to each type f with unit roundoff v_f, beside the n fp32 roundings of
`bounds`, then each term is multiplied by at most that many factors (1 + δ), so that

    |D − exact| ≤ ((1 + γ_n(u)) · Π_f (1 + v_f)^{r_f} − 1) · S + underflow.

That is Lemma 3.1 of Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., for factors
of several precisions; for products on tensor cores it is the bound of Blanchard, Higham, Lopez,
Mary and Pranesh, "Mixed Precision Block Fused Multiply-Add: Error Analysis and Application to GPU
Tensor Cores" (SIAM J. Sci. Comput. 42, 2020). Operands that are rounded once each and summed in
fp32 give r = 2. Sums that are kept in a narrow type are rounded at each of k steps, or at each
block of k for a tensor core: four steps at least (Fasi, Higham, Mikaitis and Pranesh, "Numerical
behavior of NVIDIA tensor cores", 2021). Tensor cores, and conversions toward zero, cut off: their
unit roundoff is twice as large.

Gradual underflow adds half of a type's smallest subnormal number for each rounding of an operand,
times the other operand.

A library that has no kernel for a whole epilogue keeps what one kernel leaves in the type of C and
reads it in the next. Where that type is narrower than the sums', each such store is one more
rounding: `stored` names those before the last, and `bounds` carries their errors on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemmkit.errors import UsageError, unknown_name
from gemmkit.problem import full_type_name


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point type: bits of its significand, and half its smallest subnormal number."""

    name: str
    bits: int
    tiny: float

    @property
    def unit(self) -> float:
        """The unit roundoff to nearest."""
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

# What a result passes through, in this order; the residual, the last of them, is stored anyway.
Step = Literal["product", "bias", "activation", "scale"]

# Steps of k that a tensor core adds up before it rounds, at least.
TENSOR_BLOCK = 4


@dataclass(frozen=True, slots=True)
class Rounded:
    """How often each term is rounded to a type.

    `times` is a fixed number; where `block` is not 0, once more for each so many steps of k,
    `rate` times. With `cut`, it is cut off instead of rounded to nearest.
    """

    format: Format
    times: int = 0
    block: int = 0
    rate: int = 1
    cut: bool = False

    def count(self, k: int) -> int:
        """Roundings of a term among k."""
        return self.times + (self.rate * -(-k // self.block) if self.block else 0)

    @property
    def unit(self) -> float:
        """By what factor, less one, a rounding may change a number."""
        return self.format.unit * (2 if self.cut else 1)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is rounded to which type on its way from A and B to C.

    `rounded` is empty for plain fp32. `tensor` says that tensor cores add up, `sums` are the types
    to which sums are rounded, not operands alone. `stored` are the steps of an epilogue after
    which a kernel leaves its result in the type of C for the next to read. `tolerance` replaces the
    bound: the allowed error as a share of S. `reason` says in a phrase what all that is taken from.
    """

    rounded: tuple[Rounded, ...] = ()
    tensor: bool = False
    sums: tuple[Format, ...] = ()
    tolerance: float | None = None
    stored: tuple[Step, ...] = ()
    reason: str = field(default="fp32", compare=False)

    @property
    def plain(self) -> bool:
        """Whether fp32's own bound holds."""
        return not (self.rounded or self.tensor or self.stored) and self.tolerance is None

    @property
    def operand_bits(self) -> int:
        """Bits of the narrowest type: integers with as many are not rounded."""
        return min((each.format.bits for each in self.rounded), default=24)

    @property
    def sum_bits(self) -> int:
        """Bits of the narrowest type to which sums are rounded."""
        return min((each.bits for each in self.sums), default=24)

    def relative(self, k: int, fp32: float) -> float:
        """The bound as a share of S, given that of fp32's own roundings.

        Finite for every k: (1 + v)^r is, where γ_r would have no value.
        """
        if self.tolerance is not None:
            return self.tolerance
        logs = sum(each.count(k) * math.log1p(each.unit) for each in self.rounded)
        return math.expm1(min(logs, 700.0) + math.log1p(fp32 * (2 if self.tensor else 1)))

    def underflow(self, k: int, largest_a: float, largest_b: float) -> float:
        """What gradual underflow may add to Σ|A|·|B|, given the largest magnitudes of both."""
        if self.tolerance is not None:
            return 0.0
        tiny = max((each.format.tiny for each in self.rounded), default=0.0)
        return 2 * tiny * k * (largest_a + largest_b + 2)


FP32 = Arithmetic()


def named_arithmetic(compute_dtype: str, tolerance: float | None) -> Arithmetic | None:
    """The arithmetic that a user names, or None if that is to be read from the kernel.

    Args:
        compute_dtype: a type of `COMPUTE_DTYPES` to which operands are rounded, and after a comma
            the one that sums are kept in where that is not fp32: `float16,float16`. May be empty.
            Short names do as well: see `full_type_name`.
        tolerance: the allowed |error| as a share of |α|·Σ|A|·|B| + |β·C|.

    Raises:
        UsageError: no such type, or a tolerance that is negative or not finite.
    """
    if tolerance is not None:
        if not 0 <= tolerance < math.inf:
            raise UsageError(f"a tolerance of {tolerance}: give a number of 0 or more")
        return Arithmetic(tolerance=tolerance, reason=f"a tolerance of {tolerance:g}, as asked for")
    if not compute_dtype:
        return None
    # In a CUDA source `float` is fp32.
    spoken = (each.strip() for each in compute_dtype.split(","))
    names = ["float32" if each == "float" else full_type_name(each) for each in spoken]
    unknown = [each for each in names if each not in COMPUTE_DTYPES]
    sums = ", and after a comma the type of the sums where that is not float32"
    if unknown:
        raise UsageError(unknown_name("compute type", unknown[0], COMPUTE_DTYPES, sums))
    if len(names) > 2:
        raise UsageError(f"'{compute_dtype}' names {len(names)} types: give one{sums}")
    operand, total = FORMATS.get(names[0]), FORMATS.get(names[-1]) if len(names) > 1 else None
    rounded = [Rounded(operand, 2)] if operand is not None else []
    if total is not None:
        rounded.append(Rounded(total, 2, block=1))
    words = f"operands in {names[0]}, sums in {names[1] if len(names) > 1 else 'float32'}"
    if names == ["float32"]:
        words = "fp32"
    return Arithmetic(
        tuple(rounded),
        tensor=operand is not None,
        sums=(total,) if total is not None else (),
        reason=f"{words}, as asked for",
    )
