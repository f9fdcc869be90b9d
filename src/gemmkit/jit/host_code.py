"""Leaves host code out of a `.cu` file: NVRTC takes device code alone.

A file is cut into its top-level declarations. Functions and variables for the host become blanks,
so that all other text keeps its lines and columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gemmkit.kernels.declarations import closing, without_comments, without_directives

_DEVICE_WORDS = frozenset(
    ["__global__", "__device__", "__constant__", "__shared__", "__managed__", "constexpr"]
)
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)\n]*\))?((?:[^\n\\]|\\.)*)", re.MULTILINE | re.DOTALL
)
_WORDS = re.compile(r"[A-Za-z_]\w*")
_ENTERED = re.compile(r'\s*(?:inline\s+)?namespace\b[\w:\s]*|\s*extern\s*"[^"]*"\s*')
_KEPT = re.compile(
    r"\s*(?:typedef|using|static_assert|asm|class|struct|union|enum|namespace|template)\b"
)
_RECORD = re.compile(r"\s*(?:typedef\s+)?(?:class|struct|union|enum)\b[^()=]*$")
# What only the host has: a class with such members is left out as a whole.
_HOST_ONLY = re.compile(
    r"<<<|\bstd\s*::|\b(?:cuda[A-Z]\w*|cublas\w*|curand\w*|printf|malloc|new|FILE|string)\b"
    r"|\b(?:vector|map|set|unordered_map|function|unique_ptr|shared_ptr|ostream)\b\s*[<&]"
)
_NUMBER_TYPES = re.compile(
    r"\b(?:bool|char|short|int|long|unsigned|signed|float|double|size_t|u?int\d+_t|auto)\b"
)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else|endif|define|undef|include)\b")
# nvcc's extended lambdas; in device code they are as those without the words.
_MARKED_LAMBDA = re.compile(r"(?<=\])\s*(?:__(?:host|device)__\s*)+(?=[({])")


@dataclass(frozen=True, slots=True)
class _Item:
    """A declaration at positions `start` to `end`; its head ends where a body begins."""

    start: int
    head_end: int
    end: int


def device_macros(texts: Iterable[str]) -> frozenset[str]:
    """Macros whose text marks what they stand in as device code, such as `HOST_DEVICE`."""
    found = set(_DEVICE_WORDS)
    for text in texts:
        for name, body in _MACRO.findall(text):
            if not found.isdisjoint(_WORDS.findall(body)):
                found.add(name)
    return frozenset(found - _DEVICE_WORDS)


def without_host_code(text: str, macros: frozenset[str]) -> str:
    """The text with all functions and variables blanked that are for the host alone.

    So are the words by which nvcc tells a lambda's side. `macros` are those of `device_macros`.
    Text that cannot be cut into declarations, since its brackets do not match, stays as it is.
    """
    plain = without_directives(without_comments(text))
    marks = _DEVICE_WORDS | macros
    cut = [
        (item.start, item.end)
        for item in _items(plain, 0, len(plain))
        if _is_host(plain, item, marks)
    ]
    for start, end in reversed(cut):
        text = text[:start] + _blank(text[start:end]) + text[end:]
    return _MARKED_LAMBDA.sub(lambda words: re.sub(r"\S", " ", words[0]), text)


def _items(plain: str, start: int, end: int) -> Iterator[_Item]:
    """The declarations of a stretch, and of the namespaces and `extern "C"` blocks in it."""
    position = head = start
    last: _Item | None = None
    while position < end:
        character = plain[position]
        if character in "([":
            position = closing(plain, position)
            if position < 0:
                return
        elif character == ";":
            yield _Item(head, position, position + 1)
            head = position + 1
        elif character == "}":
            head = position + 1
        elif character == "{":
            close = closing(plain, position)
            if close < 0:
                return
            if _ENTERED.fullmatch(plain, head, position):
                yield from _items(plain, position + 1, close)
                head = close + 1
            elif last is not None and not plain[head:position].strip():
                # The other body of a function with two, for either side of a condition.
                yield _Item(last.start, last.head_end, close + 1)
                head = close + 1
            elif _has_parameters(plain[head:position]):
                last = _Item(head, position, close + 1)
                yield last
                head = close + 1
            else:
                # A class, an enumeration or an initialiser goes on to its semicolon.
                semicolon = plain.find(";", close)
                if semicolon < 0:
                    return
                yield _Item(head, position, semicolon + 1)
                head = close = semicolon + 1
                position = close
                continue
            position = close
        position += 1


def _has_parameters(head: str) -> bool:
    """Whether a declaration is that of a function: brackets before any equals sign."""
    return "(" in _declarator(head).partition("=")[0] and not _RECORD.match(_declarator(head))


def _declarator(head: str) -> str:
    """The head without `template <…>` and without `operator` signs."""
    head = re.sub(r"\boperator\s*[^\w\s(]+", "operator", head)
    while match := re.match(r"\s*template\s*<", head):
        close = closing(head, match.end() - 1)
        if close < 0:
            break
        head = head[close + 1 :]
    return head


def _is_host(plain: str, item: _Item, marks: frozenset[str]) -> bool:
    whole, head = plain[item.start : item.end], plain[item.start : item.head_end]
    if not whole.strip(" \n\t;") or not marks.isdisjoint(_WORDS.findall(head)):
        return False
    declarator = _declarator(head)
    if _RECORD.match(declarator) or _KEPT.match(declarator):
        inner = whole[item.head_end - item.start :]
        is_record = not re.match(r"\s*(?:typedef|using|static_assert|asm)\b", declarator)
        return is_record and bool(_HOST_ONLY.search(inner)) and "__device__" not in inner
    if _has_parameters(head):
        return True
    # Device code may use constant numbers of the host, and nothing else of its variables.
    declared = declarator.partition("=")[0]
    is_constant = re.search(r"\bconst\b", declared) and _NUMBER_TYPES.search(declared)
    return not is_constant or "*" in declared or "std::" in whole


def _blank(text: str) -> str:
    """Spaces in place of everything but line feeds and the preprocessor's conditions."""
    lines = text.split("\n")
    continued = False
    for number, line in enumerate(lines):
        keeps = continued or _CONDITION.match(line) is not None
        continued = keeps and line.endswith("\\")
        if not keeps:
            lines[number] = " " * len(line)
    return "\n".join(lines)
