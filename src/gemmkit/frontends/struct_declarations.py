"""The declarations of structs and enumerations in a CUDA C++ source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gemmkit.cxx.declarations import closing, split_arguments, template_names
from gemmkit.frontends.struct_packing import Packing

_HEAD = re.compile(
    r"\b(?:struct|class|union)\s+(?P<attributes>(?:(?:(?:alignas|__align__)\s*\([^()]*\)|"
    r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[[^\[\]]*\]\])\s*)*)"
    r"(?P<name>\w+)?\s*(?:final\s*)?(?::(?!:)(?P<bases>[^{};]*))?(?=\{)"
)
ALIGNMENT = re.compile(r"\b(?:alignas|__align__|(?:__)?aligned(?:__)?)\s*\(\s*(\w+)\s*\)")
_PACKED = re.compile(r"\b(?:__)?packed(?:__)?\b")
_ENUM = re.compile(r"\benum\s+(?:class\s+|struct\s+)?(?P<name>\w+)\s*(?::\s*(?P<type>[\w\s]+))?\{")


@dataclass(frozen=True, slots=True)
class StructDeclaration:
    """A struct's declaration: `body` is what stands between its braces.

    `bases` are the types it derives from, `template` the names of its template parameters,
    `alignment` what `alignas` asks for, in bytes; `packed` the bytes to which members are aligned
    at most, or 0.
    """

    name: str
    body: str
    bases: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    alignment: int = 1
    is_union: bool = False
    packed: int = 0


def structs_in(plain: str, packed: Packing) -> Iterator[StructDeclaration]:
    """The structs of a text without comments and directives, by each of their names; `packed` is
    what its `#pragma pack` say."""
    for match in _HEAD.finditer(plain):
        close = closing(plain, match.end())
        if close < 0:
            continue
        names = [match["name"]] if match["name"] else []
        before = plain[max(plain.rfind(mark, 0, match.start()) for mark in ";}") + 1 :]
        if re.match(r"\s*typedef\b", before):
            names += re.findall(r"(?:^|,)\s*(\w+)", plain[close + 1 : plain.find(";", close)])
        attributes = match["attributes"] or ""
        asked = ALIGNMENT.search(attributes)
        bases = split_arguments(match["bases"] or "")
        for name in names:
            yield StructDeclaration(
                name,
                plain[match.end() + 1 : close],
                tuple(re.sub(r"\b(?:public|private|protected|virtual)\b", "", b) for b in bases),
                template_names(plain, match.start()),
                int(asked[1]) if asked is not None and asked[1].isdigit() else 1,
                match[0].lstrip().startswith("union"),
                1 if _PACKED.search(attributes) else packed.at(match.start()),
            )


def enums_in(plain: str) -> Iterator[re.Match[str]]:
    """The enumerations of such a text: their `name`, and the `type` if they give one."""
    return _ENUM.finditer(plain)
