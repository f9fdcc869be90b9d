"""What a terminal shows: lines that fit, rows as they are done, any encoding, Ctrl-C at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemmkit.cli as cli
from gemmkit.cli.encoding import show_any_text
from gemmkit.cli.output import Printer, TableStream
from gemmkit.interrupts import end_at_once, raise_again
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.units import microseconds_text, readable, seconds_text

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


def test_a_pipe_gets_whole_lines(call, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = call("ladder", "--size", "16", "--device", "emulator", "--kernels", "naive").stdout
    assert "waves" in wide
    assert "Too wide for this terminal" not in wide
    monkeypatch.setenv("COLUMNS", "80")
    narrow = call("ladder", "--size", "16", "--device", "emulator", "--kernels", "naive").stdout
    assert "Too wide for this terminal: " in narrow
    assert "waves per SM" in " ".join(narrow.rpartition("Too wide")[2].split())


def _table(*rows: tuple[str, str]) -> Table:
    columns = (Column("name", "left", reserve=6), Column("µs", reserve=5))
    return Table("Times", columns, tuple(Row(tuple(map(Cell, row))) for row in rows), ("A note.",))


def test_rows_are_printed_once_and_when_they_come(capsys):
    stream = TableStream(Printer())
    stream.show([_table(("a", "1.0"))])
    first = capsys.readouterr().out
    assert first.splitlines()[-1].split() == ["a", "1.0"]
    stream.show([_table(("a", "1.0"), ("b", "20.0"))])
    assert capsys.readouterr().out.split() == ["b", "20.0"]
    second = Table("Others", _table().columns, (Row((Cell("c"), Cell("3.0"))),))
    stream.finish([_table(("a", "1.0"), ("b", "20.0")), second])
    rest = capsys.readouterr().out
    assert rest.index("A note.") < rest.index("Others") < rest.index("c ")
    assert "20.0" not in rest


def test_a_table_whose_rows_changed_is_printed_again(capsys):
    stream = TableStream(Printer())
    stream.show([_table(("a", "1.0"))])
    capsys.readouterr()
    stream.finish([_table(("a", "1.5"), ("b", "2.0"))])
    rest = capsys.readouterr().out
    assert rest.count("Times") == 1
    assert "1.5" in rest
    assert "2.0" in rest


def test_columns_go_by_importance_and_long_cells_take_lines():
    columns = (
        Column("kernel", "left"),
        Column("error", drop=1),
        Column("regs", drop=2),
        Column("configuration", "left"),
    )
    row = Row((Cell("naive"), Cell("1e-6"), Cell("49"), Cell("BM=128,BN=128,BK=16,TM=8")))
    lines = Table("", columns, (row,)).to_text(30).plain.splitlines()
    # Text takes lines before a column goes.
    assert "error" in "\n".join(lines[:4])
    assert "regs" not in "\n".join(lines[:4])
    assert max(map(len, lines[:5])) <= 30
    joined = "".join(line[14:].strip() for line in lines[4:6])
    assert joined.startswith("BM=128,BN=128,BK=16,TM=8")


def test_the_error_of_a_check_is_shown_at_80_columns(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    heads = call("check", "warp_tiled", "--shape", "133x129x33,1").stdout.partition("───")[0]
    assert "error /\n" in heads
    assert "bound" in heads
    assert "Too wide" not in call("check", "naive").stdout


def test_times_are_in_units_that_read():
    assert microseconds_text(46.32) == "46.3 µs"
    assert microseconds_text(12_900) == "12.9 ms"
    assert microseconds_text(247_303_017.3) == "247.3 s"
    assert [seconds_text(each) for each in (8.4, 247, 7500)] == ["8 s", "4 min 7 s", "2 h 5 min"]
    assert readable("µs", [2e7, 4e7]) == ("s", [20.0, 40.0])
    assert readable("µs", [5.0, 4e7]) == ("µs", [5.0, 4e7])
    assert readable("%", [2e7]) == ("%", [2e7])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_without_unicode_get_the_nearest_characters(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    words = ["which", "512"] if encoding == "ascii" else ["info"]
    command = [sys.executable, "-m", "gemmkit", *words]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert re.search(r"22\.\d us" if encoding == "ascii" else r"2\^?³? - 1 × 65,535|2\?? ", text)
    assert "?" not in text


def test_records_on_standard_output_are_utf_8_in_any_locale():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "gemmkit", "bench", "naive", "--shape", "4", "--json", "-"]
    done = subprocess.run(
        [*command, "--device", "emulator"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("utf-8"))["kernel"] == "naive"


def test_every_character_of_the_sources_has_a_nearest_one(monkeypatch):
    package = Path(cli.__file__).parent.parent
    text = "".join(path.read_text("utf-8") for path in sorted(package.rglob("*.py")))
    letters = "".join({each for each in text if not each.isascii()})
    monkeypatch.setattr("sys.stdout", TextIOWrapper(BytesIO(), encoding="ascii"))
    show_any_text()
    shown = letters.encode("ascii", sys.stdout.errors)
    assert [each for each in letters if b"\\" in each.encode("ascii", sys.stdout.errors)] == []
    assert len(shown) >= len(letters)
    assert (
        "2³¹ - 1, 2⁻²⁴, rows ≡ 1".encode("ascii", sys.stdout.errors) == b"2^31 - 1, 2^-24, rows = 1"
    )


# A finder of modules that interrupts the import of the one that INTERRUPTS names.
_INTERRUPT_AN_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == os.environ.get("INTERRUPTS"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("latin-1", "2³¹ - 1, 2^-24, 10^9, 4^15, n²"),
        ("cp1252", "2³¹ - 1, 2^-24, 10^9, 4^15, n²"),
        ("ascii", "2^31 - 1, 2^-24, 10^9, 4^15, n^2"),
        ("utf-8", "2³¹ - 1, 2⁻²⁴, 10⁹, 4¹⁵, n²"),
    ],
)
def test_signs_of_an_exponent_are_not_mixed(monkeypatch, encoding, shown):
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, encoding=encoding))
    show_any_text()
    print("2³¹ - 1, 2⁻²⁴, 10⁹, 4¹⁵, n²", end="", flush=True)
    assert written.getvalue().decode(encoding) == shown


@needs_signals
@pytest.mark.parametrize("way", ["script", "-m", "-mgemmkit"])
@pytest.mark.parametrize("module", ["gemmkit.loading", "click", "gemmkit.cli.counters"])
@pytest.mark.sample
@pytest.mark.usefixtures("handles_interrupts")
def test_an_interrupt_while_modules_are_imported_is_one_line(way, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPT_AN_IMPORT)
    script = tmp_path / "gemmkit"
    script.write_text("from gemmkit.__main__ import main\nmain()\n")
    options = {"script": [str(script)], "-m": ["-m", "gemmkit"]}.get(way, [way])
    source = str(Path(cli.__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), source]),
        "INTERRUPTS": module,
    }
    command = [sys.executable, *options, "counters"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@needs_signals
@pytest.mark.usefixtures("handles_interrupts")
def test_a_program_that_imports_gemmkit_keeps_its_interrupts():
    script = """
