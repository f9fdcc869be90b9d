"""`ldmatrix`, `stmatrix` and `movmatrix` on every executor: results, addresses, counts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

DATA = Path(__file__).parent / "data" / "ldmatrix_stmatrix.csv"
FORMS = [(count, turned) for count in (1, 2, 4) for turned in ("", ".trans")]


def registers(count: int) -> str:
    return "{" + ", ".join(f"%x{number}" for number in range(count)) + "}"


def moving(instruction: str, count: int, *, words: int = 1024) -> str:
    """The kernel (out, in, offsets) copies `in` to shared memory, runs the instruction with the
    lanes' byte offsets from there, and copies registers and shared memory to `out`."""
    loads = "\n".join(
        f"ld.global.b32 %v, [%rd1+{128 * row}]; st.shared.b32 [%here+{128 * row}], %v;"
        for row in range(words // 32)
    )
    fill = "\n".join(f"ld.global.b32 %x{n}, [%rd1+{128 * n}];" for n in range(count))
    store = "\n".join(f"st.global.b32 [%rd0+{128 * n}], %x{n};" for n in range(4))
    back = "\n".join(
        f"ld.shared.b32 %v, [%here+{128 * row}]; st.global.b32 [%rd0+{512 + 128 * row}], %v;"
        for row in range(words // 32)
    )
    return kernel_ptx(
        f"""
        mov.b32 %x0, 0; mov.b32 %x1, 0; mov.b32 %x2, 0; mov.b32 %x3, 0;
        mul.wide.u32 %lane, %tid, 4;
        add.s64 %rd0, %rd0, %lane; add.s64 %rd1, %rd1, %lane; add.s64 %rd2, %rd2, %lane;
        mov.u32 %base, tile; shl.b32 %v, %tid, 2; add.u32 %here, %base, %v;
        {loads}
        bar.warp.sync -1;
        ld.global.u32 %v, [%rd2]; add.u32 %row, %base, %v;
        {fill if instruction.startswith("st") else ""}
        {instruction}
        bar.warp.sync -1;
        {store}
        {back}
        """,
        pointers=3,
        target="sm_90",
        declarations=f".reg .b32 %x<4>, %v, %here, %base, %row; .reg .b64 %lane;"
        f".shared .align 128 .b8 tile[{4 * words}];",
    )


def outputs(executor: Executor, instruction: str, count: int, given: np.ndarray, at: list[int]):
    offsets = np.array(at, np.uint32)
    text = moving(instruction, count, words=given.size)
    out = np.zeros((4 + given.size // 32, 32), np.uint32)
    outcome = launch(executor, text, out, given.reshape(-1, 32), offsets)
    return outcome, outcome.arrays[0][:4], outcome.arrays[0][4:].reshape(-1).view(np.uint16)


def some_rows(rng: np.random.Generator) -> list[int]:
    """Distinct rows of 16 bytes in 4 KiB, in random order."""
    return (16 * rng.permutation(256)[:32]).tolist()


@pytest.mark.parametrize(("count", "turned"), FORMS)
def test_loads_distribute_rows(executor: Executor, count: int, turned: str) -> None:
    rng = np.random.default_rng(count)
    given, at = rng.integers(0, 2**32, 1024, np.uint32), some_rows(rng)
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {registers(count)}, [%row];"
    # Addresses of lanes without a row mean nothing.
    at[8 * count :] = [3] * (32 - 8 * count)
    _, found, _ = outputs(executor, text, count, given, at)
    memory = given.view(np.uint16)
    for number in range(count):
        matrix = np.stack([memory[at[8 * number + row] // 2 :][:8] for row in range(8)])
        matrix = matrix.T if turned else matrix
        assert np.array_equal(found[number].view(np.uint16).reshape(8, 8), matrix)


@pytest.mark.parametrize(("count", "turned"), FORMS)
def test_stores_collect_rows(executor: Executor, count: int, turned: str) -> None:
    rng = np.random.default_rng(count)
    given, at = rng.integers(0, 2**32, 1024, np.uint32), some_rows(rng)
    text = f"stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 [%row], {registers(count)};"
    at[8 * count :] = [3] * (32 - 8 * count)
    _, _, found = outputs(executor, text, count, given, at)
    wanted = given.view(np.uint16).copy()
    for number in range(count):
        matrix = given[32 * number :][:32].view(np.uint16).reshape(8, 8)
        for row, numbers in enumerate(matrix.T if turned else matrix):
            wanted[at[8 * number + row] // 2 :][:8] = numbers
    assert np.array_equal(found, wanted)


def test_movmatrix_transposes(executor: Executor) -> None:
    given = np.random.default_rng(1).integers(0, 2**32, 1024, np.uint32)
    text = "ld.shared.b32 %x1, [%here]; movmatrix.sync.aligned.m8n8.trans.b16 %x0, %x1;"
    _, found, _ = outputs(executor, text, 1, given, [0] * 32)
    matrix = given[:32].view(np.uint16).reshape(8, 8)
    assert np.array_equal(found[0].view(np.uint16).reshape(8, 8), matrix.T)
