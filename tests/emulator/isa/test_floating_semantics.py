"""Floating-point forms against exact fractions: single rounding, modes, NaN, zeros, .ftz, .sat."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from exact_reference import LAYOUTS, Layout, sample_bits, typed
from numpy.typing import NDArray

from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import table

COUNT = 600


def random(opcode: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(opcode.encode()))


def sampled(opcode: str, layout: Layout, operands: int) -> list[np.ndarray]:
    rng = random(opcode)
    return [typed(sample_bits(layout, COUNT, rng), layout) for _ in range(operands)]


def as_float(bits: int, layout: Layout) -> float:
    """For special cases only, where only the sign and the kind of number matter."""
    if layout.is_nan(bits):
        return math.nan
    sign = -1.0 if bits & layout.sign else 1.0
    if layout.is_infinite(bits):
        return sign * math.inf
    value = layout.value(bits)
    return math.copysign(0.0, sign) if value == 0 else math.copysign(1.0, sign)


def check(
    opcode: str,
    name: str,
    exact: Callable[..., Fraction],
    special: Callable[..., float],
    operands: int,
) -> None:
    """Finite operands with a non-zero result: exact; else what float64 gives, with signs.

    `special` sees 0, 1, infinity or NaN with the operands' signs.
    """
    layout, form = LAYOUTS[name], table()[opcode]
    sources = sampled(opcode, layout, operands)
    (results,) = evaluate(form, sources)
    mode = form.modifiers.get("R", "rn")[1:2] or "n"
    for *bits, result in zip(*(each.tolist() for each in (*sources, results)), strict=True):
        shown = f"{opcode} {[hex(each) for each in bits]} -> {result:#x}"
        if form.modifiers.get("F"):
            bits = [each & layout.sign if layout.is_subnormal(each) else each for each in bits]
        finite = not any(layout.is_nan(each) or layout.is_infinite(each) for each in bits)
        if finite and exact(*map(layout.value, bits)) != 0:
            value = exact(*map(layout.value, bits))
            if form.modifiers.get("A") == "sat":
                assert saturated(layout, value, result, mode), shown
            elif form.modifiers.get("F") and result & ~layout.sign == 0:
                assert abs(value) < layout.value(1 << layout.fraction_bits), shown
                assert bool(result & layout.sign) == (value < 0), shown
            else:
                assert layout.rounds_to(value, result, mode), shown
                assert not (form.modifiers.get("F") and layout.is_subnormal(result)), shown
            continue
        wanted = special(*(as_float(each, layout) for each in bits), mode)
        if form.modifiers.get("A") == "sat":
            wanted = min(wanted, 1.0) if wanted > 0 else 0.0
        if math.isnan(wanted):
            assert layout.is_nan(result), shown
        else:
            assert math.copysign(1, wanted) == (-1 if result & layout.sign else 1), shown
            assert math.isinf(wanted) == layout.is_infinite(result), shown
            if math.isfinite(wanted):
                assert abs(layout.value(result)) == abs(Fraction(wanted)), shown


def saturated(layout: Layout, value: Fraction, result: int, mode: str) -> bool:
    if value <= 0:
        return result == 0
    if value >= 1:
        return layout.value(result) == 1
    if layout.value(result) == 0:
        return value < layout.value(1 << layout.fraction_bits)
    return layout.rounds_to(value, result, mode)


def special_sum(a: float, b: float, mode: str) -> float:
    if a == -b and math.isfinite(a):
        if math.copysign(1, a) == math.copysign(1, b):
            return a
        return -0.0 if mode == "m" else 0.0
    return a + b


def special_fused(a: float, b: float, c: float, mode: str) -> float:
    product = a * b
    return special_sum(product, c, mode) if math.isfinite(product) else product + c


SUMS = [
    *(f"add{mode}.f32" for mode in ("", ".rn", ".rz", ".rm", ".rp")),
    *("add.rn.ftz.f32", "add.rn.ftz.sat.f32", "add.rz.sat.f32"),
    *(f"add{mode}.f64" for mode in ("", ".rn", ".rz", ".rm", ".rp")),
    *("add.f16", "add.rn.ftz.f16", "add.sat.f16", "add.bf16"),
]


@pytest.mark.parametrize("opcode", SUMS)
def test_sums(opcode: str) -> None:
    name = opcode.rsplit(".", 1)[1]
    check(opcode, name, lambda a, b: a + b, special_sum, 2)


@pytest.mark.parametrize("opcode", [each.replace("add", "sub") for each in SUMS])
def test_differences(opcode: str) -> None:
    name = opcode.rsplit(".", 1)[1]
    check(opcode, name, lambda a, b: a - b, lambda a, b, mode: special_sum(a, -b, mode), 2)


@pytest.mark.parametrize("opcode", [each.replace("add", "mul") for each in SUMS])
def test_products(opcode: str) -> None:
    name = opcode.rsplit(".", 1)[1]
    check(opcode, name, lambda a, b: a * b, lambda a, b, _: a * b, 2)


@pytest.mark.parametrize(
    "opcode",
    [
        *(f"fma{mode}.f32" for mode in (".rn", ".rz", ".rm", ".rp")),
        *("fma.rn.ftz.f32", "fma.rn.sat.f32", "fma.rp.ftz.sat.f32", "mad.rn.f32"),
        *(f"fma{mode}.f64" for mode in (".rn", ".rz", ".rm", ".rp")),
        *("fma.rn.f16", "fma.rn.ftz.f16", "fma.rn.sat.f16", "fma.rn.bf16"),
    ],
)
def test_fused_multiply_add(opcode: str) -> None:
    check(opcode, opcode.rsplit(".", 1)[1], lambda a, b, c: a * b + c, special_fused, 3)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_quotients_and_reciprocals(name: str) -> None:
    def exact(a: Fraction, b: Fraction) -> Fraction:
        return a / b if b else Fraction(0)

    def special(a: float, b: float, mode: str) -> float:
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))

    check(f"div.rn.{name}", name, exact, special, 2)
    check(f"rcp.rn.{name}", name, lambda a: exact(Fraction(1), a), lambda a, m: special(1, a, m), 1)


@pytest.mark.parametrize("opcode", ["sqrt.rn.f32", "sqrt.rn.f64", "sqrt.rn.ftz.f32"])
def test_square_roots(opcode: str) -> None:
    layout = LAYOUTS[opcode[-3:]]
    (bits,) = sampled(opcode, layout, 1)
    for source, result in zip(
        bits.tolist(), evaluate(table()[opcode], [bits])[0].tolist(), strict=True
    ):
        if ".ftz" in opcode and layout.is_subnormal(source):
            source &= layout.sign
        if layout.is_nan(source) or (source & layout.sign and source != layout.sign):
            assert layout.is_nan(result)
        elif layout.value(source) == 0 or layout.is_infinite(source):
            assert result == source
        else:  # between the middles of the gaps to both neighbors
            square = layout.value(source)
            low = (layout.value(result - 1) + layout.value(result)) / 2
            high = (layout.value(result + 1) + layout.value(result)) / 2
            assert low**2 < square < high**2


def test_the_double_rounding_case_of_fma() -> None:
    """1.5 * (1 + 2**-23) - 2**-60: a tie of float32 but for a bit that float64 loses."""
    sources = [np.float32([each]).view(np.uint32) for each in (1 + 2.0**-23, 1.5, -(2.0**-60))]
    exact = Fraction(3, 2) * (1 + Fraction(1, 2**23)) - Fraction(1, 2**60)
    (result,) = evaluate(table()["fma.rn.f32"], sources)
    assert LAYOUTS["f32"].rounds_to(exact, int(result[0]), "n")
    assert result.view(np.float32)[0] != np.float32(float(exact))


def test_sums_of_products_of_fp64_near_ties_and_zero() -> None:
    """Products near half of the addend's last place, and addends near the negative product."""
    rng = random("fma.rn.f64 near ties")
    few = np.exp2(-52) * rng.integers(-3, 4, (2, COUNT))
    halves = np.exp2(-53) * rng.choice([-1.0, 1.0], COUNT)
    addends = 1 + np.exp2(-52) * rng.integers(0, 2**52, COUNT)
    a, b = rng.standard_normal((2, COUNT))
    layout, form = LAYOUTS["f64"], table()["fma.rn.f64"]
    for numbers in ((halves * (1 + few[0]), 1 + few[1], addends), (a, b, -(a * b) * (1 + few[0]))):
        (results,) = evaluate(form, [each.view(np.uint64) for each in numbers])
        for x, y, z, result in zip(*(each.tolist() for each in (*numbers, results)), strict=True):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            assert layout.rounds_to(exact, result, "n") if exact else result == 0


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_extremes(name: str, operation: str) -> None:
    layout = LAYOUTS[name]
    nan = layout.infinity | 1 << (layout.fraction_bits - 1)
    one = ((1 << (layout.exponent_bits - 1)) - 1) << layout.fraction_bits
    minus = layout.sign

    def result(opcode: str, a: int, b: int) -> int:
        sources = [np.array([each], f"u{layout.bits // 8}") for each in (a, b)]
        return int(evaluate(table()[opcode], sources)[0][0])

    plain = f"{operation}.{name}"
    assert result(plain, nan, one) == result(plain, one, nan) == one
    assert layout.is_nan(result(plain, nan, nan))
    zero = minus if operation == "min" else 0
    assert result(plain, 0, minus) == result(plain, minus, 0) == zero
    lower, upper = one | minus, one
    wanted = lower if operation == "min" else upper
    assert result(plain, lower, upper) == result(plain, upper, lower) == wanted
    if f"{operation}.NaN.{name}" in table():
        assert layout.is_nan(result(f"{operation}.NaN.{name}", nan, one))
        assert result(f"{operation}.NaN.{name}", lower, upper) == wanted


