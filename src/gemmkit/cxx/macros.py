"""Puts a source's own macros in place, as the preprocessor does, so that declarations can be read.

Macros that stand for a number keep their names, by which sizes are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gemmkit.cxx.declarations import closing, without_comments

_LINE = re.compile(r"^[^\n]*?(?:\\\n[^\n]*?)*(?:\n|\Z)", re.MULTILINE)
_DEFINE = re.compile(
    r"[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)(?P<list>\([^()]*\))?(?P<text>.*)", re.DOTALL
)
_UNDEFINE = re.compile(r"[ \t]*#[ \t]*undef[ \t]+(\w+)")
# Names, numbers, literals, operators that join; everything else is one character.
_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\.?\d[\w.']*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'|##|\s+|.", re.DOTALL
)
_OPENING = re.compile(r"\s*\(")
_NUMBER = re.compile(r"[\s(+-]*\d[\w\s()+*/%<>.-]*")
# Texts that grow beyond so many characters are left as they are.
_MOST_CHARACTERS = 1 << 22


@dataclass(frozen=True, slots=True)
class Macro:
    """What a macro stands for; `parameters` is None if it takes no arguments."""

    text: str
    parameters: tuple[str, ...] | None = None

    @property
    def is_number(self) -> bool:
        """Whether it stands for a number, or an expression that begins with one."""
        return self.parameters is None and _NUMBER.fullmatch(self.text) is not None


def macros_in(texts: Iterable[str], given: Mapping[str, str | None]) -> dict[str, Macro]:
    """The macros that texts define, and those of the compiler's options, by name."""
    found = {name: Macro(text) for name, text in given.items() if text is not None}
    for text in texts:
        for line in _LINE.finditer(without_comments(text, keep_literals=True)):
            _follow(line[0], found)
    return found


def expanded(text: str, macros: Mapping[str, Macro]) -> str:
    """A text without comments in which macros stand no more; lines stay.

    `macros` are those defined before; the text may define others. Directives stay.
    """
    known = dict(macros)
    done: list[str] = []
    code: list[str] = []

    def flush() -> None:
        done.append(_expand("".join(code), known, frozenset()))
        code.clear()

    for line in _LINE.finditer(without_comments(text, keep_literals=True)):
        if not line[0].lstrip(" \t").startswith("#"):
            code.append(line[0])
            continue
        flush()
        _follow(line[0], known)
        done.append(line[0])
    flush()
    return "".join(done)


def _follow(line: str, macros: dict[str, Macro]) -> None:
    """Follow a directive that defines a macro, or removes one."""
    if (found := _DEFINE.match(line)) is not None:
        text = " ".join(found["text"].replace("\\\n", " ").split())
        listed = found["list"]
        parameters = None
        if listed is not None:
            parameters = tuple(
                each.strip()
                for each in listed.replace("\\\n", " ")[1:-1].split(",")
                if each.strip()
            )
        macros[found["name"]] = Macro(text, parameters)
    elif (removed := _UNDEFINE.match(line)) is not None:
        macros.pop(removed[1], None)


def _expand(text: str, macros: Mapping[str, Macro], hidden: frozenset[str]) -> str:
    """A text with macros in place, but for those `hidden`, as these are being put in place."""
    done: list[str] = []
    position = size = 0
    while (token := _TOKEN.match(text, position)) is not None and size < _MOST_CHARACTERS:
        put, position = _put(token[0], text, token.end(), macros, hidden)
        done.append(put)
        size += len(put)
    return "".join(done) + text[position:]


def _put(
    token: str, text: str, position: int, macros: Mapping[str, Macro], hidden: frozenset[str]
) -> tuple[str, int]:
    """What stands for a token that ends at a position of a text, and where the text goes on."""
    macro = macros.get(token) if token not in hidden else None
    if macro is None or macro.is_number:
        return token, position
    inside, lines = hidden | {token}, ""
    if macro.parameters is None:
        put = _expand(macro.text, macros, inside)
    else:
        call = _call(text, position)
        if call is None:
            return token, position
        opening, close = call
        given = _arguments(text[opening + 1 : close], len(macro.parameters))
        put = _expand(_with_arguments(macro, given, macros, hidden), macros, inside)
        lines, position = "\n" * text.count("\n", position, close), close + 1
    # It may end in the name of a macro whose arguments follow in the text.
    last, call = re.search(r"[A-Za-z_]\w*\Z", put), _call(text, position)
    if last is not None and call is not None and last[0] in macros:
        called, end = _put(last[0], text, position, macros, inside)
        put, position = put[: last.start()] + called, end
    return put + lines, position


def _call(text: str, position: int) -> tuple[int, int] | None:
    """Where the arguments of a macro open and close, if they follow."""
    opening = _OPENING.match(text, position)
    close = closing(text, opening.end() - 1) if opening is not None else -1
    return None if opening is None or close < 0 else (opening.end() - 1, close)


def _arguments(text: str, most: int) -> list[str]:
    """The arguments of a call; commas count outside of round brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts if most or any(parts) else []


def _with_arguments(
    macro: Macro, given: list[str], macros: Mapping[str, Macro], hidden: frozenset[str]
) -> str:
    """A macro's text with its arguments in place."""
    raw: dict[str, str] = {}
    parameters = macro.parameters or ()
    for number, name in enumerate(parameters):
        if name.endswith("..."):
            raw[name.removesuffix("...").strip() or "__VA_ARGS__"] = ", ".join(given[number:])
        else:
            raw[name] = given[number] if number < len(given) else ""
    tokens: list[str] = _TOKEN.findall(macro.text)
    done: list[str] = []
    for number, token in enumerate(tokens):
        before = next((each for each in reversed(tokens[:number]) if not each.isspace()), "")
        after = next((each for each in tokens[number + 1 :] if not each.isspace()), "")
        if token in raw and before == "#":
            done[-1] = '"' + raw[token].replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif token in raw:
            joins = "##" in (before, after)
            done.append(raw[token] if joins else _expand(raw[token], macros, hidden))
        elif token.isspace() and "##" in (before, after):
            continue
        else:
            done.append(token)
    return "".join(each for each in done if each != "##")
