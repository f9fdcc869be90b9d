"""Boxes that are stored over the edge of a tensor: what is clipped need not hold values."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.isa.tensor_copies import box_at
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.emulator.sanitizer.tensor_places import box_granules, stored_granules
from gemmkit.findings import Finding
from gemmkit.jit.compiler import compile_kernel
from gemmkit.tensor_maps import TensorMap

# The tensor has 10 columns of 12 in memory, and 5 rows; the box 16 columns and 8 rows. Elements of
# `part` are set up to some row and column.
KERNEL = """
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void k(const __grid_constant__ Map map, int rows, int cols) {
    __shared__ float part[8][16];
    __shared__ alignas(1024) char tile[512];
    const int row = threadIdx.x / 16, col = threadIdx.x % 16;
    if (row < rows && col < cols) part[row][col] = 1;
    const int chunk = SWIZZLE ? col / 4 ^ row / 2 % 4 : col / 4;
    *(float*)(tile + row * 64 + chunk * 16 + col % 4 * 4) = 2 * part[row][col];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {0, 0}], [%1];"
                     :: "l"(&map), "r"((unsigned)__cvta_generic_to_shared(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}"""


@cache
def compiled(swizzle: int) -> str:
    source = KERNEL.replace("SWIZZLE", str(swizzle))
    return compile_kernel(source, "k", "sm_90a", options=("--minimal",), assemble=False).ptx


def findings(rows: int, cols: int, swizzle: int) -> tuple[Finding, ...]:
    memory = DeviceMemory()
    c = memory.allocate(5 * 48, "C")
    packed = encoded(TensorMap(c.address, "float32", (10, 5), (48,), (16, 8), swizzle=swizzle))
    packed += np.array([rows, cols], np.int32).tobytes()
    execution = load(compiled(swizzle), "k").run(
        LaunchRequest((1, 1, 1), (128, 1, 1), packed), memory, threads=1, sanitize=True
    )
    if rows >= 5 and cols >= 10:
        held = memory.view(c.address, c.nbytes).view(np.float32).reshape(5, 12)
        assert (held[:, :10] == 2).all()
    return execution.findings


@pytest.mark.parametrize("swizzle", [0, 64])
def test_what_is_clipped_need_not_be_set(swizzle: int) -> None:
    assert not findings(5, 10, swizzle)


@pytest.mark.parametrize("swizzle", [0, 64])
@pytest.mark.parametrize(("rows", "cols"), [(4, 16), (8, 9)])
def test_what_is_stored_must_be_set(rows: int, cols: int, swizzle: int) -> None:
    (found,) = findings(rows, cols, swizzle)
    assert (found.check, found.kind, found.array) == ("initcheck", "uninitialized", "tile")
    row, col = (4, 0) if rows == 4 else (0, 9)
    chunk = col // 4 ^ (row // 2 % 4 if swizzle else 0)
    first = 64 * row + 16 * chunk + col % 4 * 4
    # The first one in the order of addresses.
    assert found.offset == (256 if rows == 4 else first)
    assert found.other is not None
    assert "which thread (" in found.message
    assert "writes with a value that was never set" in found.message


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
def test_granules_of_a_clipped_box(swizzle: int, shift: int) -> None:
    """Against a model that goes through its elements, of three dimensions."""
    form = form_of("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group")
    assert form is not None
    counts = (16, 4, 2)
    each = TensorMap(0, "float16", (21, 6, 3), (48, 288), counts, swizzle=swizzle)
    whole = box_granules(box_at(form, each, (0, 0, 0)), 4096, shift)
    for at in ((0, 0, 0), (8, 0, 1), (16, 4, 2), (16, 4, 3)):
        wanted = set()
        for z, y, x in np.ndindex(counts[::-1]):
            if x + at[0] < 21 and y + at[1] < 6 and z + at[2] < 3:
                row = z * counts[1] + y
                byte = row * max(swizzle, 32) + 2 * x
                byte ^= (byte // 128 & max(swizzle // 16 - 1, 0)) * 16
                wanted |= {4096 + byte + part >> shift for part in (0, 1)}
        found = stored_granules(box_at(form, each, at), 4096, shift).tolist()
        assert found == sorted(wanted)
        assert set(found) <= set(whole.tolist())
