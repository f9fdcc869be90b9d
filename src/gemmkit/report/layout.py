"""`Table`: rows of short cells, as colored text for a terminal or as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.text import Text

Style = Literal["plain", "good", "bad", "quiet"]

MISSING = "–"
# A non-breaking space; it is printed as a normal one.
TIE = "\N{NO-BREAK SPACE}"
# Terminal columns left free: some terminals break a line that fills them all.
SPARE = 1
# Line width of prose, and the minimum for the notes of a narrow table.
TEXT_WIDTH, _LEAST_WIDTH = 100, 60
# The minimum width of a text column.
_LEAST_TEXT = 12
# The default width.
_UNLIMITED = 10_000
_COLORS: dict[Style, str] = {"plain": "", "good": "green", "bad": "bold red", "quiet": "dim"}
_GAP = "  "
_NOTE_INDENT = "    "
# Where a list of settings or names may be broken, besides at spaces: not in 65,536.
_COMMA = re.compile(r"(?<=,)(?=\S)(?!(?<=\d,)\d{3}(?!\d))")


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, which may have several lines, and the format of the cells below it.

    Attributes:
        title: the heading.
        align: the alignment of the cells.
        drop: the priority for leaving the column out on a narrow terminal: 0 never, the largest
            first.
        reserve: the width reserved for its cells if rows are printed before all are known.
        crop: long cells end in an ellipsis instead of taking several lines.
    """

    title: str
    align: Literal["left", "right"] = "right"
    drop: int = 0
    reserve: int = 0
    crop: bool = False

    @property
    def one_line(self) -> str:
        """The heading without line feeds."""
        return self.title.replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Cell:
    """A short text and its style."""

    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """One cell per column, and a note that is shown below them in a terminal."""

    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table that are shown, and their widths.

    `natural` is the width of a line with all columns. `stacked` rows have a line per cell, for
    columns that do not fit next to each other.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    natural: int
    stacked: bool = False

    @property
    def width(self) -> int:
        """Characters of a whole line."""
        return max(self.widths) if self.stacked else _total(self.widths)


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, columns, rows, and lines to print below."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()

    def to_text(self, width: int | None = None) -> Text:
        """The table as colored text; `.plain` is the same without colors.

        Args:
            width: characters per line; columns that do not fit are left out, the least important
                first, and a line below names them. Without it, lines have any length.
        """
        from rich.text import Text

        layout = self.layout(width)
        text = Text()
        text.append_text(self.head_text(layout, width))
        for row in self.rows:
            text.append_text(self.row_text(row, layout, width))
        text.append_text(self.foot_text(layout, width))
        return text

    def layout(self, width: int | None = None, *, growing: bool = False) -> Layout:
        """The columns that fit into `width` characters; `growing` tables have more rows to come."""
        widths = [
            max(
                column.reserve * growing,
                *map(len, column.title.split("\n")),
                *(len(row.cells[i].text) for row in self.rows),
            )
            for i, column in enumerate(self.columns)
        ]
        shown = list(range(len(widths)))
        natural = _total(widths)
        if width is None or natural <= width:
            return Layout(tuple(shown), tuple(widths), natural)
        droppable = sorted(
            (i for i in shown if self.columns[i].drop), key=lambda i: -self.columns[i].drop
        )
        least = [self._least(i, have, growing=growing) for i, have in enumerate(widths)]
        while droppable and _total([least[i] for i in shown]) > width:
            shown.remove(droppable.pop(0))
        least = [
            min(each, _LEAST_TEXT) if self.columns[i].crop else each for i, each in enumerate(least)
        ]
        if _total([least[i] for i in shown]) > width:
            lines = [width - len(_NOTE_INDENT) * (i != shown[0]) for i in shown]
            return Layout(tuple(shown), tuple(lines), natural, stacked=True)
        kept = [widths[i] for i in shown]
        _narrow(kept, [least[i] for i in shown], width)
        return Layout(tuple(shown), tuple(kept), natural)

    def _least(self, i: int, have: int, *, growing: bool) -> int:
        """The minimum width of a column, whose heading and text then wrap, before another is left
        out."""
        column = self.columns[i]
        if column.crop:
            return have
        cells = [row.cells[i].text for row in self.rows]
        heads = column.title.split()
        if column.align == "right":
            return min(have, max(column.reserve * growing, *map(len, ["", *heads, *cells])))
        words = [part for text in cells for word in text.split() for part in _COMMA.split(word)]
        return min(have, max(_LEAST_TEXT, *map(len, [*heads, *words])))

    def head_text(self, layout: Layout, width: int | None = None) -> Text:
        """Caption, headings and the rule below them."""
        from rich.text import Text

        text = Text()
        text.append(wrapped(self.caption, width or _UNLIMITED) + "\n", "bold")
        if layout.stacked:
            text.append("─" * layout.width + "\n", "dim")
            return text
        heads = [
            [part for line in self.columns[i].title.split("\n") for part in _head(line, room)]
            for i, room in zip(layout.shown, layout.widths, strict=True)
        ]
        height = max(len(lines) for lines in heads)
        for line in range(height):
            # Short headings stand on the last line.
            words = [
                lines[line - height + len(lines)] if line >= height - len(lines) else ""
                for lines in heads
            ]
            text.append(_GAP.join(self._pad(words, layout)).rstrip() + "\n", "bold")
        text.append("─" * layout.width + "\n", "dim")
        return text

    def row_text(self, row: Row, layout: Layout, width: int | None = None) -> Text:
        """One row with its note; long text cells wrap."""
        from rich.text import Text

        text = Text()
        if layout.stacked:
            return self._stacked(row, layout)
        cells = [row.cells[i] for i in layout.shown]
        whole = [max(len(cell.text), room) for cell, room in zip(cells, layout.widths, strict=True)]
        # A later row may have a cell that is wider than the column.
        fits = _total(whole) <= (width or _UNLIMITED)
        # The last column may use the rest of the line.
        free = max((width or 0) - layout.width, 0)
        rooms = [*layout.widths[:-1], layout.widths[-1] + free]
        parts = [
            [_printed(cell.text)] if fits else self._lines(cell.text, room, self.columns[i])
            for cell, room, i in zip(cells, rooms, layout.shown, strict=True)
        ]
        for line in range(max(map(len, parts))):
            words = [lines[line] if line < len(lines) else "" for lines in parts]
            padded = self._pad(words, layout)
            last = max((i for i, word in enumerate(words) if word), default=0)
            padded[last] = padded[last].rstrip()
            for i, (cell, word) in enumerate(zip(cells[: last + 1], padded, strict=False)):
                text.append(word + _GAP * (i < last), _COLORS[cell.style])
            text.append("\n")
        if row.note:
            text.append(wrapped(row.note, self._around(layout, width), indent=_NOTE_INDENT), "dim")
        return text

    def _stacked(self, row: Row, layout: Layout) -> Text:
        """One row with a line per cell, each after the heading of its column."""
        from rich.text import Text

        text = Text()
        for number, (i, room) in enumerate(zip(layout.shown, layout.widths, strict=True)):
            cell, head = row.cells[i], self.columns[i].one_line
            if number and not cell.text:
                continue
            first = f"{head}: " if number and head else ""
            indent = _NOTE_INDENT * bool(number)
            lines = _broken(first + cell.text, room) or [""]
            text.append(
                "".join(f"{indent}{_printed(line)}\n" for line in lines), _COLORS[cell.style]
            )
        if row.note:
            text.append(wrapped(row.note, layout.width, indent=_NOTE_INDENT), "dim")
        return text

    def foot_text(self, layout: Layout, width: int | None = None) -> Text:
        """The footnotes, and the names of columns that did not fit."""
        from rich.text import Text

        text = Text()
        notes = list(self.footnotes)
        hidden = [each for i, each in enumerate(self.columns) if i not in layout.shown]
        if hidden:
            names = ", ".join(each.one_line for each in hidden)
            needed = layout.natural + SPARE
            notes.append(f"Too wide for this terminal: {names} ({needed} columns needed).")
        for note in notes:
            text.append("\n" + wrapped(note, self._around(layout, width)), "dim")
        return text

    def to_markdown(self) -> str:
        """The table in Markdown's pipe form, without caption, notes and footnotes."""
        rule = ["---" if column.align == "left" else "---:" for column in self.columns]
        lines = [[column.one_line for column in self.columns], rule]
        lines += [[_printed(cell.text) for cell in row.cells] for row in self.rows]
        return "".join(f"| {' | '.join(words)} |\n" for words in lines)

    def _around(self, layout: Layout, width: int | None) -> int:
        """Characters of the sentences below rows and table."""
        around = max(layout.width, _LEAST_WIDTH)
        return around if width is None else min(width, max(around, TEXT_WIDTH))

    def _pad(self, words: Sequence[str], layout: Layout) -> list[str]:
        return [
            word.ljust(room) if self.columns[i].align == "left" else word.rjust(room)
            for word, room, i in zip(words, layout.widths, layout.shown, strict=True)
        ]

    def _lines(self, text: str, room: int, column: Column) -> list[str]:
        """A cell's text in lines of `room` characters; numbers are not broken."""
        if len(text) <= room or column.align == "right":
            return [_printed(text)]
        if column.crop:
            return [_printed(text[: room - 1]) + "…"]
        return [_printed(line) for line in _broken(text, room)] or [""]


