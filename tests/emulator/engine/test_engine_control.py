"""What ends a launch that does not end by itself: limits, deadlock, traps, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from launching import ENGINE, kernel_ptx, launch

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.errors import DeviceError

ENDLESS = kernel_ptx("mov.u32 %r1, 0;\nAGAIN: add.u32 %r1, %r1, 1;\nbra AGAIN;")


def test_an_endless_kernel_meets_its_limit() -> None:
    memory = DeviceMemory()
    asked = LaunchRequest((3, 1, 1), (64, 1, 1), bytes(8))
    with pytest.raises(DeviceError, match=r"did not end within 5,000,000 steps.*kernel\.cu:3"):
        load(ENDLESS, "k").run(asked, memory, max_steps=5_000_000)


@pytest.mark.parametrize("most", [1, 1000])
def test_a_limit_below_a_share_of_work_holds(most: int) -> None:
    text = kernel_ptx(
        "mov.u32 %r1, 0;\nAGAIN: add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9000;\n@%p1 bra AGAIN;"
    )
    asked = LaunchRequest((1, 1, 1), (32, 1, 1), bytes(8))
    with pytest.raises(DeviceError, match=f"did not end within {most:,} steps"):
        load(text, "k").run(asked, DeviceMemory(), max_steps=most)
    load(text, "k").run(asked, DeviceMemory(), max_steps=100_000)


def test_many_short_blocks_do_not_meet_the_limit() -> None:
    text = kernel_ptx(
        "mov.u32 %r1, 0;\nAGAIN: add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 2000;\n@%p1 bra AGAIN;"
    )
    asked = LaunchRequest((3000, 1, 1), (32, 1, 1), bytes(8))
    execution = load(text, "k").run(asked, DeviceMemory(), max_steps=100_000)
    assert execution.tally.executed.sum() > 3000 * 2000


def test_a_deadlock_names_every_waiting_warp() -> None:
    text = kernel_ptx(
        """
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra FIRST;
        bar.sync 2, 96;
        FIRST: bar.sync 1, 96;
        """
    )
    with pytest.raises(DeviceError) as caught:
        launch(ENGINE, text, np.zeros(1), grid=2, block=64)
    text = str(caught.value)
    assert "deadlock in block (" in text
    assert "warp 0 waits at kernel.cu:4" in text
    assert "warp 1 waits at kernel.cu:3" in text


def test_warps_that_have_left_do_not_keep_others_waiting() -> None:
    body = """
        setp.ge.u32 %p1, %tid, 40;
        @%p1 exit;
        bar.sync 0;
        st.global.u32 [%at], 1;
    """
    found = launch(ENGINE, kernel_ptx(body), np.zeros(128, np.uint32), block=128).arrays[0]
    assert found.sum() == 40


def test_a_producer_need_not_wait() -> None:
    """Warp 0 fills shared memory and arrives; warp 1 waits for it, through two barriers in turn."""
    body = """
        mov.u32 %r1, 0;
        setp.ge.u32 %p1, %tid, 32;
        @%p1 bra CONSUME;
        PRODUCE: st.shared.u32 [word], %r1;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        add.u32 %r1, %r1, 1;
        setp.lt.u32 %p2, %r1, 5;
        @%p2 bra PRODUCE;
        bra DONE;
        CONSUME: bar.sync 1, 64;
        ld.shared.u32 %r2, [word];
        add.u32 %r3, %r3, %r2;
        bar.sync 2, 64;
        add.u32 %r1, %r1, 1;
        setp.lt.u32 %p2, %r1, 5;
        @%p2 bra CONSUME;
        DONE: st.global.u32 [%at], %r3;
    """
    text = kernel_ptx(body, declarations=".shared .align 4 .b8 word[4];")
    found = launch(ENGINE, text, np.zeros(64, np.uint32), block=64).arrays[0]
    assert found.tolist() == [0] * 32 + [0 + 1 + 2 + 3 + 4] * 32


def test_a_trap_names_its_line() -> None:
    text = kernel_ptx("setp.eq.u32 %p1, %tid, 40;\n@%p1 trap;")
    with pytest.raises(DeviceError, match=r"trap at kernel\.cu:2, warp 1 of block \(0, 0, 0\)"):
        launch(ENGINE, text, np.zeros(1), block=64)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.usefixtures("handles_interrupts")
def test_ctrl_c_stops_at_once_and_leaves_all_usable() -> None:
    program = textwrap.dedent(
        f"""
        import time
        from gemmkit.emulator import DeviceMemory, LaunchRequest, load

        endless, memory = load({ENDLESS!r}, "k"), DeviceMemory()
        asked = LaunchRequest((100, 1, 1), (256, 1, 1), bytes(8))
        print("running", flush=True)
        try:
            endless.run(asked, memory, threads=2)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        short = load({kernel_ptx("st.global.u32 [%at], %tid;")!r}, "k")
        piece = memory.allocate(128)
        packed = piece.address.to_bytes(8, "little")
        short.run(LaunchRequest((1, 1, 1), (32, 1, 1), packed), memory)
        print(memory.view(piece.address, 128)[4 * 31], flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "running\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        # One that Ctrl-C has not stopped would run on after the tests.
        process.kill()
        process.communicate()
    assert output == "stopped\n31\n", errors
