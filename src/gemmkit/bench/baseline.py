"""`Baseline`: a library that computes the same product, to be compared with, and its `Way`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gemmkit.devices.device import Work
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.float8_products import FAST_SUMS, PROMOTED_SUMS
from gemmkit.problem import GemmProblem
from gemmkit.verify import Arithmetic
from gemmkit.verify.arithmetic import FORMATS, FP32, Rounded, Step, named_arithmetic
from gemmkit.verify.encoding import ELEMENTS
from gemmkit.verify.truncation import truncation_of_any

Arguments = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a problem: a launch on each set of buffers.

    `stored` are the steps after which one of its kernels stores its result for another to read (see
    `stored_steps`). `choice` is what records call the way, where that is not "default" or "best".
    `judged` are the same launches with the result left in C, of works that leave it in an array
    that the library allocates; by default they are the works.
    """

    works: Sequence[Work]
    stored: tuple[Step, ...] = ()
    choice: str = ""
    judged: Sequence[Work] = ()


class Baseline(Protocol):
    """A library that computes the same product from the same buffers."""

    name: str

    def candidates(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """Ways to compute the problem, by name, on every set of buffers.

        At least one; each does what the kernel does, epilogue and all. Where the library chooses
        for itself, its choice is the first.

        Raises:
            UnsupportedProblem: the library has no way to compute it.
        """


def steps_of(epilogue: Epilogue) -> list[Step]:
    """The steps that an epilogue has, but for the residual."""
    found: list[Step] = ["product"]
    if epilogue.bias:
        found.append("bias")
    if epilogue.activation != "none":
        found.append("activation")
    if epilogue.scale != 1:
        found.append("scale")
    return found


def stored_steps(epilogue: Epilogue, fused: Sequence[Step] = ("product",)) -> tuple[Step, ...]:
    """The steps after which the result is stored, before the last time, where the first kernel
    computes `fused` and each further step has a kernel of its own.

    A ReLU alone stores what it has read, or zero: that rounds nothing.
    """
    steps = steps_of(epilogue)
    first = [each for each in steps if each in fused]
    rest = [each for each in steps if each not in fused]
    if rest and rest[0] == "activation" and epilogue.activation == "relu":
        # As if the first kernel had it.
        first.append(rest.pop(0))
    elif "activation" in rest and epilogue.activation == "relu":
        rest.remove("activation")
    kernels: list[Step] = [first[-1], *rest]
    return tuple(kernels if epilogue.residual else kernels[:-1])


def arithmetic_of(problem: GemmProblem, stored: tuple[Step, ...]) -> Arithmetic:
    """fp32 sums that round once, or once more after each of some steps if C's type is narrower; of
    operands that are cut to TF32 on tensor cores where the problem allows it. Tensor cores add up
    products of 8 bits, 128 of k at a time unless the problem allows more."""
    kept, sums = ELEMENTS[problem.result_dtype], ELEMENTS[problem.sum_dtype]
    found, reason = FP32, "fp32 sums"
    if problem.dtype in OPERAND_TYPES:
        fast = problem.precision == "fast" and not problem.scales.of_chunks
        found = named_arithmetic(FAST_SUMS if fast else PROMOTED_SUMS, None) or FP32
        reason = found.reason
    if problem.precision == "tf32":
        reason = "operands in tf32, fp32 sums"
        cut = Rounded(FORMATS["tf32"], 2, cut=True)
        found = Arithmetic((cut,), tensor=truncation_of_any(["tf32"]), reason=reason)
    if not stored or kept.bits >= sums.bits:
        return found
    steps = " and ".join(f"the {each}" for each in stored)
    reason += f", stored as {problem.result_dtype} between kernels: after {steps}"
    return replace(found, stored=stored, sums=(kept,), reason=reason)
