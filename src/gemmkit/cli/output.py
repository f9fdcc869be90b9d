"""What verbs write: tables and text to standard output, progress and hints to standard error."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

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

# What takes a bar off a terminal when the process ends before rich does it.
_ERASE_LINE, _SHOW_CURSOR = b"\r\x1b[2K", b"\x1b[?25h"

# A narrower terminal gets lines of this width all the same.
_LEAST_WIDTH = 40


class Printer:
    """Prints text that fits the terminal; a file or a pipe gets lines as long as they are.

    `width` is the terminal's, or None where there is none and COLUMNS is not set.
    """

    def __init__(self, *, err: bool = False) -> None:
        from rich.console import Console

        self.console: Console = Console(
            stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False
        )
        self.is_terminal = self.console.is_terminal
        self.width = _terminal_width(sys.stderr if err else sys.stdout)

    def print(self, content: Table | Text | str = "", *, style: str = "", end: str = "\n") -> None:
        """Print a table, or text of one or several lines."""
        from rich.text import Text

        if isinstance(content, Table):
            text = content.to_text(self.width)
        else:
            text = Text(content, style) if isinstance(content, str) else content
            text = text if self.width is None else fitted(text, self.width)
        self.console.print(text, end=end)


def _terminal_width(stream: IO[str]) -> int | None:
    """Characters of a line, or None for a file or a pipe unless COLUMNS is set."""
    if not stream.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    return max(shutil.get_terminal_size().columns - SPARE, _LEAST_WIDTH)


class TableStream:
    """Prints tables while they grow: each row as soon as it is there, headings once.

    `show` takes all tables of a run so far, each time it has another row. A table whose printed
    rows have changed since is printed again, whole, by `finish`.
    """

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._number = 0
        self._table: Table | None = None
        self._layout: Layout | None = None
        self._printed: tuple[Row, ...] = ()
        self._changed = False

    def show(self, tables: Sequence[Table]) -> None:
        """Print the rows that are new."""
        for number, table in enumerate(tables[self._number :], self._number):
            if number != self._number:
                self._close()
                self._number = number
            self._grow(table)

    def finish(self, tables: Sequence[Table]) -> None:
        """Print what is left: last rows, footnotes, tables that are only made at the end."""
        self.show(tables)
        self._close()

    def _grow(self, table: Table) -> None:
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
    """A column with the time since the bar was made, and the time left where that is known."""
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    begun = time.monotonic()

    class Clock(ProgressColumn):
        def render(self, task: Task) -> Text:
            # rich's own clock stops at the end of a step: a run has several.
            seconds = int(time.monotonic() - begun)
            shown = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            ends = task.fields.get("ends")
            if ends is not None and ends > time.monotonic() + 1:
                shown += f", {seconds_text(ends - time.monotonic())} left"
            return Text(shown, "progress.elapsed")

    return Clock(table_column=Column(no_wrap=True))


class StepBar:
    """Progress on standard error: a bar on a terminal, otherwise a line for each new step."""

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

    def show(self, done: float, total: int, what: str, left: float | None = None) -> None:
        """`done` of `total` steps are over; `what` is going on, for `left` seconds more."""
        if self._bar is not None:
            ends = None if left is None else time.monotonic() + left
            self._bar.update(self._task, completed=done, total=total, description=what, ends=ends)
        elif what != self._last:
            self._last = what
            print(f"[{int(done)}/{total}] {what}", file=sys.stderr)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        with self.paused():
            self._out.print(line)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar off the terminal while something else is printed."""
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
    """Writes records as JSON lines, each as soon as it is there; does nothing without a path.

    With `append` what the file holds stays.
    """

    def __init__(self, path: str | None, *, append: bool = False) -> None:
        self.to_stdout = path == "-"
        self._file: IO[str] | None = None
        if self.to_stdout:
            self._file = sys.stdout
        elif path is not None:
            try:
                self._file = Path(path).open("a" if append else "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def write(self, record: JsonLine) -> None:
        """Append one line and flush it."""
        if self._file is None:
            return
        line = record.to_json() + "\n"
        if self.to_stdout and hasattr(self._file, "buffer"):
            # JSON is UTF-8, whatever the terminal's encoding.
            self._file.flush()
            self._file.buffer.write(line.encode())
        else:
            self._file.write(line)
        self._file.flush()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and not self.to_stdout:
            self._file.close()


def take_up(path: str) -> list[Record]:
    """The records of a file that `RecordWriter` wrote; a line that was cut short is removed.

    A file that is not there has none.

    Raises:
        UsageError: the file cannot be read or mended, or a whole line is not a record.
    """
    import msgspec

    from gemmkit.record import Record

    try:
        text = Path(path).read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            Path(path).write_bytes(whole)
        return [Record.from_json(line) for line in whole.splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot take up {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"cannot take up {path}, which holds other lines: {error}") from error
