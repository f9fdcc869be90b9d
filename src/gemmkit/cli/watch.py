"""`Watch`: shows how a run of kernels goes on, and writes each record as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from gemmkit.bench.progress import Progress
from gemmkit.cli import WRONG_RESULT
from gemmkit.cli.output import RecordWriter, StepBar, console
from gemmkit.devices.choose import gpu_problem
from gemmkit.devices.device import Device
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import CheckRecord, Record
from gemmkit.report.layout import Table


class Watch(Progress):
    """Collects `records` and `checks`, also those of a run that is interrupted."""

    def __init__(self, bar: StepBar, writer: RecordWriter, *, asked: str) -> None:
        self.records: list[Record] = []
        self.checks: list[CheckRecord] = []
        self._bar, self._writer, self._asked = bar, writer, asked
        self._step = (0, 1, "")

    def opened(self, device: Device, note: str) -> None:
        """Say which device was taken, and if that was a choice, why."""
        name = device.spec.name
        if device.kind == "cuda":
            self._bar.say(f"Running on the GPU, {name}.")
        elif self._asked == "auto":
            why = gpu_problem() or "the GPU here is another board"
            self._bar.say(f"Running on the emulator, for {name}: {why}.")
        else:
            self._bar.say(f"Running on the emulator, for {name}.")
        if note:
            self._bar.say(note)

    def say(self, line: str) -> None:
        """Print a line that stays, to standard error."""
        self._bar.say(line)

    def note(self, line: str) -> None:
        """Say it."""
        self.say(line)

    def compiled(self, done: int, total: int, kernel: str) -> None:
        """Show how many kernels are compiled."""
        self._bar.show(done, total, f"compiled {kernel}")

    def skipped(
        self,
        kernel: Kernel,  # noqa: ARG002 (the reason names it)
        problem: GemmProblem,
        reason: str,
    ) -> None:
        """Say that a kernel is left out."""
        self._bar.say(f"Left out at {problem.shape}: {reason}")

    def started(self, kernel: Kernel, problem: GemmProblem, done: int, total: int) -> None:
        """Show which kernel runs."""
        self._step = (done, total, f"{kernel.name} {problem.shape}")
        self._bar.show(*self._step)

    def launched(self, fraction: float) -> None:
        """Show how much of the launch is done."""
        done, total, what = self._step
        self._bar.show(done + fraction, total, what)

    def printed(self, lines: Sequence[str]) -> None:
        """Print what the kernel printed, as a GPU does."""
        for line in lines:
            click.echo(line, err=self._writer.to_stdout)

    def finished(self, record: Record) -> None:
        """Keep and write the record."""
        self.records.append(record)
        self._writer.write(record)

    def checked(self, record: CheckRecord) -> None:
        """Keep and write the record of a check."""
        self.checks.append(record)
        self._writer.write(record)


def show_run(
    run: Callable[[Watch], Sequence[Record]],
    tabulate: Callable[[Sequence[Record]], Table | Sequence[Table]],
    *,
    asked: str,
    json_path: str | None,
    before: Sequence[Record] = (),
    append: bool = False,
) -> None:
    """Run, and print the table of all records, or of those made before an error or Ctrl-C.

    `before` are records of an earlier run that belong to the table; with `append` the file that
    holds them is kept. Exits with status 1 if a result is wrong.
    """
    with RecordWriter(json_path, append=append) as writer:
        bar = StepBar()
        watch = Watch(bar, writer, asked=asked)
        watch.records += before
        try:
            with bar:
                run(watch)
        finally:
            if watch.records:
                found = tabulate(watch.records)
                output = console(err=writer.to_stdout)
                for table in [found] if isinstance(found, Table) else found:
                    output.print(table.to_text(), end="")
    if not all(record.correct for record in watch.records):
        raise SystemExit(WRONG_RESULT)
