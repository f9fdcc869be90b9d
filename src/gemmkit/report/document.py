"""`Document`: what a verb has to say, in sections; rendered as text or as one HTML page.

A block is a paragraph, a `Table`, remarks with their evidence, or a view: a picture that the page
draws from data, and that a terminal shows as a table or leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gemmkit.report.layout import TEXT_WIDTH, Table, wrapped

if TYPE_CHECKING:
    from rich.text import Text

Tone = Literal["plain", "heading", "caution", "wrong"]

_STYLES: dict[Tone, str] = {
    "plain": "",
    "heading": "bold",
    "caution": "yellow",
    "wrong": "bold red",
}


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence, and what it rests on, a line each; `mark` is a word that groups remarks.

    `places` are source lines, as `file:line`, of the kernel number `side` of the document; `owner`
    names that kernel where it could be either.
    """

    text: str
    evidence: tuple[str, ...] = ()
    mark: str = ""
    places: tuple[str, ...] = ()
    side: int = 0
    owner: str = ""

    @property
    def word(self) -> str:
        """What stands before the sentence, so that a mark does not rest on color alone."""
        return {"bad": "Issue:", "good": "Good:"}.get(self.mark, "")


@dataclass(frozen=True, slots=True)
class Remarks:
    """Remarks, the weightiest first."""

    items: tuple[Remark, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of source below the place that they are from; those that start with > stand out."""

    place: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A picture that the page draws: `kind` names its script in `page/script`, `data` is what that
    gets.

    `table` says the same in a terminal, to a screen reader, and where scripts are off.
    """

    kind: str
    data: Mapping[str, Any]
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """The same view of two kernels: next to each other on a wide page, else one after the other.

    What a reader chooses in a view of one kernel applies to that kernel's views alone.
    """

    views: tuple[View, ...]


Block = Prose | Table | Remarks | Code | View | Beside


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title. A page puts `leading` sections first; a terminal, where the end is what
    stays in sight, keeps the order."""

    title: str
    blocks: tuple[Block, ...]
    leading: bool = False

    @property
    def anchor(self) -> str:
        """The title as the end of an address."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Document:
    """A title, paragraphs that introduce it, and sections.

    `data` is the machine-readable form of all that is shown; the page carries it.
    """

    title: str
    lead: tuple[Prose, ...]
    sections: tuple[Section, ...]
    data: Any = None

    def to_text(self, width: int | None = None) -> Text:
        """The document in lines of `width` characters; `.plain` has no colors."""
        from rich.text import Text

        around = min(width or TEXT_WIDTH, TEXT_WIDTH)
        text = Text()
        text.append(f"{self.title}\n", "bold")
        for each in self.lead:
            text.append(f"\n{wrapped(each.text, around)}", _STYLES[each.tone])
        for section in self.sections:
            text.append_text(_section_text(section, width, around))
        return text


def _section_text(section: Section, width: int | None, around: int) -> Text:
    from rich.text import Text

    text = Text()
    blocks = [
        one
        for block in section.blocks
        for one in (block.views if isinstance(block, Beside) else (block,))
    ]
    shown = [block for block in blocks if not isinstance(block, View) or block.table]
    # Tables have captions of their own.
    if shown and not isinstance(shown[0], Table | View):
        text.append(f"\n{section.title}\n", "bold")
    for block in shown:
        text.append("\n")
        match block:
            case Prose():
                text.append(wrapped(block.text, around), _STYLES[block.tone])
            case Remarks():
                text.append_text(_remarks_text(block, around))
            case Code():
                text.append(f"  --> {block.place}\n", "cyan")
                for line in block.lines:
                    text.append(f"    {line}\n", "bold" if line.startswith(">") else "dim")
            case Table():
                text.append_text(block.to_text(width))
            case View(table=Table() as table):
                text.append_text(table.to_text(width))
    return text


def _remarks_text(remarks: Remarks, around: int) -> Text:
    from rich.text import Text

    text = Text()
    for each in remarks.items:
        said = f"{each.word} {each.text}" if each.word else each.text
        text.append(wrapped(said, around, first="- ", indent="  "))
        if each.places:
            owner = f" ({each.owner})" if each.owner else ""
            text.append(f"    at {', '.join(each.places)}{owner}\n", "cyan")
        for line in each.evidence:
            text.append(f"    {line}\n", "dim")
    return text
