"""How each architecture's tensor cores add: one table, with the source of each rule.

A tensor core does not chain fused multiply-adds. It adds C and a number of products in one fused
sum: the largest exponent among the terms that are not zero, at least -133, is the sum's exponent,
every term is truncated toward zero at a fixed number of bits below it, and the truncated terms are
added exactly (`model` has the details). Architectures differ in the number of these bits, in how
many products a fused sum takes, and in which types they have instructions for.

Hopper's rules hold for every bit of 8.4 million results of an H100, adversarial ones among them.
Those of the other architectures are published models: P. Xie, Y. Wang, F. Yang and M. Yang,
"MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores" (arXiv 2511.10909), and
F. A. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004). The
first lets a zero count as a term of exponent -126, which an H100 does not, so that Hopper's floor
of -133 is used for all. Which instructions ptxas 13.5 makes of an fp8 `mma.sync` is read from its
output for each architecture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemmkit.errors import UnsupportedInstruction

Capability = tuple[int, int]
# The least exponent that a fused sum has.
FLOOR = -133
# Bytes of one element of A.
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "f64": 8, "s8": 1, "u8": 1}
FP8 = frozenset(["e4m3", "e5m2"])
INTEGERS = frozenset(["s8", "u8"])

# fused: sums of `products` products and C, one after the other along k. widened: not an instruction
# of the chip; fp8 is widened to f16, the products of the k with k % 4 < 2 are one fused sum from
# zero and the others are added in a second one, and C is added last, rounded to nearest even.
# chain: a fused multiply-add per k, from C on. integer: exact in 32 bits.
Method = Literal["fused", "widened", "chain", "integer"]
# measured: equal to all results of a chip. parts: put together of instructions that were measured.
# published: by a published model that was not confirmed here. defined: there is one exact result.
Evidence = Literal["measured", "parts", "published", "defined"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor-core instruction multiplies: types of A, B and of C and D, and its depth in k.

    `saturates`: an integer result is clamped to 32 bits instead of wrapping around.
    """

    instruction: Literal["mma", "wmma", "wgmma"]
    a: str
    b: str
    result: str
    depth: int
    saturates: bool = False

    def __str__(self) -> str:
        operands = self.a if self.a == self.b else f"{self.a} × {self.b}"
        name = "mma.sync" if self.instruction == "mma" else self.instruction
        return f"{name} {operands} → {self.result}"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a kind of instruction adds.

    A fused sum truncates its terms at `fraction_bits` bits below its exponent; an f32 result keeps
    `kept_bits` bits of its fraction, an f16 result is rounded to nearest even.
    """

    method: Method
    evidence: Evidence
    fraction_bits: int = 0
    kept_bits: int = 0
    products: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """The tensor cores of an architecture, from compute capability `first` on.

    `fraction_bits` is for f16, bf16 and tf32. A fused sum takes `bytes_of_a` bytes of a row of A.
    `fp8` are the fraction bits and kept bits of fp8, None if it has no such instruction for
    `mma.sync`; `fp8_wgmma` the same for wgmma.
    """

    name: str
    first: Capability
    fraction_bits: int
    bytes_of_a: int
    fp8: tuple[int, int] | None = None
    fp8_wgmma: tuple[int, int] | None = None
    evidence: Evidence = "published"


GENERATIONS = (
    Generation("Volta", (7, 0), 23, 8),
    Generation("Turing", (7, 5), 24, 16),
    Generation("Ampere", (8, 0), 24, 16),
    Generation("Ada", (8, 9), 24, 16, fp8=(13, 13)),
    Generation("Hopper", (9, 0), 25, 32, fp8_wgmma=(13, 13), evidence="measured"),
    Generation("Blackwell", (10, 0), 25, 32),
    Generation("RTX Blackwell", (12, 0), 25, 32, fp8=(25, 23)),
)
# The first architectures with the types; Volta has other shapes of mma.sync than those here.
_VOLTA, _TURING = (7, 0), (7, 5)
_LEAST: dict[str, Capability] = {
    "f16": _VOLTA,
    **dict.fromkeys(INTEGERS, (7, 2)),
    **dict.fromkeys(("bf16", "tf32", "f64"), (8, 0)),
    **dict.fromkeys(FP8, (8, 9)),
}


def generation_of(capability: Capability) -> Generation:
    """The tensor cores of a compute capability; before Volta there are none.

    Raises:
        UnsupportedInstruction: it has no tensor cores.
    """
    found = [each for each in GENERATIONS if each.first <= capability]
    if not found:
        major, minor = capability
        raise UnsupportedInstruction(
            f"compute capability {major}.{minor} has no tensor cores; the first with them is 7.0"
        )
    return found[-1]


def rules_of(kind: Kind, capability: Capability) -> Rules:
    """The rules of a kind of instruction on an architecture.

    Raises:
        UnsupportedInstruction: the architecture has no such instruction.
    """
    generation = generation_of(capability)
    least = max(_LEAST[kind.a], _LEAST[kind.b], _TURING if kind.instruction == "mma" else _VOLTA)
    if kind.instruction == "wgmma" and generation.name != "Hopper":
        raise UnsupportedInstruction(f"wgmma is an instruction of Hopper, not of {generation.name}")
    if kind.instruction == "wgmma" and kind.a == "f64":
        raise UnsupportedInstruction("wgmma has no fp64")
    if capability < least:
        raise UnsupportedInstruction(
            f"{kind} needs compute capability {least[0]}.{least[1]} or later, and this is "
            f"{capability[0]}.{capability[1]} ({generation.name})"
        )
    evidence = generation.evidence
    if kind.a in INTEGERS:
        return Rules("integer", "defined")
    if kind.a == "f64":
        return Rules("chain", evidence)
    products = min(kind.depth, generation.bytes_of_a // SIZES[kind.a])
    if kind.a not in FP8:
        return Rules("fused", evidence, generation.fraction_bits, 23, products)
    # What was measured are products of one type, with f32 sums where f16 is behind it.
    if evidence == "measured" and kind.a != kind.b:
        evidence = "parts"
    own = generation.fp8_wgmma if kind.instruction == "wgmma" else generation.fp8
    if own is not None:
        return Rules("fused", evidence, *own, products)
    if evidence == "measured" and kind.result == "f16":
        evidence = "parts"
    return Rules("widened", evidence, generation.fraction_bits, 23, kind.depth // 2)


def kinds_of(
    instruction: Literal["mma", "wmma", "wgmma"], capability: Capability
) -> Iterator[tuple[Kind, Rules]]:
    """The kinds of an instruction that an architecture has, at their largest depth, and their
    rules."""
    halves = [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32")]
    bytes_ = [(each, result) for result in ("f32", "f16") for each in ("e4m3", "e5m2")]
    for a, result in (*halves, *bytes_, ("f64", "f64"), ("s8", "s32")):
        kind = Kind(instruction, a, a, result, 16 if a == "f64" else 32 // SIZES[a])
        try:
            yield kind, rules_of(kind, capability)
        except UnsupportedInstruction:
            continue


def capability_of(target: str) -> Capability:
    """The compute capability of a PTX target: (9, 0) for `sm_90a`; (0, 0) if it names none."""
    digits = target.removeprefix("sm_").rstrip("af")
    return (int(digits[:-1]), int(digits[-1])) if digits[1:].isdigit() else (0, 0)