def test_relu_keeps_nan_and_drops_the_sign() -> None:
    one, minus_two, nan = 0x3C00, 0xC000, 0x7E00
    sources = [np.array(each, np.uint16) for each in ([one, minus_two, nan], [one] * 3, [0] * 3)]
    (result,) = evaluate(table()["fma.rn.relu.f16"], sources)
    assert result.tolist() == [one, 0, 0x7FFF]


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packed_forms_act_on_each_half(name: str) -> None:
    rng, single = random(name), name.removesuffix("x2")
    layout = LAYOUTS[single]
    halves = [typed(sample_bits(layout, COUNT, rng), layout) for _ in range(6)]
    packed = [
        high.astype(np.uint32) << np.uint32(16) | low
        for low, high in zip(halves[:3], halves[3:], strict=True)
    ]
    for opcode, operands in (("fma.rn", 3), ("add", 2), ("max", 2), ("neg", 1)):
        low, high = (
            evaluate(table()[f"{opcode}.{single}"], halves[start : start + operands])[0]
            for start in (0, 3)
        )
        (both,) = evaluate(table()[f"{opcode}.{name}"], packed[:operands])
        assert np.array_equal(both, high.astype(np.uint32) << np.uint32(16) | low)


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_signs(name: str) -> None:
    layout = LAYOUTS[name]
    (bits,) = sampled(f"sign {name}", layout, 1)
    sign = bits.dtype.type(layout.sign)
    assert np.array_equal(evaluate(table()[f"abs.{name}"], [bits])[0], bits & ~sign)
    assert np.array_equal(evaluate(table()[f"neg.{name}"], [bits])[0], bits ^ sign)


