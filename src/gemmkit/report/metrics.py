"""The list of metrics as text, grouped by how they are obtained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.metric_list import MetricInfo
from gemmkit.report.layout import TEXT_WIDTH, wrapped

if TYPE_CHECKING:
    from rich.text import Text

_FOOTNOTE = (
    "Names that do not start with ptx__ or gemmkit__ are Nsight Compute's, with the same meaning. "
    "Metrics that cannot be derived from PTX are not available: cache hits, stalls, achieved "
    "occupancy, measured time."
)


def metrics_text(metrics: Sequence[MetricInfo], width: int | None = None) -> Text:
    """A heading per way of obtaining metrics, followed by names and descriptions."""
    from rich.text import Text

    groups: defaultdict[str, list[MetricInfo]] = defaultdict(list)
    for metric in metrics:
        groups[metric.basis].append(metric)
    around = min(width or TEXT_WIDTH, TEXT_WIDTH)
    text = Text()
    for basis, members in groups.items():
        text.append(wrapped(f"{basis[0].upper()}{basis[1:]}", around) + "\n", "bold")
        for metric in members:
            text.append(f"  {metric.name}\n", "cyan")
            text.append(wrapped(metric.description, around, indent="      "))
        text.append("\n")
    text.append(wrapped(_FOOTNOTE, around), "dim")
    return text
