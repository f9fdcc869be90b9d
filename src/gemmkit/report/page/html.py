"""`to_html`: a `Document` as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gemmkit.report.document import Beside, Code, Document, Prose, Remark, Remarks, Section, View
from gemmkit.report.layout import TIE, Table
from gemmkit.report.output_files import write_output
from gemmkit.report.translation import CHINESE, phrases
from gemmkit.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

HERE = Path(__file__).resolve().parent
# Characters of a word that a table keeps on one line.
LONGEST_WORD = 44


def write_page(document: Document, path: Path) -> None:
    """Write the page.

    Raises:
        UsageError: the file cannot be written.
    """
    write_output(path, to_html(document).encode())


def to_html(document: Document) -> str:
    """The page: style, script and data are inside.

    Sections that lead come first. Each view is drawn by the script of its kind, from data beside
    it; without scripts its table is there. Every text is there in English and in Chinese; the page
    shows the language of the browser, or the other at the press of a button.
    """
    sections = sorted(document.sections, key=lambda each: not each.leading)
    views: list[dict[str, Any]] = []
    shown = [_section(each, views) for each in sections]
    chinese = phrases(CHINESE)
    return _template().render(
        title=document.title,
        lead=[asdict(each) for each in document.lead],
        sections=shown,
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=_script({each["kind"] for each in views}),
        data=_embedded(
            {
                "gemmkit": __version__,
                "document": document.data,
                "views": views,
                "phrases": {**chinese.page, **chinese.strings(_spoken(views))},
            }
        ),
        chinese=CHINESE,
    )


def _script(kinds: Iterable[str]) -> str:
    """The script of a page that has views of these kinds."""
    common, *drawing, page = (
        (HERE / "script" / f"{name}.js").read_text(encoding="utf-8")
        for name in ("common", *sorted(kinds), "page")
    )
    # Braces, so that the names of one view do not meet those of another.
    own = "".join(f"{{\n{each}}}\n" for each in drawing)
    return f'"use strict";\n(() => {{\n{common}{own}{page}}})();\n'


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["said"] = _said
    environment.filters["marked"] = _marked
    environment.filters["told"] = _told
    environment.filters["long"] = _long
    return environment.get_template("page.html")


def _said(text: str) -> Markup:
    """The text in each language, of which the page shows one."""
    from markupsafe import Markup, escape

    english, chinese = escape(text), escape(_chinese(text))
    if english == chinese:
        return english
    return Markup(f'<span lang="en">{english}</span><span lang="{CHINESE}">{chinese}</span>')


def _marked(text: str) -> Markup:
    """The same of a sentence, with what stands between backquotes as code."""
    from markupsafe import Markup

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(_said(text))))


def _told(text: str) -> Markup:
    """The value of `aria-label`, and of an attribute that has it in Chinese."""
    from markupsafe import Markup, escape

    return Markup(f'aria-label="{escape(text)}" data-chinese="{escape(_chinese(text))}"')


def _long(text: str) -> str:
    """The class of a cell with a word that no column has room for, such as a long kernel's name."""
    return " long" if max(map(len, text.split()), default=0) > LONGEST_WORD else ""


def _chinese(text: str) -> str:
    return phrases(CHINESE).say(text)


def _spoken(views: Iterable[dict[str, Any]]) -> list[Any]:
    """The data of views, without source code and what is meant for other programs."""
    silent = ("trace", "lines")
    return [
        {name: value for name, value in each["data"].items() if name not in silent}
        for each in views
    ]


def _embedded(data: Any) -> str:
    """JSON that may stand in a script element, whatever the strings in it."""
    text = msgspec.json.encode(data).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _section(section: Section, views: list[dict[str, Any]]) -> dict[str, Any]:
    blocks = []
    for block in section.blocks:
        match block:
            case Prose():
                blocks.append({"kind": "prose", **asdict(block)})
            case Remarks():
                blocks.append({"kind": "remarks", "items": [_remark(one) for one in block.items]})
            case Code():
                blocks.append({"kind": "code", **asdict(block)})
            case Table():
                blocks.append({"kind": "table", **_table(block)})
            case View():
                blocks.append(_view(block, views))
            case Beside():
                both = [_view(each, views, side) for side, each in enumerate(block.views)]
                blocks.append({"kind": "beside", "views": both})
    return {"title": section.title, "anchor": section.anchor, "blocks": blocks}


def _remark(remark: Remark) -> dict[str, Any]:
    return {**asdict(remark), "word": remark.word}


def _view(view: View, views: list[dict[str, Any]], side: int | None = None) -> dict[str, Any]:
    """What the template shows of a view; its data goes to the end of `views`, with the number of
    its kernel if it is one of several."""
    table = None if view.table is None else _table(view.table)
    shown = {"kind": "view", "number": len(views), "table": table}
    views.append({"kind": view.kind, "data": view.data, "side": side})
    return shown


def _table(table: Table) -> dict[str, Any]:
    return {
        "caption": table.caption,
        "columns": [
            # Cells that may be cropped are source code.
            {"title": each.one_line, "align": each.align, "code": each.crop}
            for each in table.columns
        ],
        "rows": [
            {
                "cells": [
                    {"text": one.text.replace(TIE, " "), "style": one.style} for one in row.cells
                ],
                "note": row.note,
            }
            for row in table.rows
        ],
        "footnotes": table.footnotes,
    }
