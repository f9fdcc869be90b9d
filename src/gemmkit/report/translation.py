"""`Phrases`: sentences of reports in another language, from templates.

Reports and records are made in English. The files beside this module, `languages/LANGUAGE*.toml`,
have a template for each sentence, heading and label, and say how names in braces are read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from gemmkit.report.layout import TIE, Cell, Row, Table

# By BCP 47.
ENGLISH, CHINESE = "en", "zh-Hans"
HERE = Path(__file__).resolve().parent / "languages"

_NAME = re.compile(r"\{(\w+)\}")
_NUMBER = r"[-+−]?\d[\d,.]*(?:e[-+]?\d+)?[³²]?"
_END = r"(?<=[.!?])(?<!vs\.)\s+(?=[A-Z`\"'(\[0-9])"
_SENTENCE = re.compile(_END)
# Nothing in braces goes on into another sentence.
_WITHIN = f"(?!{_END})"
_NESTED = r"\((?:[^()]|\([^()]*\))*\)"
# What a name in braces stands for, by its letters.
_KINDS = {
    "n": _NUMBER,
    # A place in a source, and a thread or block.
    "site": r"[^:;,]+:\d+",
    "xyz": r"(?:\(-?\d+, -?\d+, -?\d+\)|None)",
    # One of a list.
    "label": r"(?:(?! and )[^;,])+?",
    "kernel": f"(?:{_WITHIN}.)+?",
    "name": f"(?:{_WITHIN}.)+?",
}
# Any other stands for a part of a sentence, which has both parentheses or none.
_PART = f"(?:{_WITHIN}(?:[^()]|{_NESTED}))+?"
# Two words in a row: prose, which should have a translation.
_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")
# The same in a part, where a number and a word are enough.
_WORDS = re.compile(f"{_PROSE.pattern}|\\d [a-z]{{3,}}")
_IDEOGRAPH = re.compile(r"[\u4e00-\u9fff]")
_LATIN = re.compile(r"[A-Za-z0-9\u03b1-\u03c9]")


@dataclass(frozen=True)
class _Template:
    """An English template and its translation."""

    english: str
    said: str

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The pieces of the English template between names in braces."""
        return tuple(_NAME.split(self.english)[::2])

    @cached_property
    def longest(self) -> str:
        """The literal piece that rules out most texts."""
        return max(self.literals, key=len)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in braces."""
        return tuple(_NAME.findall(self.english))

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The English template as a regular expression."""
        pattern = "".join(
            re.escape(piece) if place % 2 == 0 else f"(?P<{piece}>{_kind(piece)})"
            for place, piece in enumerate(_NAME.split(self.english))
        )
        return re.compile(pattern, re.S)

    def filled(self, values: Mapping[str, str]) -> str:
        """The translation with values for the names in braces.

        A space stands between Chinese and Latin letters or digits, and nowhere else beside Chinese,
        whatever language a value is in.
        """
        text = ""
        for place, piece in enumerate(_NAME.split(self.said)):
            text = _beside(text, piece if place % 2 == 0 else values[piece])
        return text


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
        # A name that a sentence is about: a kernel, a problem.
        name, colon, rest = plain.partition(": ")
        if colon and _PROSE.search(rest) and not _PROSE.search(name):
            told = self._find(rest, inside=False)
            if told is not None:
                return f"{name}\N{FULLWIDTH COLON}{told}"
        if _PROSE.search(plain):
            self.untranslated[plain] = None
        return text

    def joined(self, *pieces: str) -> str:
        """What several pieces say, one after the other."""
        text = ""
        for each in map(self.say, pieces):
            text = _beside(text, f" {each}") if text else each
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
            plain = text.removesuffix(".")
            found = self._match(plain, inside=inside)
            self._said[key] = (
                found if found is None or plain == text else f"{found}\N{IDEOGRAPHIC FULL STOP}"
            )
        return self._said[key]

    def _match(self, text: str, *, inside: bool) -> str | None:
        for each in self.pieces if inside else self.sentences:
            if each.longest not in text:
                continue
            if (found := each.expression.fullmatch(text)) is None:
                continue
            values = {name: self._value(name, found[name]) for name in each.names}
            told = {name: value for name, value in values.items() if value is not None}
            if len(told) == len(values):
                return each.filled(told)
        return None

    def _value(self, name: str, text: str) -> str | None:
        """What to say for a name in braces; None for prose without a template."""
        if name.rstrip("0123456789") in _KINDS:
            return text
        found = self._find(text, inside=True)
        return text if found is None and not _WORDS.search(text) else found


def _beside(text: str, more: str) -> str:
    """Both in one, with a space between Chinese and Latin letters, and none beside Chinese
    otherwise."""
    before, after = text.rstrip(" ")[-1:], more.lstrip(" ")[:1]
    if not before or not after:
        return text + more
    spaced = text[-1] == " " or more[0] == " "
    chinese = [bool(_IDEOGRAPH.match(each)) for each in (before, after)]
    stops = [
        east_asian_width(each) in "FW" and not ideograph
        for each, ideograph in zip((before, after), chinese, strict=True)
    ]
    if spaced and (all(chinese) or any(stops)):
        return text.rstrip(" ") + more.lstrip(" ")
    if not spaced and any(chinese):
        other = after if chinese[0] else before
        if _LATIN.match(other):
            return f"{text} {more}"
    return text + more


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, each in data.items():
            # A page names figures by their keys.
            yield key
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
    catalog: dict[str, dict[str, str]] = {"page": {}, "parts": {}, "sentences": {}}
    for path in sorted(HERE.glob(f"{language}*.toml")):
        for name, entries in tomllib.loads(path.read_text("utf-8")).items():
            catalog[name] |= entries
    # A full stop at the end is added where the English text has one.
    sentences, parts = (
        [
            _Template(english.removesuffix("."), said.removesuffix("\N{IDEOGRAPHIC FULL STOP}"))
            for english, said in catalog[name].items()
        ]
        for name in ("sentences", "parts")
    )
    return Phrases(
        language,
        page=catalog["page"],
        sentences=_ordered(sentences),
        pieces=_ordered([*parts, *sentences]),
    )


def _ordered(templates: Iterable[_Template]) -> tuple[_Template, ...]:
    """The templates, those that say most literally first."""
    return tuple(sorted(templates, key=lambda each: -sum(map(len, each.literals))))


def _kind(name: str) -> str:
    return _KINDS.get(name.rstrip("0123456789"), _PART)
