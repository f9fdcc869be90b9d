"""`Phrases`: sentences of reports in another language, from templates.

Reports and records are made in English. A catalog beside this module, `languages/LANGUAGE.toml`,
has a template for each sentence, heading and label, and says how names in braces are read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from gemmkit.report.layout import TIE, Cell, Row, Table

# By BCP 47.
ENGLISH, CHINESE = "en", "zh-Hans"
HERE = Path(__file__).resolve().parent / "languages"

_NAME = re.compile(r"\{(\w+)\}")
_NUMBER = r"[-+−]?\d[\d,.]*(?:e[-+]?\d+)?[³²]?"
# What a name in braces stands for, by its first letters; any other stands for a part of a sentence.
_KINDS = {"n": _NUMBER, "kernel": r".+?", "name": r".+?"}
_PART = r"(?:(?![.!?] [A-Z`]).)+?"
_SENTENCE = re.compile(r"(?<=[.!?])(?<!vs\.)\s+(?=[A-Z`\"'(0-9])")
# Two words in a row: prose, which should have a translation.
_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")


@dataclass(frozen=True, slots=True)
class _Template:
    """An English template as an expression, and its translation."""

    expression: re.Pattern[str]
    # The longest literal piece, by which most texts are ruled out.
    literal: str
    said: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Phrases:
    """Translations into one language.

    Attributes:
        language: by BCP 47.
        page: what the scripts of a page say, by their English templates.
        untranslated: prose that was asked for and has no template, in the order in which it came.
    """

    language: str
    page: Mapping[str, str]
    sentences: tuple[_Template, ...]
    pieces: tuple[_Template, ...]
    untranslated: dict[str, None] = field(default_factory=dict)
    _said: dict[tuple[str, bool], str | None] = field(default_factory=dict)

    def say(self, text: str) -> str:
        """The text in this language; what has no template stays as it is."""
        if not self.sentences:
            return text
        plain = text.replace(TIE, " ").strip()
        whole = self._find(plain, inside=False)
        if whole is not None:
            return whole
        pieces = _SENTENCE.split(plain)
        if len(pieces) > 1:
            return self.joined(*pieces)
        if _PROSE.search(plain):
            self.untranslated[plain] = None
        return text

    def joined(self, *pieces: str) -> str:
        """What several pieces say, one after the other."""
        text = ""
        for each in map(self.say, pieces):
            # Full-width marks bring their space with them.
            apart = text and east_asian_width(text[-1]) not in "FW"
            text += f" {each}" if apart else each
        return text

    def table(self, table: Table) -> Table:
        """The table with every text in this language."""
        return replace(
            table,
            caption=self.say(table.caption),
            columns=tuple(replace(each, title=self.say(each.one_line)) for each in table.columns),
            rows=tuple(
                Row(
                    tuple(
                        # What may be cropped is source code.
                        cell if column.crop else Cell(self.say(cell.text), cell.style)
                        for cell, column in zip(row.cells, table.columns, strict=True)
                    ),
                    self.say(row.note),
                )
                for row in table.rows
            ),
            footnotes=tuple(map(self.say, table.footnotes)),
        )

    def strings(self, data: Any) -> Mapping[str, str]:
        """Those strings anywhere in `data` that are said otherwise, with what is said."""
        return {
            text: said for text in dict.fromkeys(_strings(data)) if (said := self.say(text)) != text
        }

    def _find(self, text: str, *, inside: bool) -> str | None:
        """By the first template that fits, of sentences or, `inside` one, of their pieces too."""
        key = text, inside
        if key not in self._said:
            self._said[key] = self._match(text, inside=inside)
        return self._said[key]

    def _match(self, text: str, *, inside: bool) -> str | None:
        for each in self.pieces if inside else self.sentences:
            if each.literal not in text:
                continue
            if (found := each.expression.fullmatch(text)) is not None:
                values = {name: self._value(name, found[name]) for name in each.names}
                return each.said.format_map(values)
        return None

    def _value(self, name: str, text: str) -> str:
        if name.rstrip("0123456789") in _KINDS:
            return text
        found = self._find(text, inside=True)
        return self.say(text) if found is None else found


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for each in data.values():
            yield from _strings(each)
    elif isinstance(data, list | tuple):
        # Long lists are of numbers.
        if data and isinstance(data[0], int | float):
            return
        for each in data:
            yield from _strings(each)


@cache
def phrases(language: str) -> Phrases:
    """The catalog of a language; that of English is empty."""
    if language == ENGLISH:
        return Phrases(ENGLISH, {}, (), ())
    catalog = tomllib.loads((HERE / f"{language}.toml").read_text("utf-8"))
    return Phrases(
        language,
        page=catalog["page"],
        sentences=_templates(catalog["sentences"]),
        pieces=_templates(catalog["sentences"] | catalog["parts"]),
    )


def _templates(entries: Mapping[str, str]) -> tuple[_Template, ...]:
    """The templates, those that say most literally first."""
    made = [(_literals(english), english, said) for english, said in entries.items()]
    made.sort(key=lambda each: -sum(map(len, each[0])))
    return tuple(_template(english, said, literals) for literals, english, said in made)


def _literals(english: str) -> list[str]:
    return _NAME.split(english)[::2]


def _template(english: str, said: str, literals: list[str]) -> _Template:
    names = tuple(_NAME.findall(english))
    pattern = "".join(
        re.escape(piece) if place % 2 == 0 else f"(?P<{piece}>{_kind(piece)})"
        for place, piece in enumerate(_NAME.split(english))
    )
    return _Template(re.compile(pattern, re.S), max(literals, key=len), said, names)


def _kind(name: str) -> str:
    return _KINDS.get(name.rstrip("0123456789"), _PART)
