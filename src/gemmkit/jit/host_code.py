"""Leaves host code out of a `.cu` file: NVRTC takes device code alone.

A file is cut into its top-level declarations. Functions and variables for the host become blanks,
so that all other text keeps its lines and columns; so do types of the host that no device code
uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gemmkit.cxx.declarations import closing, without_comments, without_directives

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
_EXPLICIT_INSTANTIATION = re.compile(r"\s*(?:extern\s+)?template\b(?!\s*<)")
# What only the host has: a type that mentions it is left out, unless device code uses the type.
_HOST_ONLY = re.compile(
    r"<<<|\b(?:std|thrust)\s*::|\b(?:cuda[A-Z]\w*|CU[a-z]\w+|cublas\w*|cudnn\w*|curand\w*|printf"
    r"|malloc|new|FILE|string|throw)\b"
    r"|\b(?:vector|map|set|unordered_map|function|unique_ptr|shared_ptr|ostream)\b\s*[<&]"
)
# What no stand-in has: a type with such members or bases cannot be compiled, whoever uses its name.
_UNAVAILABLE = re.compile(
    r"\bstd\s*::\s*(?:\w*string\w*|vector|deque|list|map|set|multi\w+|unordered_\w+|queue|stack"
    r"|function|\w+_ptr|[io]?f?stream|mutex|thread|chrono|filesystem|optional|variant|any|tuple"
    r"|exception|\w+_error|invalid_argument|source_location|span|mt19937\w*|\w+_distribution)\b"
    r"|\bcuda(?:Stream|Event|Error|Graph\w*|DeviceProp)(?:_t)?\b|\bcu(?:blas|dnn|rand)\w+_t\b"
)
# The names that a type, an alias, a concept or a constant is declared by.
_NAMES = (
    re.compile(r"\b(?:class|struct|union|concept)\s+(?:\w+\s*\([^()]*\)\s*)*(\w+)"),
    re.compile(r"\benum\s+(?:class\s+|struct\s+)?(\w+)"),
    re.compile(r"\b(?:using|namespace)\s+(\w+)\s*="),
    re.compile(r"\busing\s+(?:namespace\s+)?(?:\w+\s*::\s*)*(\w+)\s*;"),
    re.compile(r"\btypedef\b[^{}]*?(\w+)\s*;"),
    re.compile(r"\}\s*\**\s*(\w+)\s*;"),
    re.compile(r"\bconstexpr\b[^={(\[]*?(\w+)\s*[={(\[]"),
)
_NUMBER_TYPES = re.compile(
    r"\b(?:bool|char|short|int|long|unsigned|signed|float|double|size_t|u?int\d+_t|auto)\b"
)
_ACCESS = re.compile(r"(?:\s*\b(?:public|protected|private)\s*:(?!:))+")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else|endif|define|undef|include)\b")
# A word where a type may stand, and not only a variable or a parameter.
_TYPE_USE = re.compile(
    r"\b([A-Za-z_]\w*)(?=\s*(?:<|::|\{|\(|[*&]*\s*[A-Za-z_]))|(?<=[<,])\s*([A-Za-z_]\w*)(?=\s*[,>])"
)
# nvcc's extended lambdas; in device code they are as those without the words.
_MARKED_LAMBDA = re.compile(r"(?<=\])\s*(?:__(?:host|device)__\s*)+(?=[({])")


@dataclass(frozen=True, slots=True)
class _Item:
    """A declaration at positions `start` to `end`; its head ends where a body begins."""

    start: int
    head_end: int
    end: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What the files of one program have in common.

    `marks` are the words that make a declaration device code, `dropped` the names of types that
    only the host uses.
    """

    marks: frozenset[str]
    dropped: frozenset[str]


def survey(texts: Sequence[str]) -> Survey:
    """Read all files of a program together: one may use what another one declares."""
    marks = _DEVICE_WORDS | device_macros(texts)
    used: set[str] = set()
    dropped: set[str] = set()
    types: list[_Type] = []
    for text in texts:
        for name, body in _MACRO.findall(without_comments(text)):
            types.append(_Type(frozenset([name]), _words(body), False, True))
        plain = without_directives(without_comments(text))
        for item in _items(plain, 0, len(plain)):
            whole = plain[item.start : item.end]
            if _is_type(plain, item, marks):
                is_number = "constexpr" in whole[: item.head_end - item.start]
                looks_of_host = _HOST_ONLY.search(whole) is not None
                if looks_of_host and _cannot_be_kept(plain, item, marks):
                    dropped |= _names_of(whole)
                else:
                    types.append(_Type(_names_of(whole), _words(whole), looks_of_host, is_number))
            elif not _is_host(plain, item, marks):
                used |= _words(whole)
    while reached := [each for each in types if each.is_reached(used)]:
        types = [each for each in types if not each.is_reached(used)]
        for each in reached:
            # What stands in an alias, a type or a macro is a type more often than not.
            used |= each.words | {f"{word}:" for word in each.words}
    # A type that device code does not reach is left out if it needs what only the host has.
    dropped |= {name for each in types if each.looks_of_host for name in each.names}
    while more := {
        name for each in types if each.mentions(dropped) for name in each.names - dropped
    }:
        dropped |= more
    return Survey(marks, frozenset(dropped))


