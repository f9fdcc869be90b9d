"""Runs of which only the requests to memory matter leave out what computes data alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from launching import parsed

from gemmkit.analysis.trace import trace
from gemmkit.emulator import DeviceMemory, load, oracle
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.oracle.needed_values import of_data_alone
from gemmkit.emulator.oracle.steps import steps_of
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

INDICES = np.array([5, 3, 7, 0, 1, 6, 2, 4], np.uint32)


def ptx(body: str) -> str:
    """A kernel of a pointer; %rd2 is the address of each thread's own number, which is in %r1."""
    return f"""
.version 8.5
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b8 held[32];
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd2, %rd1, %rd2;
    ld.global.u32 %r1, [%rd2];
    {body}
    ret;
}}
"""


DATA = """
    mov.b32 %f1, %r1;
    fma.rn.f32 %f2, %f1, %f1, %f1;
    add.cc.u32 %r2, %r1, %r1;
    addc.u32 %r3, %r2, %r1;
    st.global.f32 [%rd2], %f2;
    st.global.u32 [%rd2], %r3;"""
LOADED_INDEX = """
    mul.lo.u32 %r2, %r1, 4;
    cvt.u64.u32 %rd3, %r2;
    add.s64 %rd3, %rd1, %rd3;
    st.global.u32 [%rd3], %r1;"""
# The index of each thread is one that another has stored.
STORED_INDEX = """
    mov.u32 %r4, held;
    mad.lo.u32 %r5, %r0, 4, %r4;
    mul.lo.u32 %r2, %r1, 4;
    st.shared.u32 [%r5], %r2;
    bar.sync 0;
    xor.b32 %r6, %r5, 4;
    ld.shared.u32 %r7, [%r6];
    cvt.u64.u32 %rd3, %r7;
    add.s64 %rd3, %rd1, %rd3;
    st.global.u32 [%rd3], %r1;"""
BRANCH = """
    add.u32 %r2, %r1, 1;
    and.b32 %r2, %r2, 1;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra END;
    st.global.u32 [%rd2], %r0;
END:"""


def left_out(body: str) -> list[str]:
    _, flow = parsed(ptx(body))
    found = of_data_alone(steps_of(flow))
    return [form.opcode for number, form in enumerate(flow.forms) if number in found]


def last_offsets(body: str) -> list[int | None]:
    """The offsets of the eight threads' last request."""
    memory = DeviceMemory()
    out = memory.allocate(32, "out")
    memory.view(out.address, 32)[:] = INDICES.view(np.uint8)
    request = LaunchRequest((1, 1, 1), (8, 1, 1), out.address.to_bytes(8, "little"))
    accesses = load(ptx(body), "k").watch(request, memory, range(1)).accesses
    assert accesses[-1].kind == "store"
    return list(accesses[-1].offsets[:8])


def test_values_of_stores_are_left_out():
    assert left_out(DATA) == ["mov.b32", "fma.rn.f32", "add.cc.u32", "addc.u32"]
    assert last_offsets(DATA) == list(range(0, 32, 4))


def test_an_index_is_none():
    assert left_out(LOADED_INDEX) == []
    assert last_offsets(LOADED_INDEX) == (4 * INDICES).tolist()


def test_nor_is_one_that_a_thread_stores_for_another():
    assert left_out(STORED_INDEX) == []
    assert last_offsets(STORED_INDEX) == (4 * INDICES.reshape(-1, 2)[:, ::-1]).ravel().tolist()


def test_nor_what_a_branch_depends_on():
    assert left_out(BRANCH) == []
    assert last_offsets(BRANCH) == [
        None if index % 2 else 4 * thread for thread, index in enumerate(INDICES.tolist())
    ]


@pytest.mark.parametrize("name", ["shared_tiling", "split_k"])
def test_requests_of_a_rung_are_those_of_a_whole_run(name, monkeypatch):
    kernel, problem, board = find_kernel(name), GemmProblem(64, 64, 32), find_board("rtx3090")
    seen = trace(kernel, problem, board)
    monkeypatch.setattr(oracle, "of_data_alone", lambda steps: frozenset())
    whole = trace(kernel, problem, board)
    # Memory lies elsewhere each time.
    requests, wanted = (
        [replace(each, base=0) for each in found.accesses] for found in (seen, whole)
    )
    assert requests == wanted
    assert requests
