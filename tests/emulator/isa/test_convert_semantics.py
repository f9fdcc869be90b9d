"""Conversions against exact integers and fractions."""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from exact_reference import LAYOUTS, Layout, sample_bits, typed

from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.isa.types import TYPES

COUNT = 300
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def bounds(name: str) -> tuple[int, int]:
    bits = TYPES[name].bits
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name[0] == "s" else (0, 2**bits - 1)


def integers(name: str, seed: str) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    bits = TYPES[name].bits
    spread = rng.integers(0, 2**bits, COUNT, np.uint64, endpoint=False)
    spread >>= rng.integers(0, bits, COUNT).astype(np.uint64)  # all magnitudes
    low, high = bounds(name)
    ends = [each % 2**bits for each in (low, high, low + 1, high - 1, 0, 1)]
    spread[: len(ends)] = ends
    return spread.astype(f"u{bits // 8}")


def number(bits: int, name: str) -> int:
    width = TYPES[name].bits
    return bits - (1 << width) if name[0] == "s" and bits >> (width - 1) else bits


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integer_to_integer(source: str, target: str) -> None:
    bits = integers(source, source + target)
    (plain,) = evaluate(table()[f"cvt.{target}.{source}"], [bits])
    values = [number(each, source) for each in bits.tolist()]
    assert plain.tolist() == [value % 2 ** TYPES[target].bits for value in values]
    saturating = table().get(f"cvt.sat.{target}.{source}")
    (low, high), (least, most) = bounds(target), bounds(source)
    assert (saturating is None) == (low <= least and most <= high)
    if saturating is not None:
        (clamped,) = evaluate(saturating, [bits])
        wanted = [max(low, min(high, value)) for value in values]
        assert [number(each, target) for each in clamped.tolist()] == wanted


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_float(source: str, target: str, mode: str) -> None:
    bits, layout = integers(source, source + target + mode), LAYOUTS[target]
    (results,) = evaluate(table()[f"cvt.{mode}.{target}.{source}"], [bits])
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        value = number(each, source)
        rounds = layout.rounds_to(Fraction(value), result, mode[1]) if value else result == 0
        assert rounds, (hex(each), hex(result))


def floats(name: str, seed: str) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    layout = LAYOUTS[name]
    bits = sample_bits(layout, COUNT, rng)
    # Small halves, which are ties, and numbers around the ends of the integers' ranges.
    near = [0.5, -0.5, 1.5, 2.5, -2.5, 127.5, 255.5, 2.0**15, 2.0**31, 2.0**32, 2.0**63, 2.0**64]
    native = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[name]
    with np.errstate(over="ignore"):
        extra = np.array(near + [-each for each in near]).astype(native)
    bits[: len(extra)] = extra.view(f"u{layout.bits // 8}")
    return typed(bits, layout)


def rounded(value: Fraction, mode: str) -> int:
    if mode == "z":
        return math.trunc(value)
    return {"n": round, "m": math.floor, "p": math.ceil}[mode](value)


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_integer(source: str, target: str, mode: str) -> None:
    bits, layout = floats(source, source + target + mode), LAYOUTS[source]
    (results,) = evaluate(table()[f"cvt.{mode}.{target}.{source}"], [bits])
    low, high = bounds(target)
    width = TYPES[target].bits
    nan = 1 << (width - 1) if source == "f64" or width == 64 else 0
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        if layout.is_nan(each):
            assert result == nan
            continue
        if layout.is_infinite(each):
            assert number(result, target) == (low if each & layout.sign else high)
            continue
        value = rounded(layout.value(each), mode[1])
        assert number(result, target) == max(low, min(high, value)), (hex(each), hex(result))


NARROWING = [
    *((f"cvt.{mode}.f32.f64", "f32", "f64") for mode in ("rn", "rz", "rm", "rp")),
    *((f"cvt.{mode}.f16.f32", "f16", "f32") for mode in ("rn", "rz", "rm", "rp")),
    *((f"cvt.{mode}.f16.f64", "f16", "f64") for mode in ("rn", "rz", "rm", "rp")),
    *((f"cvt.{mode}.bf16.f32", "bf16", "f32") for mode in ("rn", "rz")),
]


@pytest.mark.parametrize(("opcode", "target", "source"), NARROWING)
def test_float_to_narrower_float(opcode: str, target: str, source: str) -> None:
    bits, to = floats(source, opcode), LAYOUTS[target]
    (results,) = evaluate(table()[opcode], [bits])
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        assert converted(each, LAYOUTS[source], result, to, opcode[5]), (hex(each), hex(result))


