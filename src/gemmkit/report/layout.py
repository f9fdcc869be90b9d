"""`Table`: rows of short cells, and its two forms, coloured text for a terminal and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.text import Text

Style = Literal["plain", "good", "bad", "quiet"]

MISSING = "–"
# Characters of a line of text, and the fewest for the notes of a narrow table.
TEXT_WIDTH, _LEAST_WIDTH = 100, 60
_COLOURS: dict[Style, str] = {"plain": "", "good": "green", "bad": "bold red", "quiet": "dim"}
_GAP = "  "
_NOTE_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, its lines parted by line feeds, and the side to which the cells are set."""

    title: str
    align: Literal["left", "right"] = "right"

    @property
    def one_line(self) -> str:
        """The heading without line feeds."""
        return self.title.replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Cell:
    """A short text and how it is marked."""

    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """One cell a column, and a sentence that a terminal shows below them."""

    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, columns, rows, and lines to print below."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()

    def to_text(self) -> Text:
        """The table as coloured text; `.plain` is the same without colours."""
        from rich.text import Text

        heads = [column.title.split("\n") for column in self.columns]
        height = max(len(lines) for lines in heads)
        widths = [
            max(map(len, [*lines, *(row.cells[i].text for row in self.rows)]))
            for i, lines in enumerate(heads)
        ]
        width = sum(widths) + len(_GAP) * (len(widths) - 1)
        around = max(width, _LEAST_WIDTH)
        text = Text()
        text.append(self.caption + "\n\n", "bold")
        for line in range(height):
            # Short headings stand on the last line.
            words = [
                lines[line - height + len(lines)] if line >= height - len(lines) else ""
                for lines in heads
            ]
            text.append(_join(self._pad(words, widths)) + "\n", "bold")
        text.append("─" * width + "\n", "dim")
        for row in self.rows:
            padded = self._pad([cell.text for cell in row.cells], widths)
            padded[-1] = padded[-1].rstrip()
            for i, (cell, word) in enumerate(zip(row.cells, padded, strict=True)):
                text.append(word + _GAP * (i < len(padded) - 1), _COLOURS[cell.style])
            text.append("\n")
            if row.note:
                text.append(wrapped(row.note, around, indent=_NOTE_INDENT), "dim")
        for footnote in self.footnotes:
            text.append("\n" + wrapped(footnote, around), "dim")
        return text

    def to_markdown(self) -> str:
        """The table in Markdown's pipe form, without caption, notes and footnotes."""
        rule = ["---" if column.align == "left" else "---:" for column in self.columns]
        lines = [[column.one_line for column in self.columns], rule]
        lines += [[cell.text for cell in row.cells] for row in self.rows]
        return "".join(f"| {' | '.join(words)} |\n" for words in lines)

    def _pad(self, words: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            word.ljust(width) if column.align == "left" else word.rjust(width)
            for word, width, column in zip(words, widths, self.columns, strict=True)
        ]


def _join(words: Sequence[str]) -> str:
    return _GAP.join(words).rstrip()


def wrapped(
    sentence: str, width: int = TEXT_WIDTH, *, first: str | None = None, indent: str = ""
) -> str:
    """A sentence in lines of `width` at most, all after `indent`, or the first after `first`.

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


def value_text(value: float | str | None) -> str:
    """A whole number in full, any other to four digits, or as many as its whole part has."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    whole = float(value).is_integer() or abs(value) >= 1e4
    return f"{value:,.0f}" if whole else f"{value:,.4g}"
