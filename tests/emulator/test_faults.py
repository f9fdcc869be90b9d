"""A fault of a kernel ends the launch with an error that names the position."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.errors import DeviceError, UnsupportedInstruction

DATA = np.zeros(32, np.uint32)


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u32 %r1, [%at+4];",
        "ld.global.u32 %r1, [%at+-4];",
        "st.global.u32 [%rd0+128], %r1;",
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+128];",
        "ld.global.u8 %r1, [%rd5];",
        "ld.u32 %r1, [%rd0+512];",
        "red.global.add.u32 [%rd0+128], 1;",
        "ld.shared.u32 %r1, [64];",
        "st.shared.v4.u32 [64], {%r1, %r1, %r1, %r1};",
        "ld.local.u32 %r1, [own+16];",
    ],
)
def test_out_of_bounds(executor: Executor, body: str) -> None:
    declarations = ".shared .align 16 .b8 tile[64]; .local .align 4 .b8 own[16];"
    text = kernel_ptx("mov.u32 %r1, 0;\n" + body, declarations=declarations)
    with pytest.raises(DeviceError, match=r"out of bounds.*kernel\.cu:2"):
        launch(executor, text, DATA)


def test_the_thread_is_named(executor: Executor) -> None:
    body = """
        mov.u32 %r1, %tid.y;
        mov.u32 %r2, %ctaid.y;
        setp.eq.u32 %p1, %r1, 3;
        setp.eq.and.u32 %p1, %tid, 2, %p1;
        setp.eq.and.u32 %p1, %r2, 1, %p1;
        @%p1 ld.global.u32 %r1, [%rd0+4096];
    """
    with pytest.raises(DeviceError, match=r"kernel\.cu:6.*\(2, 3, 0\).*\(0, 1, 0\)"):
        launch(executor, kernel_ptx(body), DATA, grid=(1, 2, 1), block=(4, 8, 1))


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u32 %r1, [%rd0+2];",
        "ld.global.u16 %h1, [%rd0+1];",
        "ld.global.v2.u32 {%r1, %r2}, [%rd0+4];",
        "ld.global.f64 %fd1, [%rd0+4];",
        "st.shared.v4.u32 [8], {%r1, %r1, %r1, %r1};",
        "cp.async.cg.shared.global [8], [%rd0], 16;",
        "cp.async.ca.shared.global [8], [%rd0+4], 8;",
    ],
)
def test_misaligned(executor: Executor, body: str) -> None:
    text = kernel_ptx("mov.u32 %r1, 0;\n" + body, declarations=".shared .align 16 .b8 tile[64];")
    with pytest.raises(DeviceError, match=r"misaligned.*kernel\.cu:2"):
        launch(executor, text, DATA)


def test_a_deadlock_names_where_each_warp_waits(executor: Executor) -> None:
    body = """
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra FIRST;
        bar.sync 1, 64;
        bra END;
        FIRST:
        bar.sync 2, 64;
        END:
    """
    with pytest.raises(DeviceError, match="deadlock") as caught:
        launch(executor, kernel_ptx(body), np.zeros(64, np.uint32), block=64)
    assert "kernel.cu:3" in str(caught.value)
    assert "kernel.cu:6" in str(caught.value)


def test_a_trap_names_its_line(executor: Executor) -> None:
    body = """
        setp.eq.u32 %p1, %tid, 3;
        @%p1 trap;
    """
    with pytest.raises(DeviceError, match=r"trap.*kernel\.cu:2"):
        launch(executor, kernel_ptx(body), DATA)
    quiet = kernel_ptx("setp.eq.u32 %p1, %tid, 77;\n@%p1 trap;\nst.global.u32 [%at], %tid;")
    assert np.array_equal(launch(executor, quiet, DATA).arrays[0], np.arange(32))


def test_only_printf_can_be_called(executor: Executor) -> None:
    body = """
        { .param .b32 a; .param .b32 r;
        st.param.b32 [a], %tid;
        call.uni (r), someone_else, (a);
        }
    """
    text = kernel_ptx(body.replace("\n        call", " call"))
    with pytest.raises(UnsupportedInstruction, match="someone_else"):
        launch(executor, text, DATA)
