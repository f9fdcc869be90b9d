"""Output of commands: tables and text to standard output, progress and hints to standard error."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from gemmkit.cli.encoding import HANDLER, nearest_table, nearest_text
from gemmkit.errors import UsageError
from gemmkit.interrupts import undo_at_end
from gemmkit.report.layout import SPARE, Layout, Row, Table, fitted
from gemmkit.units import seconds_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn
    from rich.text import Text

    from gemmkit.record import JsonLine, Record

# Removes a progress bar if the process ends before rich does it.
_ERASE_LINE, _SHOW_CURSOR = b"\r\x1b[2K", b"\x1b[?25h"

# Characters of a step's name that leave room for the bar on a terminal of 80.
_STEP_WIDTH = 40

# The minimum line width, even for a narrower terminal.
_LEAST_WIDTH = 40


@cache
def _console() -> type[Console]:
    from rich.console import Console

    class Raising(Console):
        """Rich would end the process with the status that a wrong result has."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Raising


class Printable(Protocol):
    """What lays itself out: a `Table`, a `Document`."""

    def to_text(self, width: int | None = None) -> Text:
        """Lines of at most `width` characters."""


class Printer:
    """Prints text that fits the terminal; in a file or a pipe, lines have any length.

    `width` is the terminal's, or None if there is none and COLUMNS is not set.
    """

    def __init__(self, *, err: bool = False) -> None:
        self.console = _console()(
            stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False
        )
        self.is_terminal = self.console.is_terminal
        self.width = _terminal_width(sys.stderr if err else sys.stdout)

    def print(
        self, content: Printable | Text | str = "", *, style: str = "", end: str = "\n"
    ) -> None:
        """Print a table or document, or text of one or more lines."""
        from rich.text import Text

        if isinstance(content, Table):
            content = self.shown(content)
        if isinstance(content, str):
            text = Text(content, style)
        else:
            text = content if isinstance(content, Text) else content.to_text(self.width)
        # Replacements can be longer than what they stand for.
        text = nearest_text(text, self._encoding)
        self.console.print(text if self.width is None else fitted(text, self.width), end=end)

    def shown(self, table: Table) -> Table:
        """The table in the characters that the terminal has."""
        return nearest_table(table, self._encoding)

    @property
    def _encoding(self) -> str:
        """The stream's encoding; one with errors handled otherwise shows every character."""
        file: Any = self.console.file
        return str(file.encoding) if getattr(file, "errors", None) == HANDLER else "utf-8"


def _terminal_width(stream: IO[str]) -> int | None:
    """Characters per line, or None for a file or a pipe unless COLUMNS is set."""
    if not stream.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    return max(shutil.get_terminal_size().columns - SPARE, _LEAST_WIDTH)


class TableStream:
    """Prints growing tables: each row as soon as it is available, headings once.

    `show` is called with all tables of a run so far, whenever there is another row. If printed rows
    have changed since, `finish` prints the whole table again.
    """

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._number = 0
        self._table: Table | None = None
        self._layout: Layout | None = None
        self._printed: tuple[Row, ...] = ()
        self._changed = False

    def show(self, tables: Sequence[Table]) -> None:
        """Print new rows."""
        for number, table in enumerate(tables[self._number :], self._number):
            if number != self._number:
                self._close()
                self._number = number
            self._grow(table)

    def finish(self, tables: Sequence[Table]) -> None:
        """Print the rest: last rows, footnotes, tables that are only made at the end."""
        self.show(tables)
        self._close()

    def _grow(self, table: Table) -> None:
        table = self._out.shown(table)
        if self._layout is None:
            self._layout = table.layout(self._out.width, growing=True)
            self._out.print(table.head_text(self._layout, self._out.width), end="")
        elif self._table is not None and (
            table.columns != self._table.columns
            or table.rows[: len(self._printed)] != self._printed
        ):
            self._changed = True
        self._table = table
        if not self._changed:
            for row in table.rows[len(self._printed) :]:
                self._out.print(table.row_text(row, self._layout, self._out.width), end="")
            self._printed = table.rows
        self._out.console.file.flush()

    def _close(self) -> None:
        if self._table is not None and self._layout is not None:
            if self._changed:
                self._out.print("\n", end="")
                self._out.print(self._table, end="")
            else:
                self._out.print(self._table.foot_text(self._layout, self._out.width), end="")
        self._table, self._layout, self._printed, self._changed = None, None, (), False


