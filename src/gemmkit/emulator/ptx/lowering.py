"""Rewrites calls and jump tables of a PTX text in terms that the rest of the emulator knows.

A call of a function that the text defines is replaced by the function's body in its own scope, and
`brx.idx` by a chain of comparisons and branches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmkit.errors import UnsupportedInstruction

_FUNCTION = re.compile(
    r"\.func\s*(?:\.noreturn\s*)?(?:\((?P<results>[^()]*)\)\s*)?(?P<name>[\w$]+)\s*"
    r"\((?P<parameters>[^()]*)\)[^{};]*\{"
)
_CALL = re.compile(
    r"(?:@(?P<negated>!?)(?P<guard>[%\w$]+)\s+)?\bcall(?:\.uni)?\s+"
    r"(?:\((?P<results>[^()]*)\)\s*,\s*)?(?P<name>[A-Za-z_$][\w$]*)\s*"
    r"(?:,\s*\((?P<arguments>[^()]*)\)\s*)?;"
)
_RETURN = re.compile(r"(?P<guard>@!?[%\w$]+\s+)?\bret(?:\.uni)?\s*;")
_WIDTH = re.compile(r"\.[bsuf](\d+)\b")
_LAST_NAME = re.compile(r"([\w$]+)\s*(?:\[\d*\])?\s*$")
_LOC = re.compile(r"\.loc\s[^\n]*")
_TABLE = re.compile(r"([\w$]+)\s*:\s*\.branchtargets\s+([^;]*);")
_TABLE_JUMP = re.compile(
    r"(?:@(?P<negated>!?)(?P<guard>[%\w$]+)\s+)?\bbrx\.idx(?:\.uni)?\s+(?P<index>[%\w$]+)\s*,\s*"
    r"(?P<table>[\w$]+)\s*;"
)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function's body, and the names of its results and parameters.

    `structs` are those of which the body accesses parts: arrays of bytes, and numbers narrower than
    the 32 bits that they are passed in, such as a bool.
    """

    name: str
    body: str
    results: tuple[str, ...]
    parameters: tuple[str, ...]
    structs: frozenset[str]


def lowered(text: str) -> str:
    """The text without comments, calls of its own functions and jump tables.

    Instructions keep their source lines. Lines of the PTX itself are counted with function bodies
    inlined.

    Raises:
        UnsupportedInstruction: a function calls itself.
    """
    if ".branchtargets" in text:
        text = _without_tables(text)
    functions = {found.name: found for found in _functions(text)}
    if not functions:
        return text
    for match in reversed([*_FUNCTION.finditer(text)]):
        end = _closing(text, match.end()) + 1
        text = text[: match.start()] + "\n" * text.count("\n", match.start(), end) + text[end:]
    return _Inliner(functions).inlined(text, ())


class _Inliner:
    """Replaces calls by function bodies, innermost first."""

    def __init__(self, functions: dict[str, _Function]) -> None:
        self._functions = functions
        self._bodies: dict[str, str] = {}
        self._count = 0

    def inlined(self, text: str, within: tuple[str, ...]) -> str:
        """A text without calls of the functions; it is itself part of the functions in `within`."""
        for call in reversed([*_CALL.finditer(text)]):
            if call["name"] in self._functions:
                function = self._functions[call["name"]]
                body = self._body(function, within)
                self._count += 1
                expanded = _expanded(call, function, body, f"inlined_{self._count}", text)
                start = text.rfind("{", 0, call.start())
                end = _closing(text, call.end()) + len(expanded) - len(call[0])
                text = text[: call.start()] + expanded + text[call.end() :]
                scope = _with_structs_in_memory(text[start:end], call, function)
                # Calls within the body use the same names for their parameters.
                scope = _renamed(scope, call, self._count)
                text = text[:start] + scope + text[end:]
        return text

    def _body(self, function: _Function, within: tuple[str, ...]) -> str:
        if function.name in within:
            raise UnsupportedInstruction(
                f"the emulator does not support recursive functions: {function.name}"
            )
        if function.name not in self._bodies:
            self._bodies[function.name] = self.inlined(function.body, (*within, function.name))
        return self._bodies[function.name]


