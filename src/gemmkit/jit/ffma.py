"""Multiply-adds of a kernel's machine code, read from the cubin: how many, and what they cost.

The register file of an SM has two banks, by register number modulo 2, each of which delivers one
operand a cycle. An FFMA therefore issues in as many cycles as the most different sources that it
takes from one bank, those left out that the instruction before has kept (`.reuse`): measured on an
H100, and the same encoding from compute capability 7.0 on.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_INSTRUCTION_BYTES = 16
# `FFMA Rd, Ra, Rb, Rc`, all of them registers.
_FFMA = 0x223
_OPCODE_MASK = 0xFFF
_ZERO_REGISTER = 255
_BANKS = 2


@dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """`count` FFMAs with register operands stand in the code; back to back they take `cycles`."""

    count: int
    cycles: int

    @property
    def issue_cycles(self) -> float:
        """Cycles of one on average; 1 where there is none."""
        return self.cycles / self.count if self.count else 1.0


def multiply_adds(cubin: bytes, entry: str) -> MultiplyAdds | None:
    """The FFMAs of one kernel; None where these bytes hold no such kernel."""
    code = _code(cubin, entry)
    if code is None:
        return None
    count = cycles = 0
    kept: dict[int, int] = {}
    for word in _words(code):
        if word & _OPCODE_MASK != _FFMA:
            kept = {}
            continue
        sources = {place: word >> shift & 0xFF for place, shift in enumerate((24, 32, 64))}
        read = {
            register
            for place, register in sources.items()
            if kept.get(place) != register and register != _ZERO_REGISTER
        }
        in_bank = [sum(register % _BANKS == bank for register in read) for bank in range(_BANKS)]
        count += 1
        cycles += max(1, *in_bank)
        reuse = word >> 122
        kept = {place: register for place, register in sources.items() if reuse >> place & 1}
    return MultiplyAdds(count, cycles)


def _words(code: bytes) -> Iterator[int]:
    for low, high in struct.iter_unpack("<QQ", code[: len(code) // 16 * _INSTRUCTION_BYTES]):
        yield high << 64 | low


def _code(cubin: bytes, entry: str) -> bytes | None:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        section = ELFFile(io.BytesIO(cubin)).get_section_by_name(f".text.{entry}")
        return bytes(section.data()) if section is not None else None
    except (ELFError, AttributeError, OverflowError, ValueError, struct.error):
        return None