def _clock() -> ProgressColumn:
    """A column with the elapsed time, and the remaining time if it is known."""
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    begun = time.monotonic()

    class Clock(ProgressColumn):
        def render(self, task: Task) -> Text:
            # rich's own clock stops at the end of a step, but a run has several.
            seconds = int(time.monotonic() - begun)
            shown = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            ends = task.fields.get("ends")
            if ends is not None and ends > time.monotonic() + 1:
                shown += f", {seconds_text(ends - time.monotonic())} left"
            return Text(shown, "progress.elapsed")

    return Clock(table_column=Column(no_wrap=True))


def _short(what: str) -> str:
    """A step's name with its middle left out if it is so long that the bar has no room."""
    if len(what) <= _STEP_WIDTH:
        return what
    end = _STEP_WIDTH // 2
    return f"{what[: _STEP_WIDTH - end - 3]}...{what[-end:]}"


class StepBar:
    """Progress on standard error: a bar on a terminal, otherwise one line per step."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._last = ""
        self._out = Printer(err=True)
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                _clock(),
                TextColumn("{task.description}"),
                console=self._out.console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task("", total=None, ends=None)

    def show(
        self,
        done: float,
        total: int,
        what: str,
        left: float | None = None,
        *,
        running: bool = False,
    ) -> None:
        """`done` of `total` steps are complete; `what` was the last of them.

        If `what` is `running`, with `left` seconds to go, it is the next one, and its line has that
        number: the last line has that of the last step.
        """
        if self._bar is not None:
            ends = None if left is None else time.monotonic() + left
            self._bar.update(
                self._task, completed=done, total=total, description=_short(what), ends=ends
            )
        elif what != self._last:
            self._last = what
            print(f"[{int(done) + running}/{total}] {what}", file=sys.stderr)

    def say(self, line: str) -> None:
        """Print a permanent line."""
        with self.paused():
            self._out.print(line)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the bar while something else is printed."""
        running = self._bar is not None and self._bar.live.is_started
        if running:
            self._stop()
        try:
            yield
        finally:
            if running:
                self._start()

    def __enter__(self) -> StepBar:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        if self._bar is not None:
            if not self._out.console.is_dumb_terminal:
                undo_at_end(_ERASE_LINE + _SHOW_CURSOR)
            self._bar.start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            undo_at_end(b"")


class RecordWriter:
    """Writes records as JSON lines, each immediately; does nothing without a path.

    With `append`, the file's contents are kept.
    """

    def __init__(self, path: str | None, *, append: bool = False) -> None:
        self.to_stdout = path == "-"
        self._path = path
        self._file: IO[str] | None = None
        if self.to_stdout:
            self._file = sys.stdout
        elif path is not None:
            try:
                self._file = Path(path).open("a" if append else "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def write(self, record: JsonLine) -> None:
        """Append one line and flush it.

        Raises:
            UsageError: the file cannot be written any more, such as on a full disk; it ends with
                the record before.
        """
        if self._file is None:
            return
        before = None if self.to_stdout else os.fstat(self._file.fileno())
        try:
            self._write(self._file, record.to_json() + "\n")
        except OSError as error:
            if self.to_stdout:
                raise
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
            # Without the beginning of this record.
            if before is not None and stat.S_ISREG(before.st_mode):
                with contextlib.suppress(OSError):
                    os.truncate(str(self._path), before.st_size)
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from error

    def _write(self, file: IO[str], line: str) -> None:
        if self.to_stdout and hasattr(file, "buffer"):
            # JSON is UTF-8, whatever the terminal's encoding.
            file.flush()
            file.buffer.write(line.encode())
        else:
            file.write(line)
        file.flush()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and not self.to_stdout:
            self._file.close()


def _check_unfinished(line: bytes) -> None:
    """See that the end of a file is the beginning of a record, which may be removed.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    import msgspec

    from gemmkit.record import Record

    begin = f'{{"{msgspec.structs.fields(Record)[0].encode_name}":"'.encode()
    if not (begin.startswith(line) or line.startswith(begin)):
        raise msgspec.DecodeError("the last line is not the beginning of a record")


def read_existing(path: str) -> list[Record]:
    """The records of a file that `RecordWriter` wrote; an incomplete last line is removed.

    A missing file has no records.

    Raises:
        UsageError: the file cannot be read or repaired, or a complete line is not a record.
    """
    import msgspec

    from gemmkit.record import Record

    try:
        text = Path(path).read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        found = [Record.from_json(line) for line in whole.splitlines()]
        if whole != text:
            _check_unfinished(text[len(whole) :])
            with Path(path).open("r+b") as file:
                file.truncate(len(whole))
        return found
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot resume from {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"cannot resume from {path}: not a file of records: {error}") from error
