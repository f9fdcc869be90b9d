"""Products by `mma.sync` in CUDA C++, compiled by NVRTC, on both executors: every bit and count."""

from __future__ import annotations

import numpy as np
import pytest
from launching import ENGINE, ORACLE, launch

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.emulator.isa.matrices import MatrixProduct
from gemmkit.emulator.numerics.formats import FORMATS, raw_of
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_kernel
from gemmkit.kernels.plan import LaunchPlan, SourceFile

K, BLOCKS = 64, 3
KINDS = [
    (Kind("mma", "f16", "f16", "f32", 16), 16),
    (Kind("mma", "f16", "f16", "f16", 8), 16),
    (Kind("mma", "bf16", "bf16", "f32", 16), 16),
    (Kind("mma", "tf32", "tf32", "f32", 8), 16),
    (Kind("mma", "e4m3", "e5m2", "f32", 32), 16),
    (Kind("mma", "e5m2", "e5m2", "f16", 16), 16),
    (Kind("mma", "s8", "u8", "s32", 32, saturates=True), 16),
    (Kind("mma", "f64", "f64", "f64", 4), 8),
]


def source_of(kind: Kind, rows: int) -> str:
    """A warp's tile of rows × 8, by the fragments of the PTX manual; B is column by column."""
    product = MatrixProduct(kind, rows)
    registers = dict(zip("dab", product.counts[:3], strict=True))
    opcode = (
        f"mma.sync.aligned.m{rows}n8k{kind.depth}.row.col{'.satfinite' * kind.saturates}"
        f".{kind.result}.{kind.a}.{kind.b}.{kind.result}"
    )
    lists, at = {}, 0
    for name, count in registers.items():
        lists[name] = "{" + ", ".join(f"%{at + i}" for i in range(count)) + "}"
        at += count
    of_sum = {"f32": "f", "f64": "d"}.get(kind.result, "r")
    of_word = "d" if kind.a == "f64" else "r"
    out = ", ".join(f'"+{of_sum}"(d[{i}])' for i in range(registers["d"]))
    given = ", ".join(f'"{of_word}"({each}[{i}])' for each in "ab" for i in range(registers[each]))
    word, sums = {"r": "unsigned", "f": "float", "d": "double"}[of_word], of_sum
    return f"""
    extern "C" __global__ void k({word}* out, const {word}* left, const {word}* right)
    {{
        const int group = threadIdx.x / 4, thread = threadIdx.x % 4;
        const int words = {K // product.packed}, down = {rows // 8};
        left += blockIdx.x * {rows} * words;
        right += blockIdx.x * 8 * words;
        {word} a[{registers["a"]}], b[{registers["b"]}];
        { {"f": "float", "d": "double", "r": "unsigned"}[sums] } d[{registers["d"]}] = {{}};
        for (int step = 0; step < words; step += {kind.depth // product.packed}) {{
            for (int i = 0; i < {registers["a"]}; i++)
                a[i] = left[(group + 8 * (i % down)) * words + step + thread + 4 * (i / down)];
            for (int i = 0; i < {registers["b"]}; i++)
                b[i] = right[group * words + step + thread + 4 * i];
            asm volatile("{opcode} {lists["d"]}, {lists["a"]}, {lists["b"]}, {lists["d"]};"
                         : {out} : {given});
        }}
        for (int i = 0; i < {registers["d"]}; i++)
            out[(blockIdx.x * {registers["d"]} + i) * 32 + threadIdx.x] = *({word}*)&d[i];
    }}
    """


def matrix_of(shape: tuple[int, ...], of: str, rng: np.random.Generator) -> np.ndarray:
    """Raw bits of numbers around 1, or of any integers."""
    if of in ("s8", "u8"):
        return rng.integers(0, 256, shape).astype(np.uint8)
    numbers = rng.standard_normal(shape)
    if of == "f64":
        return numbers.view(np.uint64)
    form = FORMATS["f32" if of == "tf32" else of]
    places = np.maximum(np.frexp(numbers)[1] - 1, form.lowest) - form.fraction_bits
    return raw_of(np.ldexp(np.rint(np.ldexp(numbers, -places)), places), form)


def operands_of(kind: Kind, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A of each block row by row, and B column by column."""
    rng = np.random.default_rng(kind.depth)
    a = matrix_of((BLOCKS, rows, K), kind.a, rng)
    return a, matrix_of((BLOCKS, 8, K), kind.b, rng)


def expected(
    kind: Kind, rows: int, capability: tuple[int, int], a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """The registers of D, (blocks, registers, lanes)."""
    product = MatrixProduct(kind, rows)
    dtype = {"f16": np.uint16, "f64": np.uint64}.get(kind.result, np.uint32)
    total = np.zeros((BLOCKS, rows, 8), dtype)
    for start in range(0, K, kind.depth):
        steps = slice(start, start + kind.depth)
        right = b[..., steps].swapaxes(-1, -2)
        total = multiply(kind, capability, a[..., steps], right, total)
    return np.stack(product.registers(product.fragments[2].scatter(total)), axis=1)


@pytest.mark.parametrize(("kind", "rows"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@pytest.mark.sample(2)
def test_every_bit_and_count(kind: Kind, rows: int) -> None:
    ptx = compile_kernel(source_of(kind, rows), "k", "sm_90a", assemble=False).ptx
    a, b = operands_of(kind, rows)
    wanted = expected(kind, rows, (9, 0), a, b)
    word = np.uint64 if kind.a == "f64" else np.uint32
    out = np.zeros(wanted.shape, word)
    by_engine, by_oracle = (
        launch(executor, ptx, out, a, b, grid=BLOCKS) for executor in (ENGINE, ORACLE)
    )
    assert np.array_equal(by_engine.arrays[0], wanted)
    assert np.array_equal(by_oracle.arrays[0], wanted)
    assert by_engine.metrics == by_oracle.metrics
    opcode = next(each for each in by_engine.flow.forms if each.opcode_class == "tensor").opcode
    for outcome in (by_engine, by_oracle):
        assert outcome.count("executed", opcode) == BLOCKS * K // kind.depth
        assert outcome.count("lanes", opcode) == 32 * BLOCKS * K // kind.depth


@pytest.mark.parametrize("board", ["a100", "h100"])
def test_the_board_decides_not_the_target(board: str) -> None:
    kind, rows = Kind("mma", "f16", "f16", "f32", 16), 16
    text = source_of(kind, rows)
    binary = compile_kernel(text, "k", "sm_80")
    a, b = operands_of(kind, rows)
    device = EmulatedDevice(find_board(board), threads=1)
    by_board = {
        "a100": expected(kind, rows, (8, 0), a, b),
        "h100": expected(kind, rows, (9, 0), a, b),
    }
    assert not np.array_equal(*by_board.values())
    wanted = by_board[board]
    held = [device.upload(each) for each in (np.zeros(wanted.shape, np.uint32), a, b)]
    plan = LaunchPlan(
        kernel="k",
        source=SourceFile("k.cu", text),
        entry="k",
        grid=(BLOCKS, 1, 1),
        block=(32, 1, 1),
        signature=("C", "A", "B"),
    )
    arguments = dict(zip(plan.signature, (each.address for each in held), strict=True))
    device.launch(binary, plan, arguments)
    found = np.zeros(wanted.shape, np.uint32)
    device.download(held[0], found)
    assert np.array_equal(found, wanted)
