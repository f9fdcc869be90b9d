"""The engine's fused sums equal the model's for any bits, on every architecture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_tiles import form_of_kind, fuse_natively, multiply_natively

from gemmkit.emulator.numerics.formats import FORMATS, raw_of
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import SIZES, Kind

STORED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SPECIAL = {
    "f16": (0, 0x8000, 1, 0x83FF, 0x7C00, 0xFC00, 0x7E01, 0x7BFF),
    "bf16": (0, 0x8000, 1, 0x807F, 0x7F80, 0xFF80, 0x7FC1, 0x7F7F),
    "tf32": (0, 1 << 31, 1 << 13, 0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0x7F7F_FFFF),
    "f32": (0, 1 << 31, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001, 0x7F7F_FFFF),
    "e4m3": (0, 0x80, 1, 0x87, 0x7F, 0xFF, 0x7E),
    "e5m2": (0, 0x80, 1, 0x83, 0x7C, 0xFC, 0x7F, 0x7B),
    "f64": (0, 1 << 63, 1, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF0 << 48 | 1, 0xFFF8 << 48 | 7),
    "s8": (0, 0x80, 0x7F, 0xFF),
    "u8": (0, 0x80, 0xFF),
    "s32": (0, 1 << 31, (1 << 31) - 1, 0xFFFF_FFFF),
}
HOPPER = (9, 0)
# Kinds and rows, each with the architectures on which it differs.
PRODUCTS = [
    (Kind("mma", "f16", "f16", "f32", 16), 16, (8, 0)),
    (Kind("mma", "f16", "f16", "f16", 16), 16, HOPPER),
    (Kind("mma", "f16", "f16", "f32", 8), 16, (7, 5)),
    (Kind("mma", "bf16", "bf16", "f32", 16), 16, HOPPER),
    (Kind("mma", "bf16", "bf16", "f32", 16), 16, (8, 6)),
    (Kind("mma", "tf32", "tf32", "f32", 8), 16, HOPPER),
    (Kind("mma", "tf32", "tf32", "f32", 8), 16, (8, 9)),
    (Kind("mma", "e4m3", "e5m2", "f32", 32), 16, HOPPER),
    (Kind("mma", "e5m2", "e4m3", "f16", 32), 16, HOPPER),
    (Kind("mma", "e4m3", "e4m3", "f16", 16), 16, HOPPER),
    (Kind("mma", "e4m3", "e5m2", "f32", 32), 16, (8, 9)),
    (Kind("mma", "e5m2", "e5m2", "f16", 32), 16, (8, 9)),
    (Kind("mma", "e5m2", "e4m3", "f32", 32), 16, (12, 0)),
    (Kind("mma", "s8", "u8", "s32", 32), 16, HOPPER),
    (Kind("mma", "u8", "s8", "s32", 16, saturates=True), 8, HOPPER),
    (Kind("mma", "f64", "f64", "f64", 4), 8, HOPPER),
]
FUSED = [
    Kind("wgmma", "e4m3", "e5m2", "f32", 32),
    Kind("wgmma", "e5m2", "e5m2", "f16", 32),
    Kind("wgmma", "bf16", "bf16", "f32", 16),
    Kind("wgmma", "f16", "f16", "f16", 16),
]


def named(parameters: tuple[object, ...]) -> str:
    kind = next(each for each in parameters if isinstance(each, Kind))
    return f"{kind.a}-{kind.b}-{kind.result}-k{kind.depth}-{parameters[-1]}"


def scattered(shape: tuple[int, ...], of: str, patterns: list[int], seed: int) -> np.ndarray:
    """Random bits, numbers of few different exponents, and the given patterns with special ones;
    the share of each is random too."""
    rng = np.random.default_rng(seed)
    size = 4 if of in ("f32", "s32") else 2 if (of, shape[-1]) == ("f16", 8) else SIZES.get(of, 4)
    dtype = STORED[size]
    any_bits = rng.integers(0, 1 << 8 * size, shape, np.uint64).astype(dtype)
    if of in FORMATS:
        # Also around the exponents where products stop being exact in float32.
        reach = rng.choice([4, 12, 70]) if FORMATS[of].exponent_bits == 8 else 4
        middle = rng.integers(-reach, reach)
        spread = rng.integers(0, 12)
        numbers = rng.choice([-1, 1], shape) * rng.integers(1, 16, shape) / 8
        numbers = np.ldexp(numbers, middle + rng.integers(-spread, spread + 1, shape))
        largest = 2.0 ** (FORMATS[of].bias - 1)
        least = 2.0 ** (FORMATS[of].lowest + 1)
        numbers = np.where(abs(numbers) < least, 0, np.clip(numbers, -largest, largest))
        like = raw_of(numbers, FORMATS[of]) if of != "tf32" else None
        near = numbers.astype(np.float32).view(np.uint32) if like is None else like
    else:
        near = any_bits
    pool = np.array([*SPECIAL[of], *(each % (1 << 8 * size) for each in patterns)], np.uint64)
    chosen = rng.choice(pool, shape).astype(dtype)
    share = rng.choice([0, 0.02, 0.3, 1.0], 2)
    found = np.where(rng.random(shape) < share[0], any_bits, near.astype(dtype))
    return np.where(rng.random(shape) < share[1] * rng.integers(0, 2), chosen, found)


inputs = st.tuples(
    st.lists(st.integers(0, (1 << 64) - 1), max_size=6), st.integers(0, (1 << 32) - 1)
)


def operands(kind: Kind, rows: int, patterns: list[int], seed: int) -> list[np.ndarray]:
    shapes = ((rows, kind.depth), (kind.depth, 8), (rows, 8))
    types = (kind.a, kind.b, kind.result)
    return [
        scattered(shape, of, patterns, seed + index)
        for index, (shape, of) in enumerate(zip(shapes, types, strict=True))
    ]


@pytest.mark.parametrize(("kind", "rows", "capability"), PRODUCTS, ids=map(named, PRODUCTS))
@settings(max_examples=40, deadline=None)
@given(drawn=inputs)
@pytest.mark.sample(3)
def test_mma(
    kind: Kind, rows: int, capability: tuple[int, int], drawn: tuple[list[int], int]
) -> None:
    a, b, c = operands(kind, rows, *drawn)
    found = multiply_natively(form_of_kind(kind, rows), capability, a, b, c)
    assert np.array_equal(found, multiply(kind, capability, a, b, c))


@pytest.mark.parametrize("kind", FUSED, ids=str)
@settings(max_examples=40, deadline=None)
@given(drawn=inputs)
def test_fused_sums(kind: Kind, drawn: tuple[list[int], int]) -> None:
    a, b, c = operands(kind, 16, *drawn)
    assert np.array_equal(fuse_natively(kind, HOPPER, a, b, c), multiply(kind, HOPPER, a, b, c))
