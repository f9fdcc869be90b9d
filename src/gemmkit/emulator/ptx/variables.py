"""Variables of a PTX text: their declarations, and their layout in each space."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import Variable
from gemmkit.emulator.ptx.names import source_name
from gemmkit.errors import GemmkitError

VARIABLE = re.compile(
    r"\.(?P<space>shared|local|param|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
    r"(?:\.attribute\([^)]*\)\s+)?\.(?P<type>\w+)\s+(?:\.ptr\b(?:\s+\.\w+(?:\s+\d+)?)*\s+)?"
    r"(?P<name>[\w$]+)(?P<array>(?:\[\d*\])*)(?:\s*=\s*(?P<data>.*))?$",
    re.DOTALL,
)
_NUMBER = re.compile(r"\b0[fFdD][0-9a-fA-F]+|-?\b0[xX][0-9a-fA-F]+|-?\b\d+\b")
# The distance between module-scope variables: a multiple of the alignment of device memory, so that
# counters that depend on addresses are those of adjacent variables.
GAP = 512 << 10
# Parsing the types, numbers and lists of a malformed statement fails with one of these.
MALFORMED = (KeyError, ValueError, IndexError)


class PtxSyntaxError(GemmkitError):
    """A text that is not PTX, or PTX that the emulator does not parse."""


class AddressesAsData(ValueError):
    """Initial data of a variable that is not numbers."""


def unreadable(line: int, what: str, source: str = "") -> PtxSyntaxError:
    """The error for a part of the text at a line; `source` is its source line."""
    where = f"{source}: the emulator cannot read this" if source else "cannot read"
    return PtxSyntaxError(f"{where} PTX line {line}: {' '.join(what.split())[:80]}")


@dataclass(slots=True)
class Space:
    """Variables laid out one after the other."""

    variables: dict[str, Variable] = field(default_factory=dict)
    size: int = 0

    def add(self, declaration: re.Match[str], name: str | None = None) -> None:
        """Place one more variable, matched by `VARIABLE`; `name` may differ from the declared one.

        Raises:
            KeyError, ValueError: the type, alignment or initial data is malformed.
        """
        element = TYPES[declaration["type"]].bytes
        count = 1
        for extent in re.findall(r"\[(\d+)\]", declaration["array"]):
            count *= int(extent)
        align = _alignment(declaration)
        offset = -(-self.size // align) * align
        data = _initial_data(declaration["data"], element) if declaration["data"] else b""
        constant = declaration["space"] == "const"
        variable = Variable(offset, element * count, data, align, constant)
        self.variables[name or declaration["name"]] = variable
        self.size = offset + variable.size


@dataclass(slots=True)
class ModuleScope:
    """Module-scope variables."""

    globals: Space = field(default_factory=Space)
    shared: Space = field(default_factory=Space)
    dynamic_shared: dict[str, int] = field(default_factory=dict)


def separated(variables: Mapping[str, Variable], named: Collection[str]) -> dict[str, Variable]:
    """The module-scope variables that are named, each separated from the one before it, so that an
    access past its end hits no other variable."""
    kept = ((name, each) for name, each in variables.items() if name in named)
    return {
        name: replace(each, offset=each.offset + number * GAP)
        for number, (name, each) in enumerate(kept)
    }


def _alignment(declaration: re.Match[str]) -> int:
    alignment = int(declaration["align"] or TYPES[declaration["type"]].bytes)
    if alignment.bit_count() != 1:
        raise ValueError("an alignment is a power of two")
    return alignment


def _initial_data(text: str, element: int) -> bytes:
    if _NUMBER.sub("", text).strip("{}, \n"):
        raise AddressesAsData
    data = b""
    for value in _NUMBER.findall(text):
        number = int(value[2:], 16) if value[1:2] in tuple("fFdD") else int(value, 0)
        data += (number % (1 << 8 * element)).to_bytes(element, "little")
    return data


def module_scope(text: str) -> ModuleScope:
    """The variables of a text outside of its functions.

    Raises:
        PtxSyntaxError: a declaration is malformed.
    """
    outer = ModuleScope()
    depth, line = 0, 1
    statement = ""
    for piece in re.split(r"([{};])", text):
        line += piece.count("\n")
        if piece == "{" and not VARIABLE.search(statement):
            depth += 1
        elif piece == "}" and depth:
            depth -= 1
            statement = ""
        elif piece == ";" and depth == 0:
            try:
                _declare_outer(outer, statement)
            except AddressesAsData:
                name = VARIABLE.search(" ".join(statement.split()))
                raise PtxSyntaxError(
                    f"the variable '{source_name(name['name']) if name else '?'}' in device memory "
                    "is initialized with addresses, as tables of function pointers are: the "
                    f"emulator does not support that (PTX line {line})"
                ) from None
            except MALFORMED:
                raise unreadable(line, statement) from None
            statement = ""
        elif depth == 0:
            statement += piece
    return outer


def _declare_outer(outer: ModuleScope, statement: str) -> None:
    match = VARIABLE.search(" ".join(statement.split()))
    if match is None or ".func" in statement:
        return
    if match["space"] == "shared" and match["array"] == "[]":
        outer.dynamic_shared[match["name"]] = _alignment(match)
    elif match["space"] == "shared":
        outer.shared.add(match)
    elif match["space"] in ("global", "const"):
        outer.globals.add(match)
