"""What wgmma computes on the engine and in the oracle is what an H100 returned, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor
from warpgroup_programs import (
    LANES,
    THREADS,
    TILE_BYTES,
    Instruction,
    factors_of,
    registers_of,
    run,
    tile_address,
)

from gemmkit.emulator.isa.matrices import MatrixProduct
from gemmkit.emulator.numerics.rules import Kind

DATA = Path(__file__).parents[1] / "numerics" / "data"
NAMES = [path.stem for path in sorted(DATA.glob("wgmma_*.npz"))]
B_AT = 4096
# The distributions on which the oracle, which is slow, runs too.
FEW = 2


def descriptor(at: int) -> int:
    """K-major without a swizzle: 8 rows of 16 bytes, then the next 16 bytes along k."""
    return at >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32


def laid_out(matrices: np.ndarray) -> np.ndarray:
    """The bytes of matrices (blocks, rows, k) in that layout."""
    blocks, rows, depth = matrices.shape
    parts = matrices.reshape(blocks, rows // 8, 8, 2, depth // 2).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(parts).view(np.uint8).reshape(blocks, -1)


@pytest.mark.parametrize(
    ("name", "in_registers"),
    [
        *((name, False) for name in NAMES),
        *((name, True) for name in NAMES if name.endswith(("bf16_f32", "tf32_f32", "s32"))),
    ],
)
@pytest.mark.parametrize("way", [ENGINE, ORACLE], ids=lambda each: each.name)
@pytest.mark.sample(5)
def test_measured(name: str, in_registers: bool, way: Executor) -> None:
    _, shape, operands, result = name.split("_")
    kind = Kind("wgmma", operands, operands, result, int(shape.partition("k")[2]))
    with np.load(DATA / f"{name}.npz") as data:
        a, b, c, d = (data[each].reshape(-1, *data[each].shape[-2:]) for each in "ABCD")
    if way is ORACLE:
        a, b, c, d = (each[:: len(each) // FEW] for each in (a, b, c, d))
    # The 16 measured rows, four times: each warp computes them.
    a, c, d = (np.tile(each, (1, 4, 1)) for each in (a, c, d))
    immediates = {"s32": 0}.get(result, 4 - in_registers if kind.depth == 16 else 2)
    each = Instruction(
        f"{shape}.{result}.{operands}.{operands}", in_registers, (1, 1, 0, 0)[:immediates]
    )
    product, blocks = MatrixProduct(kind, 16), len(a)
    tile = np.zeros((blocks, TILE_BYTES), np.uint8)
    for start, matrices in ((0, a), (B_AT, np.swapaxes(b, 1, 2))):
        data = laid_out(np.ascontiguousarray(matrices))
        tile[:, start : start + data.shape[1]] = data
    base = tile_address(each)
    found = run(
        way, each, tile, np.stack([registers_of(product, one) for one in c]),
        left=descriptor(base), right=descriptor(base + B_AT),
        factors=np.stack([factors_of(product, one) for one in a]),
    ).arrays[1]  # fmt: skip
    wanted = np.stack([registers_of(product, one) for one in d])
    assert found.shape == (blocks, THREADS, each.sums)
    assert wanted.shape[1] == 4 * LANES
    assert np.array_equal(found, wanted)


def test_all_kinds_are_there() -> None:
    assert len(NAMES) == 9
