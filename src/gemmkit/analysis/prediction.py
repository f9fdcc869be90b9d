"""A predicted launch: its time, and the components of which the longest limits it."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.analysis.occupancy import Occupancy
from gemmkit.gpu import FP32, MathPipe


@dataclass(frozen=True, slots=True)
class Term:
    """One component of the time, with the microseconds that it would take alone."""

    name: str
    microseconds: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted launch.

    `terms` are sorted, the longest first; `limiter` is the first one's name. `busy_share` is the
    share of all SMs' time, 0 to 1, in which the grid's blocks keep them busy: less than 1 where
    the last wave, or the only one, leaves SMs without a block. `pipe` is what multiplies most. The
    bytes are those of `traffic.Traffic`. Units: microseconds, TFLOP/s, bytes.
    """

    microseconds: float
    tflops: float
    limiter: str
    terms: tuple[Term, ...]
    occupancy: Occupancy
    busy_share: float
    shared_bytes: float
    l2_bytes: float
    dram_bytes: float
    pipe: MathPipe = FP32

    @property
    def summary(self) -> str:
        """The prediction in one sentence."""
        text = (
            f"predicted {self.microseconds:,.1f} µs, {self.tflops:.2f} TFLOP/s; "
            f"limited by {self.limiter}"
        )
        if self.busy_share < 0.9:
            text += f"; the grid keeps the SMs busy {100 * self.busy_share:.0f} % of the time"
        return text
