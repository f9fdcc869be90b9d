"""How a run is watched: its pace, the time left, and what Ctrl-C leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gemmkit.bench.estimate import emulation_seconds
from gemmkit.cli.output import _short
from gemmkit.cli.watch import Pace
from gemmkit.devices.choose import open_device
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The time that a test has set."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("gemmkit.cli.watch.time", clock)
    return clock


def test_the_time_left_follows_from_the_pace_of_this_machine(clock):
    pace = Pace([10.0, 30.0])
    pace.start(0)
    pace.see(0.0)
    assert pace.left() is None
    clock.now += 20
    pace.see(0.4)
    # Four planned seconds took twenty, so the other 36 take 180.
    assert pace.left() == pytest.approx(180)
    clock.now += 10
    pace.see(1.0)
    assert pace.left() == pytest.approx(90)


def test_what_comes_before_a_launch_says_nothing_of_the_pace(clock):
    pace = Pace([10.0, 10.0])
    pace.start(0)
    clock.now += 500
    pace.see(0.0)
    clock.now += 10
    pace.see(1.0)
    pace.start(1)
    clock.now += 500
    assert pace.left() == pytest.approx(10)


def test_a_short_look_and_no_plan_tell_nothing(clock):
    pace = Pace([10.0])
    pace.start(0)
    pace.see(0.0)
    clock.now += 0.1
    pace.see(0.5)
    assert pace.left() is None
    unplanned = Pace()
    unplanned.start(3)
    unplanned.see(0.5)
    assert unplanned.left() is None


def test_sanitizers_and_size_make_the_plan_longer():
    kernel = find_kernel("warp_tiled")

    def seconds(size: int, *, sanitize: bool) -> float:
        device = open_device("emulator", "rtx3090", sanitize=sanitize)
        problem = GemmProblem(size, size, size)
        plan = kernel.plan(problem, kernel.configure({}), device.spec)
        return emulation_seconds(plan, problem, device)

    assert seconds(4096, sanitize=True) > 2 * seconds(4096, sanitize=False)
    assert seconds(4096, sanitize=False) > 7 * seconds(2048, sanitize=False)


needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal")


def _interrupted(command: list[str], awaited: bytes) -> tuple[int, str]:
    """Run on a terminal of its own; type Ctrl-C once that has been shown.

    Returns the exit status and what the terminal got.
    """
    import pty

    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(sys.executable, [sys.executable, *command])
    seen, sent = b"", False
    while True:
        try:
            got = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not got:
            break
        seen += got
        if awaited in seen and not sent:
            os.write(terminal, b"\x03")
            sent = True
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), seen.decode()


@needs_pty
def test_ctrl_c_on_a_terminal_keeps_rows_and_records(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "records.json"
    words = ["sweep", "--kernels", "naive", "--sizes", "32,4096", "--device", "emulator"]
    command = ["-m", "gemmkit", *words, "--json", str(path)]
    status, shown = _interrupted(command, b"naive 4096x4096x1024")
    assert status == 130
    assert "Traceback" not in shown
    assert "Stopped early: 1 of 2 runs are complete." in shown
    assert shown.rstrip().endswith("interrupted")
    # The bar hides the cursor.
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    records = [Record.from_json(line) for line in path.read_text().splitlines()]
    assert [record.problem.m for record in records] == [32]


@needs_pty
def test_an_end_in_native_code_shows_the_cursor_again(tmp_path):
    # As where the main thread compiles, and Python's own handler does not get to run.
    script = tmp_path / "compiling.py"
    script.write_text("""
import time
from gemmkit.cli.output import StepBar
from gemmkit.interrupts import end_soon
end_soon()
with StepBar() as bar:
    bar.show(1, 12, "compiled naive")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            time.sleep(20)
        except KeyboardInterrupt:
            pass
""")
    status, shown = _interrupted([str(script)], b"compiled naive")
    assert status == 130
    assert shown.endswith("\r\x1b[2K\x1b[?25hinterrupted\r\n")


@pytest.mark.usefixtures("handles_interrupts")
def test_no_control_codes_where_there_is_no_terminal():
    script = "from gemmkit.cli.output import StepBar\nimport os, signal\n"
    script += "from gemmkit.interrupts import end_at_once\n"
    script += "end_at_once()\nwith StepBar(): os.kill(os.getpid(), signal.SIGINT)\n"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_long_name_leaves_room_for_the_bar():
    name = "kernel_" * 28 + "end"
    seen = _short(f"{name} 64x64x64")
    assert len(seen) == 40
    assert seen.startswith("kernel_")
    assert seen.endswith("end 64x64x64")
    assert _short("naive 64x64x64") == "naive 64x64x64"
