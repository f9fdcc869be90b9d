"""Kernels that compute on the bits of shared addresses: right or wrong as on the board."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from launching import ENGINE, Executor, launch

from gemmkit.emulator.machine import memory
from gemmkit.errors import DeviceError
from gemmkit.jit.compiler import compile_kernel

TILES = np.arange(2048, dtype=np.uint32)

# Two tiles of 4 KiB; code that assumes an alignment of 8 KiB flips one bit.
FLIPPED = """
extern "C" __global__ void k(unsigned* out) {
    __shared__ __align__(8192) unsigned tiles[2048];
    for (unsigned i = threadIdx.x; i < 2048; i += 32) tiles[i] = out[i];
    __syncthreads();
    unsigned at = (unsigned)__cvta_generic_to_shared(tiles) + 4 * threadIdx.x FLIP, found;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found) : "r"(at));
    out[threadIdx.x] = found;
    out[32 + threadIdx.x] = (unsigned)(unsigned long long)tiles;
}
"""
FLIPS = {"xor": "^ 4096", "or": "| 4096", "add": "+ 4096"}


def flipped(executor: Executor, arch: str, flip: str) -> np.ndarray:
    source = FLIPPED.replace("at = (", "at = ((").replace(" FLIP", f") {FLIPS[flip]}")
    ptx = compile_kernel(source, "k", arch, assemble=False).ptx
    found: np.ndarray = launch(executor, ptx, TILES).arrays[0]
    return found


@pytest.mark.parametrize("flip", FLIPS)
def test_without_an_offset_every_way_works(executor: Executor, flip: str) -> None:
    found = flipped(executor, "sm_86", flip)
    assert np.array_equal(found[:32], TILES[1024:][:32])
    assert not found[32:64].any()


@pytest.mark.parametrize("flip", FLIPS)
def test_with_the_offset_of_an_h100(executor: Executor, flip: str) -> None:
    """0x400 | 4096 and 0x400 ^ 4096 are correct while the sum has no carry: all three agree."""
    found = flipped(executor, "sm_90a", flip)
    assert np.array_equal(found[:32], TILES[1024:][:32])
    assert set(found[32:64].tolist()) == {0x400}


def test_a_flip_back_leaves_the_array(executor: Executor) -> None:
    """The upper end of the first tile is already in the next 4 KiB, where the flip goes down."""
    source = FLIPPED.replace("4 * threadIdx.x FLIP", "3968 + 4 * threadIdx.x FLIP")
    source = source.replace("at = (", "at = ((").replace(" FLIP", ") ^ 4096")
    for arch, right in (("sm_86", True), ("sm_90a", False)):
        ptx = compile_kernel(source, "k", arch, assemble=False).ptx
        if right:
            found = launch(executor, ptx, TILES).arrays[0]
            assert np.array_equal(found[:32], TILES[1024 + 992 :][:32])
            continue
        with pytest.raises(DeviceError, match=r"0x380|out of bounds"):
            launch(executor, ptx, TILES)


def test_what_lies_below_is_named() -> None:
    body = 'asm volatile("st.shared.u32 [%0], %1;" :: "r"(0x80), "r"(t[threadIdx.x]));'
    source = f'extern "C" __global__ void k(unsigned* t) {{ __shared__ unsigned s[64]; \
        s[threadIdx.x] = 1; __syncthreads(); t[0] = s[1]; {body} }}'
    ptx = compile_kernel(source, "k", "sm_90a", assemble=False).ptx
    with pytest.raises(DeviceError, match=r"1,024 bytes that the system reserves.*0x400"):
        launch(ENGINE, ptx, TILES)


@pytest.mark.skipif(not hasattr(mmap, "MAP_32BIT"), reason="memory cannot be asked for below 4 GiB")
def test_device_memory_is_not_where_shared_addresses_are(monkeypatch):
    """The heap of some interpreters is below 4 GiB."""
    below: list[mmap.mmap] = []

    def low(nbytes: int, alignment: int) -> np.ndarray:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_32BIT
        below.append(mmap.mmap(-1, nbytes + alignment, flags))
        whole = np.frombuffer(below[-1], np.uint8)
        start = -whole.ctypes.data % alignment
        assert whole.ctypes.data < 1 << 32
        return whole[start : start + nbytes]

    monkeypatch.setattr(memory, "aligned_bytes", low)
    device = memory.DeviceMemory()
    allocation = device.allocate(1000)
    assert below
    assert allocation.address >= 1 << 32
    assert allocation.address % memory.ALIGNMENT == 0
    assert not device.view(allocation.address, 1000).any()
