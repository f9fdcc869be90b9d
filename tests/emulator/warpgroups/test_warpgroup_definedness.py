"""Undefined accumulators of wgmma: found where they count, on the engine and in the oracle."""

from __future__ import annotations

import pytest
from launching import kernel_ptx
from test_undefined_bits import uses_of

from gemmkit.emulator import DeviceMemory, LaunchRequest

MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"


def program(scale: int, result: str) -> str:
    """A wgmma of accumulators of which only the second is set; one element of D is stored."""
    return kernel_ptx(
        f"""
mov.b64 %rd10, tile;
shl.b32 %r0, %tid, 3;
cvt.u64.u32 %rd11, %r0;
add.u64 %rd11, %rd10, %rd11;
mov.b64 %rd12, 0;
st.shared.b64 [%rd11], %rd12;
shr.u64 %rd10, %rd10, 4;
setp.eq.b32 %p1, %tid, %tid;
setp.eq.b32 %p2, {scale}, 1;
and.pred %p1, %p1, %p2;
mov.f32 %f1, 0f00000000;
fence.proxy.async;
bar.sync 0;
wgmma.fence.sync.aligned;
{MULTIPLY} {{%f0, %f1, %f2, %f3}}, %rd10, %rd10, %p1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
st.global.f32 [%at], {result};
""",
        declarations=".shared .align 1024 .b8 tile[1024];",
        target="sm_90a",
    )


@pytest.mark.parametrize(
    ("scale", "result", "found"),
    [(0, "%f0", False), (1, "%f0", True), (1, "%f1", False), (1, "%f3", True)],
)
def test_accumulators(scale: int, result: str, found: bool) -> None:
    """Whether there is a use, which both must find in the same lanes."""

    def prepare() -> tuple[DeviceMemory, LaunchRequest]:
        memory = DeviceMemory()
        out = memory.allocate(512, "out").address.to_bytes(8, "little")
        return memory, LaunchRequest((1, 1, 1), (128, 1, 1), out)

    assert bool(uses_of(program(scale, result), prepare)) == found
