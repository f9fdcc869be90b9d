"""wgmma of every type, layout and operand: engine, oracle and NumPy agree bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, Executor
from warpgroup_programs import (
    THREADS,
    TILE_BYTES,
    Instruction,
    factors_of,
    registers_of,
    run,
    tile_address,
)

from gemmkit.emulator.isa.matrices import MatrixProduct
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import SIZES, Kind

HOPPER = (9, 0)
A_AT, B_AT = 0, 16 << 10
# By the swizzling mode of a descriptor: none, 128, 64 and 32 bytes.
LINE_BYTES = (16, 128, 64, 32)
KINDS = [
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("bf16", "bf16", "f32"),
    ("tf32", "tf32", "f32"),
    *((a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f16", "f32")),
    *((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
]


def descriptor(at: int, leading: int, stride: int, mode: int = 0, base: int = 0) -> int:
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | mode << 62


def kind_of(a: str, b: str, d: str, *, saturates: bool = False) -> Kind:
    return Kind("wgmma", a, b, d, 32 // SIZES[a], saturates)


def opcode_of(kind: Kind, columns: int) -> str:
    end = ".satfinite" if kind.saturates else ""
    return f"m64n{columns}k{kind.depth}.{kind.result}.{kind.a}.{kind.b}{end}"


def placed(matrix: np.ndarray, mode: int, *, along_rows: bool) -> tuple[np.ndarray, int, int]:
    """A matrix (rows, k) in a canonical layout of CUTLASS, its leading and stride offset.

    A layout is a tensor of 16-byte chunks, of which the swizzle exchanges those of a line.
    """
    size = matrix.dtype.itemsize
    line = LINE_BYTES[mode]
    across = line // 16
    rows, depth = matrix.shape
    if along_rows:
        assert size == 2
        groups = -(-rows // (8 * across))
        full = np.zeros((groups * across * 8, depth), matrix.dtype)
        full[:rows] = matrix
        # Lines of a group: (k / 8, k % 8), each with `across` chunks of eight rows.
        chunks = full.reshape(groups, across, 8, depth // 8, 8).transpose(0, 3, 4, 1, 2)
        group_bytes, eight_bytes = depth * line, 8 * line
        leading, stride = (group_bytes, eight_bytes) if mode else (eight_bytes, group_bytes)
        raw = chunks.copy().view(np.uint8).reshape(-1, across, 16)
    elif mode:
        whole = line // size
        full = np.zeros((rows, whole), matrix.dtype)
        full[:, :depth] = matrix
        leading, stride = 16, 8 * line
        raw = full.view(np.uint8).reshape(-1, across, 16)
    else:
        chunks = matrix.reshape(rows // 8, 8, 2, depth // 2).transpose(0, 2, 1, 3)
        leading, stride = 128, 256
        raw = np.ascontiguousarray(chunks).view(np.uint8).reshape(-1, 1, 16)
    # The n-th line of 128 bytes exchanges its chunks by n, as far as a line of the pattern reaches.
    number = np.arange(len(raw)) * line // 128 % across
    order = np.arange(across) ^ number[:, None]
    return np.take_along_axis(raw, order[:, :, None], axis=1).reshape(-1), leading, stride


def integers(rng: np.random.Generator, shape: tuple[int, int], of: str) -> np.ndarray:
    """Small integers as raw bits; products and sums of them are exact in f32."""
    numbers = rng.integers(-4, 5, shape)
    if of == "f16":
        return numbers.astype(np.float16).view(np.uint16)
    bits = numbers.astype(np.float32).view(np.uint32)
    return bits if of == "tf32" else (bits >> 16).astype(np.uint16)


@pytest.mark.parametrize("mode", range(4), ids=("plain", "128 bytes", "64 bytes", "32 bytes"))
@pytest.mark.parametrize("along", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.sample(5)
def test_layouts(executor: Executor, mode: int, along: tuple[int, int]) -> None:
    """All canonical layouts, and another mode for B than for A."""
    rng = np.random.default_rng(mode)
    for columns, other in ((72, mode), (256, (mode + 1) % 4)):
        each = Instruction(f"m64n{columns}k16.f32.f16.f16", False, (1, 1, *along))
        a, b = (integers(rng, (count, 16), "f16") for count in (64, columns))
        c = rng.integers(-9, 10, (64, columns)).astype(np.float32)
        tile, words, base = np.zeros(TILE_BYTES, np.uint8), [], tile_address(each)
        for matrix, at, swizzle, turned in ((a, A_AT, mode, along[0]), (b, B_AT, other, along[1])):
            data, leading, stride = placed(matrix, swizzle, along_rows=bool(turned))
            tile[at : at + len(data)] = data
            words.append(descriptor(base + at, leading, stride, swizzle))
        product = MatrixProduct(kind_of("f16", "f16", "f32"), 16)
        sums = registers_of(product, c.view(np.uint32))
        found = run(executor, each, tile, sums, left=words[0], right=words[1]).arrays[1]
        exact = a.view(np.float16).astype(np.float32) @ b.view(np.float16).astype(np.float32).T + c
        assert np.array_equal(found, registers_of(product, exact.view(np.uint32)))


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_start_within_the_pattern(executor: Executor, mode: int) -> None:
    """Along k, 32 bytes further on; every line has all of k."""
    rng = np.random.default_rng(mode)
    steps = LINE_BYTES[mode] // 32
    each = Instruction("m64n16k16.f32.bf16.bf16", False, (1, 1, 0, 0))
    tile, base, words = np.zeros(TILE_BYTES, np.uint8), tile_address(each), []
    a, b = (integers(rng, (count, 16 * steps), "bf16") for count in (64, 16))
    for matrix, at in ((a, A_AT), (b, B_AT)):
        data, leading, stride = placed(matrix, mode, along_rows=False)
        tile[at : at + len(data)] = data
        words.append(descriptor(base + at, leading, stride, mode))
    product = MatrixProduct(kind_of("bf16", "bf16", "f32"), 16)
    sums = np.zeros((THREADS, 8), np.uint32)
    for step in range(steps):
        left, right = (word + 2 * step for word in words)
        sums = run(executor, each, tile, sums, left=left, right=right).arrays[1]
    x, y = ((each.astype(np.uint32) << 16).view(np.float32) for each in (a, b))
    assert np.array_equal(sums, registers_of(product, (x @ y.T).view(np.uint32)))


def both(each: Instruction, tile: np.ndarray, sums: np.ndarray, **more: object) -> np.ndarray:
    """D by the engine, which the oracle must confirm with all counts."""
    one, other = (run(executor, each, tile, sums, **more) for executor in (ENGINE, ORACLE))
    assert np.array_equal(one.arrays[1], other.arrays[1])
    assert one.metrics == other.metrics
    return one.arrays[1]


@pytest.mark.parametrize("types", KINDS, ids=".".join)
@settings(max_examples=2, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    columns=st.sampled_from((8, 24, 48, 208)),
    signs=st.tuples(st.sampled_from((1, -1)), st.sampled_from((1, -1))),
    majors=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@pytest.mark.sample(5)
def test_types(
    types: tuple[str, str, str],
    seed: int,
    columns: int,
    signs: tuple[int, int],
    majors: tuple[int, int],
    flags: tuple[bool, bool, bool],
) -> None:
    """Random bits in random places, with every operand."""
    in_registers, adds, saturates = flags
    rng = np.random.default_rng(seed)
    integer = types[2] == "s32"
    kind = kind_of(*types, saturates=saturates and integer)
    immediates = () if integer else (*signs, *majors[in_registers:] * (kind.depth == 16))
    each = Instruction(opcode_of(kind, columns), in_registers, immediates)
    tile = rng.integers(0, 256, TILE_BYTES).astype(np.uint8)
    # Fewer numbers that are huge, infinite or NaN.
    tile[rng.random(TILE_BYTES) < 0.7] = rng.integers(0, 64)
    sums = rng.integers(0, 1 << 32, (THREADS, each.sums), np.uint64).astype(np.uint32)
    sums[rng.random(sums.shape) < 0.5] = 0
    factors = rng.integers(0, 1 << 32, (THREADS, 4), np.uint64).astype(np.uint32)
    base = tile_address(each)
    words = []
    for _ in range(2):
        mode, offset = int(rng.integers(0, 4)), int(rng.integers(0, 256))
        near, far = sorted(rng.integers(1, 48, 2).tolist())
        words.append(
            descriptor(base + 16 * offset, 16 * near, 16 * far, mode, int(rng.integers(0, 8)))
        )
    both(each, tile, sums, left=words[0], right=words[1], factors=factors, adds=adds)


@pytest.mark.parametrize("types", KINDS, ids=".".join)
@pytest.mark.sample(2)
def test_results_are_the_models(types: tuple[str, str, str]) -> None:
    kind = kind_of(*types)
    rng = np.random.default_rng(7)
    immediates = {"s32": (), "f16": (1, -1), "f32": (1, -1)}[kind.result]
    each = Instruction(opcode_of(kind, 16), True, immediates + (0,) * (kind.depth == 16))
    width = SIZES[kind.a]
    a, b = (rng.integers(0, 256, (count, 32)).astype(np.uint8) for count in (64, 16))
    a, b = (matrix.view(f"u{width}") for matrix in (a, b))
    c = rng.integers(0, 1 << 8 * (2 if kind.result == "f16" else 4), (64, 16), np.uint64)
    c = c.astype(np.uint16 if kind.result == "f16" else np.uint32)
    data, leading, stride = placed(b, 0, along_rows=False)
    tile = np.zeros(TILE_BYTES, np.uint8)
    tile[: len(data)] = data
    product = MatrixProduct(kind, 16)
    found = run(
        ENGINE, each, tile, registers_of(product, c), factors=factors_of(product, a),
        right=descriptor(tile_address(each), leading, stride),
    ).arrays[1]  # fmt: skip
    if immediates:
        b = b ^ b.dtype.type(1 << 8 * width - 1)
    wanted = multiply(kind, HOPPER, a, np.ascontiguousarray(b.T), c)
    assert np.array_equal(found, registers_of(product, wanted))


def test_every_shape_of_the_manual_is_there() -> None:
    counts: dict[str, set[int]] = {}
    for form in table().values():
        if form.operation == "wgmma_multiply":
            counts.setdefault(f"{form['A']}.{form['B']}.{form['R']}", set()).add(int(form["N"]))
    integers = {8, 16, 24, 32, *range(48, 257, 16)}
    assert counts.keys() == {".".join(types) for types in KINDS}
    for types, found in counts.items():
        assert found == (integers if types.endswith("s32") else set(range(8, 257, 8))), types


def test_counts(executor: Executor) -> None:
    """Each warp counts; the hardware's name counts warps too."""
    each = Instruction("m64n8k16.f32.f16.f16", True, (1, 1, 0))
    sums = np.zeros((3, THREADS, each.sums), np.uint32)
    start = descriptor(tile_address(each), 128, 256)
    outcome = run(executor, each, np.zeros((3, TILE_BYTES), np.uint8), sums, right=start)
    assert outcome.metrics["sm__inst_executed_pipe_tensor_op_gmma.sum"] == 3 * 4
    assert outcome.metrics["ptx__inst_executed_op_tensor.sum"] == 3 * 4
    assert outcome.count("lanes", each.opcode) == 3 * THREADS
