"""Parameters read through an address: a lane's own one, one in a loop, a generic one."""

from __future__ import annotations

import numpy as np
import pytest
from launching import EXECUTORS, Executor, launch

from gemmkit.emulator import DeviceMemory, load
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.errors import DeviceError

VALUES = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint32)


def ptx(body: str) -> str:
    """A kernel that writes %r1 of each thread; its parameters are a pointer and eight numbers."""
    return f"""
.version 8.5
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .align 4 .b8 given[32])
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.b64 %rd3, given;
    {body}
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""


def run(executor: Executor, body: str, threads: int = 8) -> np.ndarray:
    found = launch(
        executor, ptx(body), np.zeros(threads, np.uint32), np.void(VALUES.tobytes()), block=threads
    )
    assert found.count("requests", "ld.param.u32") == 0, "constant memory has no requests"
    return found.arrays[0]


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda each: each.name)
class TestAddresses:
    def test_each_lane_has_its_own(self, executor: Executor) -> None:
        body = "add.s64 %rd3, %rd3, %rd2; ld.param.u32 %r1, [%rd3];"
        np.testing.assert_array_equal(run(executor, body), VALUES)

    def test_one_runs_through_a_loop(self, executor: Executor) -> None:
        body = """
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
L:  ld.param.u32 %r3, [%rd3+4];
    add.u32 %r1, %r1, %r3;
    add.s64 %rd3, %rd3, 4;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 7;
    @%p1 bra L;"""
        np.testing.assert_array_equal(run(executor, body), [VALUES[1:].sum()] * 8)

    def test_one_is_chosen_by_a_predicate(self, executor: Executor) -> None:
        body = """
    add.s64 %rd4, %rd3, 28;
    setp.lt.u32 %p1, %r0, 3;
    selp.b64 %rd3, %rd3, %rd4, %p1;
    ld.param.u32 %r1, [%rd3];"""
        np.testing.assert_array_equal(run(executor, body), [3, 3, 3, 6, 6, 6, 6, 6])

    def test_a_generic_one(self, executor: Executor) -> None:
        body = "cvta.param.u64 %rd4, %rd3; add.s64 %rd4, %rd4, %rd2; ld.u32 %r1, [%rd4];"
        np.testing.assert_array_equal(run(executor, body), VALUES)

    def test_a_known_one_is_a_load_by_name(self, executor: Executor) -> None:
        body = "ld.param.v2.u32 {%r2, %r3}, [%rd3+8]; add.u32 %r1, %r2, %r3;"
        np.testing.assert_array_equal(run(executor, body), [5] * 8)

    def test_one_behind_the_parameters(self, executor: Executor) -> None:
        body = "add.s64 %rd3, %rd3, %rd2; ld.param.u32 %r1, [%rd3];"
        with pytest.raises(DeviceError) as error:
            run(executor, body, threads=9)
        if executor.name == "engine":
            assert "0 bytes past the end of 'kernel parameters' (40 bytes)" in str(error.value)


def test_requests_for_parameters_are_watched_by_name() -> None:
    text = ptx("cvta.param.u64 %rd4, %rd3; add.s64 %rd4, %rd4, %rd2; ld.u32 %r1, [%rd4];")
    memory = DeviceMemory()
    out = memory.allocate(32, "out")
    given = out.address.to_bytes(8, "little") + VALUES.tobytes()
    request = LaunchRequest((1, 1, 1), (8, 1, 1), given)
    read, written = load(text, "k").watch(request, memory, range(1)).accesses
    assert (read.array, read.kind) == ("kernel parameters", "load")
    assert read.offsets[:8] == tuple(range(8, 40, 4))
    assert (written.array, written.kind) == ("out", "store")
    assert written.offsets[:8] == tuple(range(0, 32, 4))
    # Nothing is left of the parameters.
    assert memory.find(read.base) is None
