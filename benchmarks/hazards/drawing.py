"""Pictures of who does what when: lanes of labelled boxes on an axis, and arrows between lanes, as
SVG that is readable on light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Literal

from gemmkit.report.figures import COLORS, INK

Kind = Literal["generic", "async", "sync", "idle", "bad", "missing"]

_BLUE, _ORANGE, _GREEN, _, _RED, *_ = COLORS
_FILLS: dict[Kind, str] = {
    "generic": _BLUE,
    "async": _ORANGE,
    "sync": _GREEN,
    "idle": INK,
    "bad": _RED,
    "missing": "none",
}
# Pixels: a unit of the axis, the column of the lanes' names, a lane with the gap below it.
_UNIT, _NAMES, _PITCH, _BOX, _TOP = 50, 140, 62, 30, 12
_WIDTH = _NAMES + 12 * _UNIT
_CHARACTER, _FONT = 6.7, 11
_MONOSPACED = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


@dataclass(frozen=True)
class Box:
    """What somebody does from one time to another."""

    lane: int
    start: float
    end: float
    text: str
    kind: Kind = "generic"


@dataclass(frozen=True)
class Arrow:
    """What orders, or should order, two events: (lane, time) each."""

    start: tuple[int, float]
    end: tuple[int, float]
    text: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Scene:
    """A picture of one hazard."""

    alt: str
    lanes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...] = ()
    axis: str = "time"

    def to_svg(self) -> str:
        """The SVG text.

        Raises:
            ValueError: a text does not fit its box.
        """
        width = _WIDTH
        height = _TOP + len(self.lanes) * _PITCH + 8
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-size="{_FONT}">',
            f"<title>{escape(self.alt)}</title>",
            "<defs>",
            *(_head(name, color) for name, color in (("ordered", INK), ("missing", _RED))),
            "</defs>",
        ]
        for number, name in enumerate(self.lanes):
            middle = _middle(number)
            parts.append(_label(_NAMES - 10, middle + 4, name, INK, "end"))
            free = sorted(each.start for each in self.boxes if each.lane == number)
            ends = sorted(each.end for each in self.boxes if each.lane == number)
            # Boxes that are missing are hollow, so the line of the lane stops at each box.
            for left, right in zip((0.0, *ends), (*free, 12.0), strict=True):
                if left < right:
                    parts.append(
                        f'<line x1="{_place(left)}" x2="{_place(right)}" y1="{middle}" '
                        f'y2="{middle}" stroke="{INK}" stroke-opacity=".35"/>'
                    )
        parts += map(_box, self.boxes)
        parts += map(_arrow, self.arrows)
        bottom = height - 10
        parts.append(
            f'<line x1="{_NAMES}" x2="{width}" y1="{bottom}" y2="{bottom}" '
            f'stroke="{INK}" marker-end="url(#ordered)"/>'
        )
        parts.append(_label(_NAMES - 10, bottom + 4, self.axis, INK, "end"))
        return "\n".join([*parts, "</svg>"]) + "\n"


def _middle(lane: int) -> float:
    return _TOP + lane * _PITCH + _BOX / 2


def _place(time: float) -> float:
    return round(_NAMES + time * _UNIT, 1)


def _box(box: Box) -> str:
    left, right = _place(box.start) + 1, _place(box.end) - 1
    if len(box.text) * _CHARACTER > right - left:
        raise ValueError(f"'{box.text}' does not fit its box")
    top = _middle(box.lane) - _BOX / 2
    missing = box.kind == "missing"
    stroke = f' stroke="{_RED}" stroke-width="1.5" stroke-dasharray="5 3"' if missing else ""
    ink = _RED if missing else "#fff"
    return (
        f'<rect x="{left}" y="{top}" width="{round(right - left, 1)}" height="{_BOX}" rx="4" '
        f'fill="{_FILLS[box.kind]}"{stroke}/>'
        + _label((left + right) / 2, top + _BOX / 2 + 4, box.text, ink, "middle", code=True)
    )


def _arrow(arrow: Arrow) -> str:
    (above, begins), (below, ends) = arrow.start, arrow.end
    down = below > above
    x1, x2 = _place(begins), _place(ends)
    y1 = _middle(above) + (_BOX / 2 if down else -_BOX / 2)
    y2 = _middle(below) + (-_BOX / 2 - 3 if down else _BOX / 2 + 3)
    color, name = (_RED, "missing") if arrow.missing else (INK, "ordered")
    dashes = ' stroke-dasharray="5 3"' if arrow.missing else ""
    line = (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.5"'
        f'{dashes} marker-end="url(#{name})"/>'
    )
    # The text stands in the gap next to the arrow's end, clear of the boxes.
    y = y2 - 6 if down else y2 + 12
    if x2 + 8 + len(arrow.text) * _CHARACTER < _WIDTH:
        return line + _label(x2 + 8, y, arrow.text, color, "start")
    return line + _label(x2 - 8, y, arrow.text, color, "end")


def _head(name: str, color: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
    )


def _label(x: float, y: float, text: str, color: str, anchor: str, *, code: bool = False) -> str:
    family = _MONOSPACED if code else "sans-serif"
    size = "" if code else ' font-size="12"'
    return (
        f'<text x="{round(x, 1)}" y="{round(y, 1)}" fill="{color}" text-anchor="{anchor}" '
        f'font-family="{family}"{size}>{escape(text)}</text>'
    )
