"""What verbs write: tables and text to standard output, progress and hints to standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from gemmkit.record import Record

# Called as (done, total, what) before and after each step.
Progress = Callable[[int, int, str], None]


def console(*, err: bool = False) -> Console:
    """A console that colours on a terminal only and leaves the text's lines as they are."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False)


@contextlib.contextmanager
def progress(unit: str) -> Iterator[Progress]:
    """Progress on standard error: a bar on a terminal, otherwise a line a step."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: print(f"[{done}/{total}] {what}", file=sys.stderr)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total, description=what
        )


class RecordWriter:
    """Writes records as JSON lines, each as soon as it is there; does nothing without a path."""

    def __init__(self, path: str | None) -> None:
        self.to_stdout = path == "-"
        self._file: IO[str] | None = None
        if self.to_stdout:
            self._file = sys.stdout
        elif path is not None:
            try:
                self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def write(self, record: Record) -> None:
        """Append one line and flush it."""
        if self._file is not None:
            self._file.write(record.to_json() + "\n")
            self._file.flush()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and not self.to_stdout:
            self._file.close()
