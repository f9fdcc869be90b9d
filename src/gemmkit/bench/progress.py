"""`Progress`: what a long run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.devices.device import Device
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import CheckRecord, Record


class Progress:
    """Does nothing; a subclass overrides what it wants to hear.

    The order is: `opened`, `compiled` for each kernel, `planned`, then for each run either
    `skipped`, or `started` and `finished` (or `checked`) with `launched` any number of times in
    between, and `printed` where the kernel prints and `note` anywhere.
    """

    def opened(self, device: Device, note: str) -> None:
        """The device that was taken; `note` says what is missing there, or is empty."""

    def note(self, line: str) -> None:
        """Something worth knowing: a problem or a peer that is left out."""

    def compiled(self, done: int, total: int, kernel: str) -> None:
        """So many of the kernels are compiled."""

    def skipped(self, kernel: Kernel, problem: GemmProblem, reason: str) -> None:
        """A kernel refuses the problem or the configuration, and is left out."""

    def planned(self, seconds: Sequence[float]) -> None:
        """The seconds that each run would take on an idle machine, where the emulator runs them.

        Their ratios matter: how fast this machine is shows as they run.
        """

    def started(self, kernel: Kernel, problem: GemmProblem, done: int, total: int) -> None:
        """A kernel begins, `done` of `total` runs being over."""

    def measuring(self, layer: str, done: int, total: int) -> None:
        """A layer begins, in place of a kernel, `done` of `total` runs being over."""

    def launched(self, fraction: float) -> None:
        """So much of the current launch is emulated, 0 to 1."""

    def printed(self, lines: Sequence[str]) -> None:
        """What the kernel printed while it was emulated; a GPU prints to standard output."""

    def finished(self, record: Record) -> None:
        """A kernel's record is there."""

    def checked(self, record: CheckRecord) -> None:
        """A problem's check is over."""
