"""Loads of parameters through an address in a register, written as loads by the parameter's name.

NVVM reads fields of a `__grid_constant__` struct so: a register holds the parameter's address, or
one that is some bytes further on, and `ld.param` adds another offset.
"""

from __future__ import annotations

import re
from collections import Counter

_ENTRY = re.compile(r"\.entry\s+[\w$]+\s*\((?P<parameters>[^()]*)\)[^{};]*\{")
_NAME = re.compile(r"([\w$]+)\s*(?:\[\d*\])?\s*(?:,|$)")
_WRITTEN = re.compile(r"(?:^|[;{}:])\s*(?:@!?[%\w$]+\s+)?[a-z][\w.:]*\s+(%\w+)\s*,", re.M)
_MOVED = re.compile(r"^[ \t]*mov\.[bus]64\s+(?P<to>%\w+)\s*,\s*(?P<of>[%\w$]+)\s*;", re.M)
_ADDED = re.compile(
    r"^[ \t]*add\.[us]64\s+(?P<to>%\w+)\s*,\s*(?P<of>%\w+)\s*,\s*(?P<bytes>-?\d+)\s*;", re.M
)
_LOADED = re.compile(
    r"(?P<load>\bld\.param[\w.:]*\s+(?:%\w+|\{[^{}]*\})\s*,\s*)"
    r"\[\s*(?P<base>%\w+)\s*(?:\+\s*(?P<bytes>-?\d+)\s*)?\]"
)

# A parameter and the bytes behind its start.
_Place = tuple[str, int]


def with_named_parameters(text: str) -> str:
    """The text with each such load by name whose address is known before the kernel runs."""
    if "ld.param" not in text:
        return text
    for entry in reversed([*_ENTRY.finditer(text)]):
        end = text.find("\n}", entry.end())
        body = text[entry.end() : end if end >= 0 else len(text)]
        named = _named(body, {*_NAME.findall(entry["parameters"].strip())})
        text = text[: entry.end()] + named + text[entry.end() + len(body) :]
    return text


def _named(body: str, parameters: set[str]) -> str:
    if not _LOADED.search(body):
        return body
    written: dict[str, int] = {}
    for register in _WRITTEN.findall(body):
        written[register] = written.get(register, 0) + 1
    definitions = [
        (each["to"], each["of"], 0) for each in _MOVED.finditer(body) if written[each["to"]] == 1
    ]
    definitions += [
        (each["to"], each["of"], int(each["bytes"]))
        for each in _ADDED.finditer(body)
        if written[each["to"]] == 1
    ]
    places: dict[str, _Place] = {name: (name, 0) for name in parameters}
    known = 0
    while known != len(places):
        known = len(places)
        for register, base, offset in definitions:
            if base in places:
                name, start = places[base]
                places[register] = name, start + offset

    def by_name(load: re.Match[str]) -> str:
        if load["base"] not in places:
            return load[0]
        name, start = places[load["base"]]
        return f"{load['load']}[{name}+{start + int(load['bytes'] or 0)}]"

    return _without_unused(_LOADED.sub(by_name, body), places)


def _without_unused(body: str, places: dict[str, _Place]) -> str:
    """The text without those of the registers that nothing reads any more."""

    def blank(definition: re.Match[str]) -> str:
        unused = definition["to"] in places and reads[definition["to"]] == 0
        return "" if unused else definition[0]

    while True:
        words = Counter(re.findall(r"%\w+", body))
        reads = {register: words[register] - 1 for register in places}
        shorter = _ADDED.sub(blank, _MOVED.sub(blank, body))
        if shorter == body:
            return body
        body = shorter
