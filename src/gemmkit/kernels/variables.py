"""`__constant__` and `__device__` variables of a source, and the values that a user gives them."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gemmkit.cxx.conditionals import compiled, defined_by
from gemmkit.cxx.declarations import (
    constants_in,
    split_arguments,
    without_comments,
    without_directives,
)
from gemmkit.cxx.element_types import type_names
from gemmkit.cxx.expressions import Expression, Number
from gemmkit.errors import UsageError
from gemmkit.kernels.plan import SourceFile
from gemmkit.problem import GemmProblem

# A number, or an expression over the sizes of the problem, or several of them in order.
Value = Number | str | Sequence[Number | str]

# A bracket begins the parameters of a function, or is an initial value that the compiler knows.
_DECLARATION = re.compile(r"\b(?P<space>__constant__|__device__)\s+(?P<rest>[^;()]*);")
_DECLARATOR = re.compile(
    r"(?P<type>[\w:<>\s]*?[\s>])(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)(?P<data>[={].*)?",
    re.DOTALL,
)
_WORDS = re.compile(
    r"\b(?:const|volatile|static|extern|inline|constexpr|__restrict__|__constant__|__device__)\b"
)
# As `struct` calls them.
_TYPES: Mapping[str, str] = {
    "float": "f",
    "double": "d",
    "half": "e",
    "__half": "e",
    **dict.fromkeys(("char", "signed char", "int8_t"), "b"),
    **dict.fromkeys(("unsigned char", "uint8_t", "bool"), "B"),
    **dict.fromkeys(("short", "int16_t"), "h"),
    **dict.fromkeys(("unsigned short", "uint16_t"), "H"),
    **dict.fromkeys(("int", "int32_t", "signed", "signed int"), "i"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), "I"),
    **dict.fromkeys(("long", "long long", "int64_t", "ptrdiff_t"), "q"),
    **dict.fromkeys(("unsigned long", "unsigned long long", "size_t", "uint64_t"), "Q"),
}
# Constants and types that follow from others, so many times over.
_MOST_STEPS = 4
# As PTX declares them, where that is all there is.
PTX_VARIABLE = re.compile(
    r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.(?P<space>const|global)\s+(?:\.align\s+\d+\s+)?"
    r"(?:\.attribute\([^)]*\)\s+)?\.(?P<type>[busf])(?P<bits>\d+)\s+(?P<name>[\w$]+)"
    r"(?:\[(?P<count>\d+)\])?\s*(?P<data>=[^;]*)?;",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class DeviceVariable:
    """One variable: `type` as written, in `count` elements; None where that is not known.

    `initialized` says whether the source gives it a value.
    """

    name: str
    space: str
    type: str
    count: int | None
    initialized: bool

    def pack(self, values: Sequence[Number]) -> bytes:
        """The bytes that hold these values; the rest of the variable stays as it is.

        Raises:
            UsageError: there are too many, or its type is none of C's arithmetic types.
        """
        scalar = _TYPES.get(self.type)
        if scalar is None:
            raise UsageError(
                f"'{self.name}' is of type {self.type}, which --constant cannot set: it sets "
                "arithmetic types and arrays of them"
            )
        if self.count is not None and len(values) > self.count:
            raise UsageError(
                f"'{self.name}' has {self.count} element{'s' * (self.count != 1)}, and --constant "
                f"gives {len(values)}"
            )
        floating = scalar in "edf"
        if not floating and any(int(each) != each for each in values):
            raise UsageError(f"'{self.name}' is of type {self.type}: give whole numbers")
        try:
            numbers = values if floating else map(int, values)
            return struct.pack(f"<{len(values)}{scalar}", *numbers)
        except (struct.error, OverflowError):
            shown = ", ".join(map(str, values))
            raise UsageError(
                f"'{self.name}' is of type {self.type}, which does not hold {shown}"
            ) from None


@dataclass(frozen=True, slots=True)
class DeviceVariables:
    """The variables of a source, and the values of some of them, as expressions."""

    declared: tuple[DeviceVariable, ...] = ()
    given: tuple[tuple[str, tuple[Expression, ...]], ...] = ()

    def packed(self, problem: GemmProblem) -> tuple[tuple[str, bytes], ...]:
        """The bytes of those that have values, for one problem; empty as the source has them.

        Raises:
            UsageError: an expression fails, or its value does not fit.
        """
        if not self.declared:
            return ()
        names: dict[str, Number] = {
            "M": problem.m,
            "N": problem.n,
            "K": problem.k,
            "lda": problem.lda,
            "ldb": problem.ldb,
            "ldc": problem.ldc,
            "alpha": problem.alpha,
            "beta": problem.beta,
        }
        by_name = {each.name: each for each in self.declared}
        found = {each.name: b"" for each in self.declared if each.initialized}
        for name, values in self.given:
            found[name] = by_name[name].pack([each.evaluate(names) for each in values])
        return tuple(found.items())


def variables_of(file: SourceFile | None, given: Mapping[str, Value] | None) -> DeviceVariables:
    """The variables of a kernel's source, with the values that a user gives.

    Raises:
        UsageError: there is no such variable, or an expression cannot be read.
    """
    if file is None or file.language == "python":
        return _with_values((), {}, given)
    if file.language == "ptx":
        return _of_ptx(file.text, given)
    texts = [file.text]
    if file.include_dirs:
        seen = compiled(file.text, Path(file.include_dirs[0]), file.include_dirs, file.options)
        texts = [seen.text, *seen.included.values()]
    if not any(space in text for text in texts for space in ("__constant__", "__device__")):
        return _with_values((), {}, given)
    constants = _constants(texts, file.options)
    types = type_names(texts, file.options)
    declared = [each for text in texts for each in _declared(text, constants, types)]
    return _with_values(declared, constants, given)


def _constants(texts: Sequence[str], options: Sequence[str]) -> dict[str, Number]:
    """Macros and constants that are whole numbers, for the extents of arrays."""
    values = {name: value for text in texts for name, value in constants_in(text).items()}
    values |= {name: value for name, value in defined_by(options).items() if value}
    found: dict[str, Number] = {}
    for _ in range(_MOST_STEPS):
        for name, value in values.items():
            with suppress(UsageError):
                found[name] = Expression.parse(value).integer(found)
    return found


def _of_ptx(ptx: str, given: Mapping[str, Value] | None) -> DeviceVariables:
    """Those of a PTX text; arrays, which it declares as bytes, take the type of their values."""
    spaces = {"const": "__constant__", "global": "__device__"}
    declared = []
    for found in PTX_VARIABLE.finditer(ptx):
        kinds = {"f": {"16": "half", "32": "float", "64": "double"}}
        wide = {"8": "char", "16": "short", "32": "int", "64": "long long"}
        kind = kinds.get(found["type"], wide).get(found["bits"], "")
        count = int(found["count"] or 1)
        values = (given or {}).get(found["name"])
        if kind == "char" and count >= 4 and values is not None:
            listed = [values] if isinstance(values, (str, int, float)) else list(values)
            whole = all(isinstance(each, int) for each in listed)
            kind, count = "int" if whole else "float", count // 4
        initialized = found["data"] is not None
        declared.append(
            DeviceVariable(found["name"], spaces[found["space"]], kind, count, initialized)
        )
    return _with_values(declared, {}, given)


def _with_values(
    declared: Sequence[DeviceVariable],
    constants: Mapping[str, Number],
    given: Mapping[str, Value] | None,
) -> DeviceVariables:
    known = {each.name for each in declared}
    bound = []
    for name, value in (given or {}).items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"there is no __constant__ or __device__ variable '{name}'; there are: {listed}"
            )
        parts = [value] if isinstance(value, (str, int, float)) else list(value)
        expressions = tuple(
            Expression.parse(Expression.parse(str(each)).bound(constants)) for each in parts
        )
        bound.append((name, expressions))
    return DeviceVariables(tuple(declared), tuple(bound))


def _declared(
    text: str, constants: Mapping[str, Number], types: Mapping[str, str]
) -> list[DeviceVariable]:
    plain = without_directives(without_comments(text))
    found = []
    for match in _DECLARATION.finditer(plain):
        kind = ""
        for part in split_arguments(_WORDS.sub(" ", match["rest"])):
            # Further names of one declaration share the type of the first.
            declarator = _DECLARATOR.fullmatch(part if not kind else f"{kind} {part}")
            if declarator is None:
                break
            kind = " ".join(declarator["type"].split())
            extents = re.findall(r"\[([^\]]*)\]", declarator["extents"])
            found.append(
                DeviceVariable(
                    declarator["name"],
                    match["space"],
                    _meaning(kind, types),
                    _product(extents, constants),
                    declarator["data"] is not None,
                )
            )
    return found


def _meaning(kind: str, types: Mapping[str, str]) -> str:
    """What a type stands for, where the source gives it another name."""
    for _ in range(_MOST_STEPS):
        kind = kind.removeprefix("std::")
        if kind in _TYPES or kind not in types:
            break
        kind = types[kind]
    return kind


def _product(extents: Sequence[str], constants: Mapping[str, Number]) -> int | None:
    """How many elements an array has, or None if that cannot be worked out."""
    total = 1
    for text in extents:
        try:
            total *= Expression.parse(text).integer(constants)
        except UsageError:
            return None
    return total
