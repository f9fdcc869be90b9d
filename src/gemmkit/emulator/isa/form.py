"""`Form`: one instruction form, keyed by its full opcode, and the pattern language of the table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from gemmkit.emulator.isa.types import TYPES, PtxType, widened


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand of an instruction.

    `role` is one of: dest, sink, source, address, immediate, label, symbol, group, policy. A dest
    or source has a `type` and a `count` (the length of a brace list; 1 for a plain operand).
    `pair`: a dest that may be written `d|p`, with p a predicate. `optional` operands may be missing
    at the end. `or_predicate`: a source that may be a predicate instead of a `type`. A cache
    `policy` is always last and changes no result. A `sink` is the operand `_`. `coordinates` is the
    number of those that follow the address of a tensor map.
    """

    role: str
    type: PtxType | None = None
    count: int = 1
    pair: bool = False
    optional: bool = False
    or_predicate: bool = False
    coordinates: int = 0


@dataclass(frozen=True)
class Form:
    """One row of the table.

    `operation` names what it does, for all forms that differ only in types or modifiers;
    `modifiers` holds what the pattern bound by name (T the operand type, S a state space, …);
    `opcode_class` groups forms for the counters.
    """

    opcode: str
    operation: str
    operands: tuple[OperandSpec, ...]
    opcode_class: str
    modifiers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def type(self) -> PtxType:
        """The type bound to T."""
        return TYPES[self.modifiers["T"]]

    def taking(self, predicates: Sequence[bool]) -> Form:
        """The form for given operands; `predicates` says which of them are predicates.

        The last operand may be a required one, such as a cache policy: the optional operands before
        it may be missing.
        """
        specs = self.operands
        if specs and not specs[-1].optional and len(predicates) < len(specs):
            specs = tuple(spec for spec in specs if not spec.optional)
        if any(spec.or_predicate for spec in specs):
            specs = tuple(
                replace(spec, type=TYPES["pred"]) if spec.or_predicate and is_predicate else spec
                for spec, is_predicate in itertools.zip_longest(specs, predicates)
                if spec is not None
            )
        return self if specs == self.operands else replace(self, operands=specs)

    def __getitem__(self, modifier: str) -> str:
        return self.modifiers[modifier]


_HOLE = re.compile(r"\{(?:(\w+):)?([^{}]*)\}")


def expand(pattern: str) -> Iterator[tuple[str, dict[str, str]]]:
    """All opcodes of a pattern, with the names it binds.

    `{T:u32,s32}` stands for one of its alternatives and binds T to it; `{.a,.b}` binds nothing; an
    empty alternative stands for an absent modifier. Bound values have no leading dot.
    """
    holes = list(_HOLE.finditer(pattern))
    choices = [hole.group(2).split(",") for hole in holes]
    for chosen in itertools.product(*choices):
        opcode, position, bound = "", 0, {}
        for hole, choice in zip(holes, chosen, strict=True):
            opcode += pattern[position : hole.start()] + choice
            position = hole.end()
            if hole.group(1):
                bound[hole.group(1)] = _bound(choice)
        yield opcode + pattern[position:], bound


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    text, position = "", 0
    for hole in _HOLE.finditer(pattern):
        choices = "|".join(re.escape(choice) for choice in hole.group(2).split(","))
        group = f"(?P<{hole.group(1)}>{choices})" if hole.group(1) else f"(?:{choices})"
        text += re.escape(pattern[position : hole.start()]) + group
        position = hole.end()
    return re.compile(text + re.escape(pattern[position:]))


def bindings(pattern: str, opcode: str) -> dict[str, str] | None:
    """The names that a pattern binds for one opcode, or None if the pattern does not match."""
    if not opcode.startswith(pattern.partition("{")[0]):
        return None
    match = _matcher(pattern).fullmatch(opcode)
    if match is None:
        return None
    return {name: _bound(choice) for name, choice in match.groupdict().items()}


def _bound(choice: str) -> str:
    """An alternative as it is bound; an address says whose shared memory of a cluster it is in."""
    return choice.lstrip(".").removesuffix("::cta").removesuffix("::cluster")


def operand_specs(signature: str, bound: Mapping[str, str]) -> tuple[OperandSpec, ...]:
    """Parse a signature, such as `={T} {T} {T}` or `={V}{T} [{S}]`.

    `=type` is a destination, `=type|pred` one that may be a pair, `type` a source, `type/pred` one
    that may be a predicate instead, `[space]` an address, `#` an immediate, `@` a label, `$` a
    symbol, `()` a group, `~` a cache policy. A prefix such as `v4` gives the length of a brace
    list, `?` marks an operand that may be missing, `wide(T)` is the type of twice the width. `_` is
    itself. `[map.2]` is the address of a tensor map with two coordinates.
    """
    return tuple(_operand_spec(word) for word in signature.format(**bound).split())


@cache
def _operand_spec(word: str) -> OperandSpec:
    optional = word.startswith("?")
    word = word.removeprefix("?")
    fixed = {"#": "immediate", "@": "label", "$": "symbol", "()": "group", "_": "sink"}
    if word in fixed:
        return OperandSpec(fixed[word], optional=optional)
    if word == "~":
        return OperandSpec("policy", TYPES["b64"])
    if word.startswith("["):
        coordinates = int(word[5:-1]) if word.startswith("[map.") else 0
        return OperandSpec("address", optional=optional, coordinates=coordinates)
    role = "dest" if word.startswith("=") else "source"
    word = word.removeprefix("=")
    pair = word.endswith("|pred")
    or_predicate = word.endswith("/pred")
    word = word.removesuffix("|pred").removesuffix("/pred")
    count = 1
    vector = re.match(r"v(\d+)(.+)", word)
    if vector:
        count, word = int(vector.group(1)), vector.group(2)
    wide = re.fullmatch(r"wide\((\w+)\)", word)
    name = widened(wide.group(1)) if wide else word
    return OperandSpec(role, TYPES[name], count, pair, optional, or_predicate)
