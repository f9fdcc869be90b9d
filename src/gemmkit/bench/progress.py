"""`Progress`: what a long run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.check_record import CheckRecord
from gemmkit.devices.device import Device
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record


class Progress:
    """Receives the events of a long run; a subclass overrides the methods that it needs.

    They are called in this order: `opened`, `compiled` for each kernel, `planned` (and `checking`),
    then for each run either `skipped`, or `started` and `finished` (or `checked`), with `launched`
    any number of times in between. `printed` is called if a kernel prints, and `note` at any time.
    """

    def opened(self, device: Device, note: str) -> None:
        """`device` is the one that was opened; `note` says what it lacks, or is empty."""

    def note(self, line: str) -> None:
        """`line` is a remark, such as a problem or a peer that is left out."""

    def compiled(self, done: int, total: int, kernel: str) -> None:
        """`done` of `total` kernels are compiled; `kernel` is the name of the latest."""

    def skipped(self, kernel: Kernel, problem: GemmProblem, reason: str) -> None:
        """A kernel is left out; `reason` says why it refuses the problem or the configuration."""

    def planned(self, seconds: Sequence[float]) -> None:
        """`seconds` that the emulator would need for each run on an idle machine.

        Use their ratios: the speed of this machine shows only as they run.
        """

    def checking(self, records: Sequence[CheckRecord]) -> None:
        """`records` of the checks to come, without their results."""

    def started(self, kernel: Kernel, problem: GemmProblem, done: int, total: int) -> None:
        """A run of a kernel on a problem starts, after `done` of `total` runs."""

    def measuring(self, layer: str, done: int, total: int) -> None:
        """A run of a layer starts, after `done` of `total` runs."""

    def launched(self, fraction: float) -> None:
        """`fraction`, 0 to 1, of the current launch is emulated."""

    def printed(self, lines: Sequence[str]) -> None:
        """`lines` that an emulated kernel printed; a GPU prints to standard output."""

    def finished(self, record: Record) -> None:
        """A run is complete; `record` has its results."""

    def checked(self, record: CheckRecord) -> None:
        """The check of a problem is complete; `record` has its results."""
