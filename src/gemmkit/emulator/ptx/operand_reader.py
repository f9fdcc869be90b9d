"""`OperandReader`: reads the operands of PTX instructions, whose names depend on scopes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from gemmkit.emulator.ptx.module import (
    Address,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from gemmkit.emulator.ptx.variables import PtxSyntaxError

SPECIAL_REGISTERS = frozenset(
    [
        f"%{name}.{axis}"
        for name in (
            *("tid", "ntid", "ctaid", "nctaid"),
            *("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"),
        )
        for axis in "xyz"
    ]
    + ["%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"]
    + ["%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock64"]
    + [f"%lanemask_{relation}" for relation in ("eq", "lt", "le", "gt", "ge")]
    + ["%dynamic_smem_size", "%total_smem_size", "%globaltimer", "WARP_SZ"]
)

_BRACKET = re.compile(r"[{}()\[\]]")
_ADDRESS = re.compile(
    r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\w+))?\s*(?:,\s*(?P<coordinates>\{[^{}]*\})\s*)?\]"
)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
_FLOAT_BITS = re.compile(r"0([fFdD])([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")


def split_operands(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    if _BRACKET.search(text) is None:
        parts = [each.strip() for each in text.split(",")]
        return parts if parts[-1] else parts[:-1]
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


class OperandReader(ABC):
    """The operands of one entry function; names declared in an inner scope are made unique."""

    def __init__(self) -> None:
        self._scopes: list[dict[str, str]] = [{}]
        self._registers: dict[str, Register] = {}
        # By their text, those that were read in the current scope.
        self._operands: dict[str, Operand | None] = {}

    @abstractmethod
    def _error(self, what: str) -> PtxSyntaxError:
        """That something cannot be read here."""

    @abstractmethod
    def _refuse(self, word: str, text: str) -> None:
        """Raise an UnsupportedInstruction if the CUDA C++ construct of a word is known."""

    def _rename(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _operands_in(self, text: str) -> Iterator[Operand | None]:
        """An operand, with the coordinates that a tensor's address holds as one of their own."""
        operand = self._operand(text)
        yield operand
        if isinstance(operand, Address) and operand.coordinates:
            yield self._operand(text[text.index("{") :].rstrip("] "))

    def _operand(self, text: str) -> Operand | None:
        if text not in self._operands:
            self._operands[text] = self._read_operand(text)
        return self._operands[text]

    def _read_operand(self, text: str) -> Operand | None:
        if text == "_":
            return None
        if text.startswith("{"):
            return Vector(tuple(self._operand(each) for each in split_operands(text[1:-1])))
        if text.startswith("("):
            return Group(tuple(self._rename(name) for name in split_operands(text[1:-1])))
        if text.startswith("["):
            return self._read_address(text)
        if text.startswith("!"):
            register = self._operand(text[1:])
            if not isinstance(register, Register):
                raise self._error(text)
            return Negated(register)
        if "|" in text:
            first, second = (self._operand(each.strip()) for each in text.split("|"))
            return Pair(first, second)
        return self._read_name(text)

    def _read_name(self, text: str) -> Register | Immediate | Special | Symbol:
        if text in SPECIAL_REGISTERS:
            return Special(text)
        bits = _FLOAT_BITS.fullmatch(text)
        if bits:
            return Immediate(int(bits.group(2), 16), "f32" if bits.group(1) in "fF" else "f64")
        if _INTEGER.fullmatch(text):
            return Immediate(_integer(text))
        name = self._rename(text)
        if name in self._registers:
            return self._registers[name]
        if text.startswith("%"):
            self._refuse(text, text)
            raise self._error(f"unknown register {text}")
        if not _NAME.fullmatch(text):
            raise self._error(text)
        return Symbol(name)

    def _read_address(self, text: str) -> Address:
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise self._error(f"address {text}")
        base = self._read_name(match.group(1))
        if isinstance(base, Special):
            raise self._error(f"address {text}")
        listed = match["coordinates"]
        count = len(split_operands(listed[1:-1])) if listed else 0
        return Address(base, _integer(match.group(2)) if match.group(2) else 0, count)


def _integer(text: str) -> int:
    """PTX writes octal with a leading 0, unlike Python."""
    text = text.rstrip("U")
    negative, digits = text.startswith("-"), text.lstrip("-")
    octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
    value = int(digits, 8) if octal else int(digits, 0)
    return -value if negative else value
