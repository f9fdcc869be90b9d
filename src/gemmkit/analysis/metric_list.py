"""Every metric that gemmkit gives without a GPU: counted, static, and predicted."""

from __future__ import annotations

import msgspec

from gemmkit.analysis.explain.derived import (
    COUNTED,
    DERIVED,
    IDEAL_SECTORS,
    PREDICTED,
    PREDICTED_TERM,
)
from gemmkit.emulator.counters.metrics import METRICS


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A metric; `basis` begins with how it is obtained, and goes on with its limits."""

    name: str
    description: str
    basis: str


def metric_list() -> tuple[MetricInfo, ...]:
    """All metrics, the emulator's counters first."""
    counted = [
        MetricInfo(name=each.name, description=each.description, basis=each.basis.value)
        for each in METRICS
    ]
    derived = [
        MetricInfo(name=each.name, description=each.description, basis=each.basis)
        for each in DERIVED
    ]
    by_part = (
        MetricInfo(
            name=IDEAL_SECTORS,
            description="sectors that the distinct bytes of a request need at least, by operand",
            basis=COUNTED,
        ),
        MetricInfo(
            name=PREDICTED_TERM,
            description="what one resource alone would take of the launch's time",
            basis=PREDICTED,
        ),
    )
    return (*counted, *derived, *by_part)