def _functions(text: str) -> list[_Function]:
    found = []
    for match in _FUNCTION.finditer(text):
        body = text[match.end() : _closing(text, match.end())]
        found.append(
            _Function(
                match["name"],
                body,
                _names(match["results"]),
                _names(match["parameters"]),
                frozenset(
                    name
                    for part in f"{match['results'] or ''},{match['parameters']}".split(",")
                    for name in _names(part)
                    if "[" in part or _in_parts(part, name, body)
                ),
            )
        )
    return found


def _in_parts(declared: str, name: str, body: str) -> bool:
    """Whether a function's body accesses a parameter or result in another width than it has."""
    width = _WIDTH.search(declared)
    accesses = re.findall(rf"\b(?:ld|st)\.param\.\w?(\d+)\s[^;]*\[\s*{re.escape(name)}\b", body)
    return width is not None and any(each != width[1] for each in accesses)


def _names(declared: str | None) -> tuple[str, ...]:
    """The names in a list of parameters."""
    parts = (declared or "").split(",")
    return tuple(found[1] for part in parts if (found := _LAST_NAME.search(part)))


def _closing(text: str, start: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


def _expanded(call: re.Match[str], function: _Function, body: str, end: str, text: str) -> str:
    """The function's body in place of a call; `end` is a unique label."""
    given = (*_names(call["results"]), *_names(call["arguments"]))
    names = dict(zip((*function.results, *function.parameters), given, strict=False))
    body = re.sub(r"[\w$]+", lambda word: names.get(word[0], word[0]), body)
    body = _RETURN.sub(lambda ret: f"{ret['guard'] or ''}bra.uni {end};", body)
    if call["guard"] is not None:
        opposite = "" if call["negated"] else "!"
        body = f"@{opposite}{call['guard']} bra {end};{body}"
    lines = _LOC.findall(text, 0, call.start())
    if not _LOC.search(body):
        body = body.replace("\n", " ")
        return f"{{ {body} {end}: }}"
    after = f"\n{lines[-1]}\n" if lines else ""
    return f"{{ {body} {end}: {after} }}"


def _with_structs_in_memory(scope: str, call: re.Match[str], function: _Function) -> str:
    """The scope of a call, in which what is accessed in parts is a local variable."""
    given = (*_names(call["results"]), *_names(call["arguments"]))
    for formal, name in zip((*function.results, *function.parameters), given, strict=False):
        if formal in function.structs:
            known = re.escape(name)
            scope = re.sub(rf"\.param(\s[^;]*\b{known}\s*[\[;])", r".local\1", scope)
            scope = re.sub(rf"\b(ld|st)\.param(\S*\s[^;]*\[{known}\b)", r"\1.local\2", scope)
    return scope


def _renamed(scope: str, call: re.Match[str], number: int) -> str:
    """The scope of a call with unique names for what is passed."""
    given = (*_names(call["results"]), *_names(call["arguments"]))
    declared = (name for name in given if re.search(rf"\.(?:param|local)\s[^;]*\b{name}\b", scope))
    own = {name: f"{name}_{number}" for name in declared}
    return re.sub(r"[\w$%]+", lambda word: own.get(word[0], word[0]), scope)


def _without_tables(text: str) -> str:
    tables = {name: targets.split(",") for name, targets in _TABLE.findall(text)}

    def chain(jump: re.Match[str]) -> str:
        targets = [target.strip() for target in tables.get(jump["table"], [])]
        if not targets:
            return jump[0]
        skip = f"beyond_{jump.start()}"
        opposite = "" if jump["negated"] else "!"
        guard = f"@{opposite}{jump['guard']} bra {skip};" if jump["guard"] else ""
        tests = "".join(
            f" setp.eq.u32 %chosen, {jump['index']}, {number}; @%chosen bra {target};"
            for number, target in enumerate(targets[:-1])
        )
        return f"{{ .reg .pred %chosen; {guard}{tests} bra.uni {targets[-1]}; {skip}: }}"

    return _TABLE.sub("", _TABLE_JUMP.sub(chain, text))