import signal
import gemmkit
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@needs_signals
def test_an_interrupt_that_python_turned_into_another_error_is_an_interrupt(monkeypatch):
    before = signal.getsignal(signal.SIGINT)

    def broken(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise SyntaxError("cannot load unicodedata") from None

    monkeypatch.setattr("gemmkit.cli.importlib.import_module", broken)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        end_at_once()
        result = CliRunner().invoke(cli.gemmkit, ["counters"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@needs_signals
def test_handlers_of_others_stay():
    def handler(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, handler)
    try:
        end_at_once()
        assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_at_once()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        raise_again()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@needs_signals
@pytest.mark.usefixtures("handles_interrupts")
def test_an_interrupt_ends_native_code_at_once():
    # A sleep in C holds Python's handler up, as a compiler does.
    script = """
import ctypes, signal, sys
from gemmkit.interrupts import end_soon
signal.siginterrupt(signal.SIGINT, False)
end_soon()
libc = ctypes.CDLL(None)
rows = ["row"]
end = __import__("time").monotonic() + 20
while __import__("time").monotonic() < end:
    try:
        while rows:
            print(rows.pop(), flush=True)
        libc.usleep(900000)
    except KeyboardInterrupt:
        pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "row\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    # Not a measurement: without the watch it would go on for twenty seconds.
    assert time.monotonic() - begun < 10


def test_warnings_are_one_sentence(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.show_warnings_plainly()
        for _ in range(2):
            warnings.warn("the cache folder cannot be written", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "gemmkit: the cache folder cannot be written\n"


def test_build_fails_where_nothing_could_be_stored(call, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        result = call("build", "--gpu", "rtx3090", "--kernels", "naive_uncoalesced")
    assert result.exit_code == 2
    assert re.search(r"0 of \d+ compiled kernels are stored", " ".join(result.stderr.split()))
