"""`Watch`: shows the progress of a run and writes each record immediately."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import click

from gemmkit.bench.progress import Progress
from gemmkit.check_record import CheckRecord
from gemmkit.cli import WRONG_RESULT
from gemmkit.cli.output import Printer, RecordWriter, StepBar, TableStream
from gemmkit.devices.choose import gpu_problem
from gemmkit.devices.device import Device
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.layout import Table
from gemmkit.report.tables import LeftOut
from gemmkit.units import seconds_text

# Remaining seconds of emulation above which the user is told.
_LONG = 15.0
# Seconds after which the pace is reliable enough for an estimate.
_TRUSTED = 2.0


class Pace:
    """Estimates the remaining time of several runs from their pace so far.

    `planned` has the time that each would take on an idle machine; only ratios matter. The time
    before a run's first launch, such as that for its inputs, does not count.
    """

    def __init__(self, planned: Sequence[float] = ()) -> None:
        self._planned = planned
        self._current = 0
        # Elapsed seconds, and the seconds planned for the same work.
        self._passed = self._done = 0.0
        # The time of the last update of the current run, and its completed fraction then.
        self._seen: tuple[float, float] | None = None

    def start(self, current: int) -> None:
        """Run number `current` starts; all before it are complete."""
        self._current, self._seen = current, None

    def see(self, fraction: float) -> None:
        """Update the completed fraction of the current run, 0 to 1."""
        if self._current >= len(self._planned):
            return
        now = time.monotonic()
        if self._seen is not None:
            before, fraction_before = self._seen
            self._passed += now - before
            self._done += max(fraction - fraction_before, 0.0) * self._planned[self._current]
        self._seen = now, fraction

    def left(self) -> float | None:
        """Estimated remaining seconds; None before there is an estimate."""
        if self._passed < _TRUSTED or self._done <= 0:
            return None
        over = self._seen[1] if self._seen is not None else 0.0
        rest = sum(self._planned[self._current :]) - over * self._planned[self._current]
        return self._passed / self._done * rest


class Watch(Progress):
    """Collects `records` and `checks`, also if the run is interrupted; `to_check` are blank records
    of all checks.

    `left_out` are kernels that refuse the problem: they are reported here unless the table has a
    row for each. `grown` is called after each record or check.
    """

    def __init__(
        self,
        bar: StepBar,
        writer: RecordWriter,
        *,
        asked: str,
        grown: Callable[[], None],
        left_out_in_table: bool = False,
    ) -> None:
        self._in_table = left_out_in_table
        self.records: list[Record] = []
        self.checks: list[CheckRecord] = []
        self.to_check: list[CheckRecord] = []
        self.left_out: list[LeftOut] = []
        self._bar, self._writer, self._asked, self._grown = bar, writer, asked, grown
        self._step = (0, 1, "")
        self._over = 0
        self._pace = Pace()
        self._asked_for_patience = False

    def opened(self, device: Device, note: str) -> None:
        """Report the device, and the reason if it was chosen automatically."""
        name = device.spec.name
        if device.kind == "cuda":
            self._bar.say(f"Running on the GPU, {name}.")
        elif self._asked == "auto":
            why = gpu_problem() or "this machine's GPU is another board"
            self._bar.say(f"Running on the emulator, for {name}: {why}.")
        else:
            self._bar.say(f"Running on the emulator, for {name}.")
        if note:
            self._bar.say(note)

    def say(self, line: str) -> None:
        """Print a permanent line to standard error."""
        self._bar.say(line)

    def note(self, line: str) -> None:
        """Print it."""
        self.say(line)

    def compiled(self, done: int, total: int, kernel: str) -> None:
        """Show how many kernels are compiled."""
        self._bar.show(done, total, f"compiled {kernel}")

    def skipped(self, kernel: Kernel, problem: GemmProblem, reason: str) -> None:
        """Report that a kernel is left out."""
        self.left_out.append(LeftOut(kernel.name, kernel.rung, reason))
        if kernel.rung is None or not self._in_table:
            self._bar.say(f"Left out at {problem.shape}: {reason}")

    def planned(self, seconds: Sequence[float]) -> None:
        """Start estimating the remaining time."""
        self._pace = Pace(seconds)

    def checking(self, records: Sequence[CheckRecord]) -> None:
        """Keep what the checks to come are of."""
        self.to_check += records

    def started(self, kernel: Kernel, problem: GemmProblem, done: int, total: int) -> None:
        """Show which kernel runs."""
        self._step = (done, total, f"{kernel.name} {problem.shape}")
        self._pace.start(done)
        self._bar.show(*self._step, left=self._pace.left(), running=True)

    def measuring(self, layer: str, done: int, total: int) -> None:
        """Show which layer runs."""
        self._step = (done, total, layer)
        self._bar.show(*self._step, running=True)

    def launched(self, fraction: float) -> None:
        """Show the progress of the launch; report a long remaining time once."""
        done, total, what = self._step
        self._pace.see(fraction)
        left = self._pace.left()
        if left is not None and left > _LONG and not self._asked_for_patience:
            self._asked_for_patience = True
            self._bar.say(
                f"Emulating the rest takes about {seconds_text(left)}; "
                "Ctrl-C stops it and keeps the completed rows."
            )
        self._bar.show(done + fraction, total, what, left=left, running=True)

    def printed(self, lines: Sequence[str]) -> None:
        """Print the kernel's output, as a GPU does."""
        with self._bar.paused():
            for line in lines:
                click.echo(line, err=self._writer.to_stdout)

    @property
    def runs(self) -> tuple[int, int]:
        """The numbers of completed and of all runs."""
        return self._over, self._step[1]

    def finished(self, record: Record) -> None:
        """Keep and write the record."""
        self._over += 1
        self._pace.see(1.0)
        self.records.append(record)
        self._writer.write(record)
        self._grown()

    def checked(self, record: CheckRecord) -> None:
        """Keep and write the record of a check."""
        self._over += 1
        self._pace.see(1.0)
        self.checks.append(record)
        self._writer.write(record)
        self._grown()


