"""The bound for fused sums, against what tensor cores compute."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.emulator.numerics.formats import FORMATS, numbers_of, raw_of
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind
from gemmkit.verify.bounds import gamma
from gemmkit.verify.truncation import EIGHT_BITS, SIXTEEN_BITS, truncation_of

HOPPER, AMPERE, ADA, RTX = (9, 0), (8, 0), (8, 9), (12, 0)
MMA = "mma.sync.aligned.{}.row.col.f32.{}.f32"
CASES = [
    (MMA.format("m16n8k16", "f16.f16"), HOPPER),
    (MMA.format("m16n8k8", "bf16.bf16"), HOPPER),
    (MMA.format("m16n8k16", "bf16.bf16"), AMPERE),
    (MMA.format("m16n8k8", "tf32.tf32"), AMPERE),
    (MMA.format("m16n8k32", "e4m3.e5m2"), HOPPER),
    (MMA.format("m16n8k32", "e4m3.e4m3"), ADA),
    (MMA.format("m16n8k32", "e5m2.e5m2"), RTX),
    ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", HOPPER),
    ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", HOPPER),
    ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", (7, 5)),
]
K = 512


def kind_of(opcode: str) -> Kind:
    words = opcode.split(".")
    types = [each for each in words if each in FORMATS]
    a, b = types[1:3] if len(types) > 2 else ("f16", "f16")
    depth = int(next(each for each in words if each.startswith("m") and "k" in each).split("k")[1])
    return Kind(words[0], a, b, "f32", depth)


def cut(numbers: np.ndarray, of: str) -> np.ndarray:
    """Numbers of a format, as raw bits."""
    form = FORMATS[of]
    places = np.maximum(np.frexp(numbers)[1] - 1, form.lowest) - form.fraction_bits
    bits = raw_of(np.ldexp(np.trunc(np.ldexp(numbers, -places)), places), form)
    return (bits << form.unused).astype(np.uint32) if of == "tf32" else bits


def summed(kind: Kind, capability: tuple[int, int], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums over k, one instruction after the other."""
    total = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    for start in range(0, a.shape[1], kind.depth):
        steps = slice(start, start + kind.depth)
        total = multiply(kind, capability, a[:, steps], b[steps], total)
    return total.view(np.float32).astype(np.float64)


@pytest.mark.parametrize(("opcode", "capability"), CASES)
@pytest.mark.parametrize("signs", ["one", "both"])
def test_the_bound_holds_for_biased_sums(
    opcode: str, capability: tuple[int, int], signs: str
) -> None:
    kind, rng = kind_of(opcode), np.random.default_rng(7)
    sign = [1] if signs == "one" else [-1, 1]
    a, b = (
        cut(rng.choice(sign, shape) * 2 ** rng.uniform(-6, 0, shape), of)
        for shape, of in (((16, K), kind.a), ((K, 8), kind.b))
    )
    left, right = numbers_of(a, FORMATS[kind.a]), numbers_of(b, FORMATS[kind.b])
    errors = summed(kind, capability, a, b) - left @ right
    truncation = truncation_of(opcode, capability)
    bound = np.expm1(truncation.logarithm(K)) * (abs(left) @ abs(right))
    assert (abs(errors) <= bound).all()
    if signs == "one":  # the bias: no error is positive, and most are near the bound
        assert (errors <= 0).all()
        # 25 bits hold nearly all of the sums of fp8.
        wide = kind.a in ("e4m3", "e5m2") and truncation.bits > EIGHT_BITS.bits
        assert wide or abs(errors).mean() >= bound.mean() / 25


def test_sums_of_fp8_need_their_own_bound() -> None:
    """Twice the roundoff of fp32 per product, which holds for 16-bit types, is not enough."""
    opcode = MMA.format("m16n8k32", "e4m3.e4m3")
    kind, rng = kind_of(opcode), np.random.default_rng(3)
    a, b = (cut(rng.uniform(0.5, 1, shape), "e4m3") for shape in ((16, K), (K, 8)))
    left, right = (numbers_of(each, FORMATS["e4m3"]) for each in (a, b))
    errors = abs(summed(kind, ADA, a, b) - left @ right)
    assert (errors > 2 * gamma(K, 2.0**-24) * (left @ right)).all()


def test_what_a_denormal_operand_adds() -> None:
    """Its product has the exponent of a normal one, below which the others are cut off."""
    form = FORMATS["f16"]
    a, b = np.full((1, 16), 2.0**-5), np.full((16, 1), 2.0**-9 * 1.75 * (1 + 2.0**-7))
    a[0, 0], b[0, 0] = 2.0**-24, 2.0**15
    a[0, 1:] *= 1 + 2.0**-10
    kind = Kind("mma", "f16", "f16", "f32", 16)
    error = abs(summed(kind, HOPPER, cut(a, "f16"), cut(b, "f16")) - a @ b)[0, 0]
    truncation = truncation_of(MMA.format("m16n8k16", "f16.f16"), HOPPER)
    relative = np.expm1(truncation.logarithm(16)) * (a @ b)[0, 0]
    assert relative < error <= relative + truncation.absolute(16, a.max(), b.max())
    assert truncation.absolute(16, 1, 1) < 16 * 2.0**form.lowest


@pytest.mark.parametrize(("opcode", "capability"), CASES)
def test_integers_are_exact_up_to_the_bits(opcode: str, capability: tuple[int, int]) -> None:
    """Powers of two whose sum is 2**bits - 1: all of its bits are kept; a bit more is cut off."""
    kind, truncation = kind_of(opcode), truncation_of(opcode, capability)
    for more, exact in ((0, True), (2, False)):
        bits = truncation.bits + more
        terms = 2.0 ** np.arange(bits)[::-1]
        a, b = np.zeros((1, kind.depth * bits)), np.zeros((kind.depth * bits, 1))
        a[0, :: kind.depth] = 2.0 ** (np.arange(bits)[::-1] // 2)
        b[:: kind.depth, 0] = terms / a[0, :: kind.depth]
        scale = 2.0**-4 if kind.a == "e4m3" else 1.0
        found = summed(kind, capability, cut(a * scale, kind.a), cut(b * scale, kind.b))
        assert (found[0, 0] / scale**2 == terms.sum()) == exact


def test_what_is_unknown_has_the_widest_bound() -> None:
    half = truncation_of(MMA.format("m16n8k16", "f16.f16"), (0, 0))
    assert half == SIXTEEN_BITS
    assert (
        truncation_of("wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", AMPERE) == EIGHT_BITS
    )
    for opcode, capability in CASES:
        known = truncation_of(opcode, capability)
        widest = EIGHT_BITS if "e4m3" in opcode or "e5m2" in opcode else SIXTEEN_BITS
        assert known.step <= widest.step
        assert known.bits >= widest.bits
