"""Loads of parameters through an address in a register.

NVVM reads fields of a struct so: a register holds the parameter's address, or one that is some
bytes further on, and `ld.param` adds another offset. Where the address is known before the kernel
runs, the load is written as one by the parameter's name; where it is not, as in a loop over an
array of parameters, as one of constant memory, in which parameters are.
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
    r"(?P<load>\bld\.)param(?P<rest>[\w.:]*\s+(?:%\w+|\{[^{}]*\})\s*,\s*)"
    r"\[\s*(?P<base>%\w+)\s*(?:\+\s*(?P<bytes>-?\d+)\s*)?\]"
)

# A parameter and the bytes behind its start.
_Place = tuple[str, int]


def with_named_parameters(text: str) -> str:
    """The text with each such load by name, or from constant memory."""
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
    written = Counter(_WRITTEN.findall(body))
    definitions: dict[str, list[_Place]] = {}
    for each in _MOVED.finditer(body):
        definitions.setdefault(each["to"], []).append((each["of"], 0))
    for each in _ADDED.finditer(body):
        definitions.setdefault(each["to"], []).append((each["of"], int(each["bytes"])))
    places: dict[str, _Place] = {name: (name, 0) for name in parameters}
    known = 0
    while known != len(places):
        known = len(places)
        for register, given in definitions.items():
            # Where branches meet, each of them may write the register with the same address.
            found = {
                (places[base][0], places[base][1] + offset) if base in places else None
                for base, offset in given
            }
            place = found.pop()
            if place is not None and not found and len(given) == written[register]:
                places[register] = place

    def by_name(load: re.Match[str]) -> str:
        further = int(load["bytes"] or 0)
        if load["base"] not in places:
            return f"{load['load']}const{load['rest']}[{load['base']}+{further}]"
        name, start = places[load["base"]]
        return f"{load['load']}param{load['rest']}[{name}+{start + further}]"

    return _without_unused(_LOADED.sub(by_name, body), places)


def _without_unused(body: str, places: dict[str, _Place]) -> str:
    """The text without those of the registers that nothing reads any more."""

    def blank(definition: re.Match[str]) -> str:
        unused = definition["to"] in places and reads[definition["to"]] == 0
        return "" if unused else definition[0]

    while True:
        written = Counter(_WRITTEN.findall(body))
        words = Counter(re.findall(r"%\w+", body))
        reads = {name: words[name] - written[name] for name in places}
        shorter = _ADDED.sub(blank, _MOVED.sub(blank, body))
        if shorter == body:
            return body
        body = shorter
