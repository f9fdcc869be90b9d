"""What the page of `gemmkit explain` draws besides tables, by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gemmkit.analysis.explain import Explanation, Facts
from gemmkit.analysis.patterns import has_tiles
from gemmkit.analysis.trace import Trace
from gemmkit.report.document import View
from gemmkit.report.explain_text import source_table
from gemmkit.report.views.accesses import access_view
from gemmkit.report.views.occupancy import occupancy_view
from gemmkit.report.views.roofline import roofline_views
from gemmkit.report.views.tiles import tile_view
from gemmkit.report.views.timeline import timeline_view, timelines_of

TIMELINE = "Timeline of a block"


def explain_views(
    explained: Explanation, gathered: Sequence[Facts], traces: Sequence[Trace]
) -> Mapping[str, tuple[View, ...]]:
    """Views for `explanation_document`, by section.

    Args:
        explained: what the page is about.
        gathered: the facts of each kernel that was launched.
        traces: one block of each.
    """
    found: dict[str, tuple[View, ...]] = {}
    if explained.source:
        table = source_table(explained)
        lines = msgspec.to_builtins(explained.source)
        found[table.caption] = (View("source", {"lines": lines}, table),)
    if traces:
        found["Accesses of a warp"] = tuple(map(access_view, traces))
    found["Tiles of a block"] = tuple(tile_view(each) for each in traces if has_tiles(each))
    timelines = timelines_of(gathered)
    if timelines:
        found[TIMELINE] = (timeline_view(timelines),)
    found["What if"] = tuple(
        occupancy_view(each)
        for each in gathered
        if each.occupancy is not None and each.binary.resources is not None
    )
    found["Roofline"] = tuple(roofline_views(gathered))
    return {title: views for title, views in found.items() if views}
