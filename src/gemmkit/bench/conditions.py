"""Clock and power of the GPU while something is timed: asked now and then by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from gemmkit.record import ConditionsRecord

# NVML's own figures change every few tens of milliseconds.
INTERVAL_S = 0.02

# No board draws nothing, or more: some drivers answer now and then what cannot be.
LEAST_WATTS, MOST_WATTS = 1.0, 10_000.0

Probe = Callable[[], float]


class Conditions:
    """What the probes have told so far, each value with its probe's name."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def ask(self, probes: Mapping[str, Probe]) -> None:
        """Ask each probe once; one that fails tells nothing."""
        for name, probe in probes.items():
            try:
                value = probe()
            except Exception:
                # A driver may cease to answer in the middle of a run; that is no reason to end it.
                continue
            self.seen.setdefault(name, []).append(value)

    def record(self) -> ConditionsRecord | None:
        """What was seen, or None where no probe ever answered."""
        if not self.seen:
            return None
        clocks = self.seen.get("sm_clock_mhz")
        told = self.seen.get("power_watts", ())
        power = [each for each in told if LEAST_WATTS <= each <= MOST_WATTS]
        temperature = self.seen.get("temperature_c")
        return ConditionsRecord(
            sm_clock_mhz=float(np.median(clocks)) if clocks else None,
            sm_clock_min_mhz=min(clocks) if clocks else None,
            sm_clock_max_mhz=max(clocks) if clocks else None,
            power_watts=float(np.mean(power)) if power else None,
            temperature_c=temperature[-1] if temperature else None,
            samples=max(map(len, self.seen.values())),
        )


@contextmanager
def watched(probes: Mapping[str, Probe], conditions: Conditions) -> Iterator[None]:
    """Ask the probes again and again while the body runs, at least once."""
    if not probes:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL_S):
            conditions.ask(probes)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not conditions.seen:
            conditions.ask(probes)
