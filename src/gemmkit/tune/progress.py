"""`TuneProgress`: what the tuner tells whoever watches it."""

from __future__ import annotations

from gemmkit.devices.device import Device
from gemmkit.trials.entry import Entry
from gemmkit.tune.result import Tuned
from gemmkit.tune.space import Space


class TuneProgress:
    """Does nothing; a subclass overrides what it wants to hear.

    The order is: `opened`, then for each problem `began`, `tried` any number of times, `finals`
    for each round, with `tried` for each that takes part, and `finished`.
    """

    def opened(self, device: Device) -> None:
        """The device that was taken."""

    def began(self, space: Space, known: int) -> None:
        """A problem's space is there; `known` trials of earlier runs will not be repeated."""

    def tried(self, entry: Entry, count: int, leader: Entry | None) -> None:
        """A trial is stored; `count` candidates were tried in this run, `leader` is the fastest."""

    def finals(self, finalists: int) -> None:
        """So many leaders are being timed in turn."""

    def finished(self, result: Tuned) -> None:
        """A problem is done, or was interrupted."""
