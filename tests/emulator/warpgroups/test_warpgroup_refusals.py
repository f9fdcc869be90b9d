"""wgmma that is not valid is one clear sentence, on the engine and in the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch
from warpgroup_programs import THREADS, TILE_BYTES, Instruction, run, tile_address

from gemmkit.emulator import load
from gemmkit.errors import DeviceError, UnsupportedInstruction

PLAIN = Instruction("m64n8k16.f32.f16.f16", False, (1, 1, 0, 0))
START = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}"


def descriptor(at: int) -> int:
    return at >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (0, 1 << 46, r"of which bit 46 must be zero"),
        (1 << 14 | 1 << 53, 0, r"of which bits 14, 53 must be zero"),
        (TILE_BYTES >> 4, 0, r"reads A at 0x[0-9a-f]+ of shared memory, out of bounds.*no swizzle"),
        (0, TILE_BYTES >> 4 | 1 << 62, r"reads B at .* out of bounds.*a 128-byte swizzle"),
    ],
)
def test_descriptors(executor: Executor, left: int, right: int, text: str) -> None:
    start = descriptor(tile_address(PLAIN))
    tile, sums = np.zeros(TILE_BYTES, np.uint8), np.zeros((THREADS, PLAIN.sums), np.uint32)
    with pytest.raises(DeviceError, match=text) as raised:
        run(executor, PLAIN, tile, sums, left=start + left, right=start + right)
    assert "kernel.cu:" in str(raised.value)
    assert "thread (" in str(raised.value)


def body(guard: str = "", a: str = "%rd10", scale: str = "%p1") -> str:
    return kernel_ptx(
        f"""
mov.b64 %rd10, tile;
shr.u64 %rd10, %rd10, 4;
cvt.u64.u32 %rd11, %tid;
add.u64 %rd11, %rd10, %rd11;
setp.ne.b32 %p0, %tid, 5;
setp.eq.b32 %p1, %tid, %tid;
setp.lt.u32 %p2, %tid, 40;
{guard} {START}, {a}, %rd10, {scale}, 1, 1, 0, 0;
""",
        declarations=".shared .align 1024 .b8 tile[4096];",
        target="sm_90a",
    )


@pytest.mark.parametrize(
    ("ptx", "threads", "text"),
    [
        (body("@%p0"), 128, "with 31 of the 32 lanes"),
        (body(), 96, "a block of 3 warps; a warpgroup is four warps"),
        (body(), 120, "with 24 of the 32 lanes"),
        (body(a="%rd11"), 128, "matrix descriptors of A that differ between the lanes"),
        (body(scale="%p2"), 128, "values of scale-d that differ between the lanes"),
    ],
)
def test_warpgroups(executor: Executor, ptx: str, threads: int, text: str) -> None:
    with pytest.raises(DeviceError, match=text):
        launch(executor, ptx, np.zeros(4, np.uint32), block=threads)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd10, %rd10, "
         "%r0, 0, %p1, 1, 1, 0, 0;", "sparse products of a warpgroup"),
        ("wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r0, %r1, %r2, %r3}, %rd10, "
         "%rd10, %p1;", "products of single bits"),
        (f"{START}, %rd10, %rd10, %p1, 1, 2, 0, 0;", "does not take these operands"),
        (f"{START}, %rd10, %rd10, %p1, 1, 1;", "does not take these operands"),
        ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f0}, %rd10, %rd10, %p1, 1, 1, 0, 0;",
         "these types and this shape"),
        ("wgmma.wait_group.sync.aligned -1;", "does not take these operands"),
    ],
)  # fmt: skip
def test_forms(line: str, text: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=text):
        load(kernel_ptx(line, target="sm_90a"), "k")


def test_other_architectures_have_none() -> None:
    with pytest.raises(UnsupportedInstruction, match="an instruction of Hopper, not of Ampere"):
        load(body(), "k", capability=(8, 0))