@dataclass(frozen=True, slots=True)
class _Type:
    """A type, alias, constant or macro: the names it declares, and the words it is made of.

    Among `words`, those where a type may stand are there once more with a colon.
    """

    names: frozenset[str]
    words: frozenset[str]
    looks_of_host: bool
    is_number: bool

    def is_reached(self, used: set[str]) -> bool:
        """Whether these words lead to it: to a type, only where a type may stand."""
        return any((name if self.is_number else f"{name}:") in used for name in self.names)

    def mentions(self, names: set[str]) -> bool:
        """Whether it is made of one of these."""
        return not self.words.isdisjoint(names)


def _words(text: str) -> frozenset[str]:
    types = (match[1] or match[2] for match in _TYPE_USE.finditer(text))
    return frozenset([*_WORDS.findall(text), *(f"{name}:" for name in types)])


def device_macros(texts: Iterable[str]) -> frozenset[str]:
    """Macros whose text marks what they stand in as device code, such as `HOST_DEVICE`."""
    found = set(_DEVICE_WORDS)
    for text in texts:
        for name, body in _MACRO.findall(text):
            if not found.isdisjoint(_WORDS.findall(body)):
                found.add(name)
    return frozenset(found - _DEVICE_WORDS)


def without_host_code(text: str, found: Survey) -> str:
    """The text with all functions, variables and types blanked that are for the host alone.

    So are the words by which nvcc tells a lambda's side. Text that cannot be cut into declarations,
    since its brackets do not match, stays as it is.
    """
    plain = without_directives(without_comments(text))
    cut: list[_Item] = []
    for item in _items(plain, 0, len(plain)):
        if _is_host(plain, item, found.marks) or _is_dropped(plain, item, found):
            cut.append(item)
        elif _RECORD.match(_declarator(plain[item.start : item.head_end])):
            cut += _host_members(plain, item, found)
    for each in reversed(cut):
        text = text[: each.start] + _blank(text[each.start : each.end]) + text[each.end :]
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
                # A class, an enumeration or an initializer goes on to its semicolon.
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
    """Whether a declaration is a function or a variable of the host."""
    whole, head = plain[item.start : item.end], plain[item.start : item.head_end]
    if not whole.strip(" \n\t;") or not marks.isdisjoint(_WORDS.findall(head)):
        return False
    declarator = _declarator(head)
    if _EXPLICIT_INSTANTIATION.match(head):
        return True
    if _RECORD.match(declarator) or _KEPT.match(declarator):
        return False
    if _has_parameters(head):
        return True
    # Device code may use constant numbers of the host, and nothing else of its variables.
    declared = declarator.partition("=")[0]
    is_constant = re.search(r"\bconst\b", declared) and _NUMBER_TYPES.search(declared)
    return not is_constant or "*" in declared or "std::" in whole


def _is_type(plain: str, item: _Item, marks: frozenset[str]) -> bool:
    """Whether a declaration is a type, an alias or a constant expression: nothing to run."""
    head = plain[item.start : item.head_end]
    declarator = _declarator(head)
    words = set(_WORDS.findall(head))
    if not (marks - {"constexpr"}).isdisjoint(words):
        return False
    return bool(_RECORD.match(declarator) or _KEPT.match(declarator) or "constexpr" in words)


def _is_dropped(plain: str, item: _Item, found: Survey) -> bool:
    if not _is_type(plain, item, found.marks):
        return False
    whole = plain[item.start : item.end]
    names = _names_of(whole)
    if names:
        return names <= found.dropped
    return _HOST_ONLY.search(whole) is not None or not found.dropped.isdisjoint(
        _WORDS.findall(whole)
    )


def _host_members(plain: str, record: _Item, found: Survey) -> Iterator[_Item]:
    """The member functions of a class that are for the host alone, and would not compile here."""
    close = closing(plain, record.head_end)
    for member in _items(plain, record.head_end + 1, close) if close > 0 else ():
        label = _ACCESS.match(plain, member.start, member.head_end)
        item = replace(member, start=label.end()) if label else member
        head, whole = plain[item.start : item.head_end], plain[item.start : item.end]
        words = set(_WORDS.findall(head))
        if not _has_parameters(head) or not (found.marks - {"constexpr"}).isdisjoint(words):
            continue
        marked = "__host__" in words
        calls_host = _HOST_ONLY.search(whole) or not found.dropped.isdisjoint(_WORDS.findall(whole))
        if marked or (calls_host and "constexpr" not in words):
            yield item


def _cannot_be_kept(plain: str, item: _Item, marks: frozenset[str]) -> bool:
    """Whether a type needs what only the host has, its member functions for the host apart."""
    whole = plain[item.start : item.end]
    if _RECORD.match(_declarator(plain[item.start : item.head_end])):
        for member in [*_host_members(plain, item, Survey(marks, frozenset()))][::-1]:
            start, end = member.start - item.start, member.end - item.start
            whole = whole[:start] + whole[end:]
    return _UNAVAILABLE.search(whole) is not None


def _names_of(whole: str) -> frozenset[str]:
    """The names that a declaration of a type introduces."""
    body = whole.find("{")
    outside = whole if body < 0 else whole[: body + 1] + whole[whole.rfind("}") :]
    return frozenset(match[1] for pattern in _NAMES for match in pattern.finditer(outside))


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