def test_copysign_takes_the_first_operands_sign() -> None:
    minus_one, two = (np.float32([each]).view(np.uint32) for each in (-1.0, 2.0))
    (result,) = evaluate(table()["copysign.f32"], [minus_one, two])
    assert result.view(np.float32)[0] == -2.0


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_properties(name: str) -> None:
    layout = LAYOUTS[name]
    (bits,) = sampled(f"testp {name}", layout, 1)
    for each, source in enumerate(bits.tolist()):
        nan, infinite = layout.is_nan(source), layout.is_infinite(source)
        wanted = {
            "finite": not nan and not infinite,
            "infinite": infinite,
            "number": not nan,
            "notanumber": nan,
            "normal": not (nan or infinite or layout.is_subnormal(source)),
            "subnormal": layout.is_subnormal(source),
        }
        for kind, value in wanted.items():
            assert evaluate(table()[f"testp.{kind}.{name}"], [bits[each : each + 1]])[0][0] == value


@pytest.mark.parametrize(
    ("opcode", "function", "worst"),
    [
        ("ex2.approx.f32", math.exp2, 1e-6),
        ("lg2.approx.f32", math.log2, 1e-6),
        ("sin.approx.f32", math.sin, 1e-6),
        ("cos.approx.f32", math.cos, 1e-6),
        ("tanh.approx.f32", math.tanh, 1e-6),
        ("rsqrt.approx.f32", lambda x: 1 / math.sqrt(x), 1e-6),
        ("sqrt.approx.f32", math.sqrt, 1e-6),
        ("rcp.approx.f32", lambda x: 1 / x, 1e-6),
    ],
)
def test_approximate_functions(
    opcode: str, function: Callable[[float], float], worst: float
) -> None:
    points = np.linspace(0.1, 6, 50, dtype=np.float32)
    (bits,) = evaluate(table()[opcode], [points.view(np.uint32)])
    wanted = np.array([function(float(each)) for each in points])
    assert np.allclose(bits.view(np.float32), wanted, rtol=worst, atol=1e-7)


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("rcp.approx.ftz.f64", lambda x: 1 / x),
        ("rsqrt.approx.ftz.f64", lambda x: 1 / np.sqrt(x)),
    ],
)
def test_fp64_approximations_use_the_upper_halves(
    opcode: str, function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> None:
    points = np.linspace(0.1, 6, 50)
    (bits,) = evaluate(table()[opcode], [points.view(np.uint64)])
    assert not np.any(bits & np.uint64(2**32 - 1))
    assert np.allclose(bits.view(np.float64), function(points), rtol=2e-6, atol=0)
    ends = np.array([np.inf, 0.0, 1e-310]).view(np.uint64)
    (bits,) = evaluate(table()[opcode], [ends])
    assert bits.view(np.float64).tolist() == [0.0, np.inf, np.inf]
    low_payload = np.array([0x7FF0_0000_0000_0001], np.uint64)
    assert np.isnan(evaluate(table()[opcode], [low_payload])[0].view(np.float64)).all()


def test_approximate_functions_at_the_ends() -> None:
    def result(opcode: str, value: float) -> float:
        source = np.float32([value]).view(np.uint32)
        return float(evaluate(table()[opcode], [source])[0].view(np.float32)[0])

    assert result("rcp.approx.ftz.f32", -0.0) == -math.inf
    assert result("lg2.approx.f32", 0.0) == -math.inf
    assert math.isnan(result("sqrt.approx.f32", -1.0))
    assert result("ex2.approx.ftz.f32", -math.inf) == 0.0
    assert result("ex2.approx.ftz.f32", -140.0) == 0.0
    assert result("ex2.approx.f32", -140.0) == 2.0**-140