class Tabulate(Protocol):
    """Makes the tables of a run in progress, or a `complete` one."""

    def __call__(self, watch: Watch, *, complete: bool) -> Sequence[Table]:
        """The tables of the records in `watch`."""


def run_and_show(
    run: Callable[[Watch], object],
    tabulate: Tabulate,
    *,
    asked: str,
    json_path: str | None,
    before: Sequence[Record] = (),
    append: bool = False,
    closing: Callable[[Watch, Printer], None] | None = None,
    left_out_in_table: bool = False,
    page: Path | None = None,
) -> Watch:
    """Run, and print each row as soon as it is available, also before an error or Ctrl-C.

    `before` are records of an earlier run that belong to the tables; with `append` their file is
    kept. `closing` prints what follows the tables. With `left_out_in_table` the tables have rows
    for kernels that refuse the problem. `page` is where the tables and records go as an HTML page.
    """
    with RecordWriter(json_path, append=append) as writer:
        bar = StepBar()
        out = Printer(err=writer.to_stdout)
        stream = TableStream(out)

        def grown() -> None:
            with bar.paused():
                stream.show(tabulate(watch, complete=False))

        watch = Watch(bar, writer, asked=asked, grown=grown, left_out_in_table=left_out_in_table)
        watch.records += before
        ended = False
        try:
            with bar:
                run(watch)
            ended = True
        finally:
            if watch.records or watch.checks:
                tables = tabulate(watch, complete=True)
                stream.finish(tables)
                if closing is not None:
                    closing(watch, out)
                if not ended:
                    over, total = watch.runs
                    out.print(f"\nStopped early: {over} of {total} runs are complete.")
                if page is not None and watch.records:
                    from gemmkit.report.page.html import write_page
                    from gemmkit.report.record_page import records_document

                    write_page(records_document(tables, watch.records, ended=ended), page)
                    out.print(f"\nwrote {page}")
    return watch


def show_run(
    run: Callable[[Watch], object],
    tabulate: Callable[[Sequence[Record]], Table | Sequence[Table]],
    *,
    asked: str,
    json_path: str | None,
    before: Sequence[Record] = (),
    append: bool = False,
    page: Path | None = None,
) -> None:
    """As `run_and_show`, with tables of the records; exits with status 1 if a result is wrong."""

    def tables(watch: Watch, *, complete: bool) -> Sequence[Table]:  # noqa: ARG001
        found = tabulate(watch.records)
        return [found] if isinstance(found, Table) else found

    watch = run_and_show(
        run, tables, asked=asked, json_path=json_path, before=before, append=append, page=page
    )
    exit_if_wrong(watch)


def exit_if_wrong(watch: Watch) -> None:
    """Exit with status 1 if a result is wrong."""
    if not all(record.correct for record in watch.records):
        raise SystemExit(WRONG_RESULT)
