"""Every metric that gemmkit provides without a GPU: counted, static, and predicted."""

from __future__ import annotations

import msgspec

from gemmkit.analysis.explain.derived import (
    BOUND,
    COUNTED,
    DERIVED,
    ERROR_PART,
    IDEAL_SECTORS,
    PREDICTED,
    PREDICTED_TERM,
)
from gemmkit.emulator.counters.metrics import METRICS


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A metric; `basis` says how it is obtained, and what its limits are."""

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
            description="minimum number of sectors for the distinct bytes of a request, by operand",
            basis=COUNTED,
        ),
        MetricInfo(
            name=PREDICTED_TERM,
            description="the time that the launch would take if only one resource limited it",
            basis=PREDICTED,
        ),
        MetricInfo(
            name=ERROR_PART,
            description="part of the error bound relative to Σ|a||b|, in units of the roundoff u "
            "of the sums' type: 2⁻²⁴ for fp32",
            basis=BOUND,
        ),
    )
    return (*counted, *derived, *by_part)