def converted(each: int, of: Layout, result: int, to: Layout, mode: str) -> bool:
    if of.is_nan(each):
        return to.is_nan(result)
    if of.is_infinite(each) or of.value(each) == 0:
        magnitude = to.infinity if of.is_infinite(each) else 0
        return result == (magnitude | to.sign if each & of.sign else magnitude)
    return to.rounds_to(of.value(each), result, mode)


@pytest.mark.parametrize(("target", "source"), [("f32", "f16"), ("f64", "f16"), ("f64", "f32")])
def test_float_to_wider_float(target: str, source: str) -> None:
    bits = floats(source, target + source)
    (results,) = evaluate(table()[f"cvt.{target}.{source}"], [bits])
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        assert converted(each, LAYOUTS[source], result, LAYOUTS[target], "n")


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    bits = np.arange(0, 0x7F80, 7, dtype=np.uint16)
    (results,) = evaluate(table()["cvt.f32.bf16"], [bits])
    assert np.array_equal(results, bits.astype(np.uint32) << np.uint32(16))


def test_flush_and_saturate() -> None:
    def one(opcode: str, value: float, of: type[np.floating] = np.float32) -> float:
        source = np.array([value], of)
        (bits,) = evaluate(table()[opcode], [source.view(f"u{source.itemsize}")])
        return float(bits.view({8: np.float64, 4: np.float32, 2: np.float16}[bits.itemsize])[0])

    assert one("cvt.rn.ftz.f32.f64", 1e-40, np.float64) == 0
    assert one("cvt.ftz.f64.f32", 1e-40) == 0
    assert one("cvt.f64.f32", 1e-40) == float(np.float32(1e-40))
    assert one("cvt.rn.sat.f16.f32", 7.0) == 1
    assert one("cvt.sat.f32.f32", -3.0) == 0
    assert one("cvt.sat.f32.f32", math.nan) == 0
    # A binary16 subnormal is a normal float32: there is nothing to flush.
    assert one("cvt.ftz.f32.f16", 2.0**-24, np.float16) == 2.0**-24
    assert one("cvt.rn.ftz.f16.f32", 2.0**-24) == 2.0**-24


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_to_integral_numbers(name: str, mode: str) -> None:
    bits, layout = floats(name, name + mode), LAYOUTS[name]
    (results,) = evaluate(table()[f"cvt.{mode}.{name}.{name}"], [bits])
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        if layout.is_nan(each):
            assert layout.is_nan(result)
        elif layout.is_infinite(each):
            assert result == each
        else:
            assert layout.value(result) == rounded(layout.value(each), mode[1])
            assert result & layout.sign == each & layout.sign


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packing_puts_the_first_operand_high(name: str) -> None:
    high, low = np.float32([1.0, -2.0, np.nan]), np.float32([-0.5, 4.0, -1.0])
    sources = [each.view(np.uint32) for each in (high, low)]
    one_by_one = table()[f"cvt.rn.{name.removesuffix('x2')}.f32"]
    parts = [evaluate(one_by_one, [each])[0].astype(np.uint32) for each in sources]
    (packed,) = evaluate(table()[f"cvt.rn.{name}.f32"], sources)
    assert np.array_equal(packed, parts[0] << np.uint32(16) | parts[1])
    (relu,) = evaluate(table()[f"cvt.rn.relu.{name}.f32"], sources)
    assert (relu >> 16).tolist() == [int(parts[0][0]), 0, 0x7FFF]
    assert (relu & 0xFFFF).tolist() == [0, int(parts[1][1]), 0]


@pytest.mark.parametrize("opcode", ["rna", "rn", "rz", "rn.relu", "rz.relu"])
def test_float_to_tf32(opcode: str) -> None:
    bits, of = floats("f32", opcode), LAYOUTS["f32"]
    ties = np.arange(0x3F80_1000, 0x3F88_0000, 0x2000, np.uint32)
    bits = np.concatenate([bits, ties, ties | of.sign])
    (results,) = evaluate(table()[f"cvt.{opcode}.tf32.f32"], [bits])
    for each, result in zip(bits.tolist(), results.tolist(), strict=True):
        assert not result & 0x1FFF, hex(result)
        if of.is_nan(each):
            assert of.is_nan(result)
            continue
        if "relu" in opcode and each & of.sign:
            assert result == 0
            continue
        # The bits of a magnitude, in units of the last of the ten fraction bits.
        magnitude = Fraction(each & ~of.sign, 1 << 13)
        whole = {
            "rna": math.floor(magnitude + Fraction(1, 2)),
            "rn": round(magnitude),
            "rz": math.trunc(magnitude),
        }[opcode.split(".")[0]]
        assert result == whole << 13 | each & of.sign, (hex(each), hex(result))
