"""What the page of `gemmkit explain` draws besides tables, by section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from gemmkit.analysis.explain import Explanation, Facts
from gemmkit.analysis.patterns import has_tiles
from gemmkit.analysis.shared_map import shared_map
from gemmkit.analysis.trace import Trace
from gemmkit.report.document import Beside, Block, Prose, View
from gemmkit.report.explain_text import source_table
from gemmkit.report.source_lines import shown_lines
from gemmkit.report.views.accesses import access_view
from gemmkit.report.views.occupancy import occupancy_view
from gemmkit.report.views.raster import raster_view, why_no_order
from gemmkit.report.views.roofline import roofline_views
from gemmkit.report.views.shared import shared_view
from gemmkit.report.views.tiles import tile_view
from gemmkit.report.views.timeline import timeline_view, timelines_of

TIMELINE = "Timeline of a block"


def explain_views(
    explained: Explanation, gathered: Sequence[Facts], traces: Sequence[Trace]
) -> Mapping[str, tuple[Block, ...]]:
    """Views for `explanation_document`, by section; those of two kernels are side by side.

    Args:
        explained: what the page is about.
        gathered: the facts of each kernel that was launched.
        traces: one block of each.
    """
    both = [each for each in (explained, explained.against) if each is not None]
    names = [each.kernel for each in both]
    found: dict[str, tuple[Block, ...]] = {}
    title = source_table(explained).caption
    found[title] = _beside(_source_views(both))
    found["Accesses of a warp"] = _beside(map(access_view, traces, names))
    found["Shared memory"] = _beside(
        shared_view(replace(each, kernel=name), traced.problem)
        for facts, traced, name in zip(gathered, traces, names, strict=False)
        if (each := shared_map(traced, facts.gpu)) is not None
    )
    found["Tiles of a block"] = _beside(
        tile_view(each, name) for each, name in zip(traces, names, strict=False) if has_tiles(each)
    )
    orders = list(map(raster_view, gathered, traces, names))
    missing = (
        Prose(why_no_order(facts, name))
        for facts, name, order in zip(gathered, names, orders, strict=False)
        if order is None
    )
    found["Order of tiles"] = (*_beside(each for each in orders if each is not None), *missing)
    timelines = timelines_of(gathered)
    if timelines:
        found[TIMELINE] = (timeline_view(timelines),)
    found["What if"] = _beside(
        occupancy_view(each, name)
        for each, name in zip(gathered, names, strict=False)
        if each.occupancy is not None and each.binary.resources is not None
    )
    found["Roofline"] = tuple(roofline_views(gathered))
    return {title: blocks for title, blocks in found.items() if blocks}


def _beside(views: Iterable[View]) -> tuple[Block, ...]:
    """Views of one kind, of one kernel or of two."""
    found = tuple(views)
    return (Beside(found),) if len(found) > 1 else found


def _source_views(both: Sequence[Explanation]) -> Iterator[View]:
    for each in both:
        if each.source:
            table, lines = source_table(each), msgspec.to_builtins(shown_lines(each.source))
            if len(both) == 1:
                yield View("source", {"lines": lines}, table)
                continue
            named = replace(table, caption=f"{table.caption} of {each.kernel}")
            yield View("source", {"kernel": each.kernel, "lines": lines}, named)