def _printed(text: str) -> str:
    return text.replace(TIE, " ")


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _narrow(widths: list[int], least: Sequence[int], width: int) -> None:
    """Shrink the widest column that may be smaller until the line fits."""
    while _total(widths) > width:
        spare = [i for i, have in enumerate(widths) if have > least[i]]
        widths[max(spare, key=lambda i: widths[i])] -= 1


def _head(line: str, room: int) -> list[str]:
    """A line of a heading, in several where its column is narrower."""
    return textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]


def _broken(text: str, room: int) -> list[str]:
    """Lines of at most `room` characters, broken at spaces, or after commas if necessary."""
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    found: list[str] = []
    for line in lines:
        if len(line) <= room:
            found.append(line)
            continue
        current = ""
        for piece in _COMMA.split(line):
            if current and len(current) + len(piece) > room:
                found.append(current)
                current = ""
            current += piece
        found.append(current)
    return found


def wrapped(
    sentence: str, width: int = TEXT_WIDTH, *, first: str | None = None, indent: str = ""
) -> str:
    """A sentence in lines of at most `width`, prefixed by `indent`, the first by `first`.

    Names of metrics and files stay whole.
    """
    return (
        textwrap.fill(
            sentence,
            width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


# A label and its value, a list item, or an indented line: where continuation lines start.
_GUTTER = re.compile(r"\s*>?\s*\d+ \|\s*")
_HANGING = re.compile(r"(?:\s*[-•] |\s*\d+\. |\s*\S.*?\s{2,}(?=\S)|\s*)")
_MOST_HANGING = 24


def fitted(text: Text, width: int) -> Text:
    """The text with lines longer than `width` broken between words.

    A continuation line is aligned with the value or item that it continues. Lines that cannot be
    broken, such as a path, are unchanged.
    """
    lines = text.split("\n", allow_blank=True)
    found = type(text)("\n").join(
        part for line in lines for part in (_fit(line, width) if len(line) > width else [line])
    )
    found.end = text.end
    return found


def _fit(line: Text, width: int) -> Iterator[Text]:
    """One line as several that fit."""
    head = _HANGING.match(line.plain)
    indent = min(len(head[0]) if head else 0, _MOST_HANGING, width // 2)
    # The code of a source line stays beside its number.
    gutter = _GUTTER.match(line.plain)
    start, room, first = 0, width, gutter.end() if gutter else 0
    while len(line) - start > room:
        piece = line.plain[start : start + room + 1]
        cut = piece.rfind(" ")
        if cut <= first or not piece[:cut].strip():
            comma = max((each.start() for each in _COMMA.finditer(piece[:room])), default=0)
            after = max(start + room, first)
            cut = comma if comma > first else next(iter(_spaces(line.plain, after)), 0) - start
        if cut <= 0:
            break
        yield _indented(line[start : start + cut], indent * (start > 0))
        start += cut
        first = 0
        while start < len(line) and line.plain[start] == " ":
            start += 1
        room = width - indent
    yield _indented(line[start:], indent * (start > 0))


def _spaces(text: str, start: int) -> Iterator[int]:
    return (each.start() for each in re.finditer(" ", text) if each.start() >= start)


def _indented(piece: Text, indent: int) -> Text:
    piece.rstrip()
    if indent:
        piece.pad_left(indent)
    return piece


def value_text(value: float | str | None) -> str:
    """An integer in full, any other number with four digits, or with all integer digits."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    whole = float(value).is_integer() or abs(value) >= 1e4
    return f"{value:,.0f}" if whole else f"{value:,.4g}"
