"""What verbs write: tables and text to standard output, progress and hints to standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from gemmkit.record import JsonLine, Record


def console(*, err: bool = False) -> Console:
    """A console that colours on a terminal only and leaves the text's lines as they are."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False)


class StepBar:
    """Progress on standard error: a bar on a terminal, otherwise a line for each new step."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._last = ""
        if sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=console(err=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    def show(self, done: float, total: int, what: str) -> None:
        """`done` of `total` steps are over; `what` is going on."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)
        elif what != self._last:
            self._last = what
            print(f"[{int(done)}/{total}] {what}", file=sys.stderr)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            print(line, file=sys.stderr)

    def __enter__(self) -> StepBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


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
        if self._file is not None:
            self._file.write(record.to_json() + "\n")
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
        UsageError: the file cannot be read or mended, or a whole line is no record.
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
