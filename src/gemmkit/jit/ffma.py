"""Multiply-adds of a kernel's machine code, read from the cubin: how many, and what they cost.

The register file of an SM has two banks, by register number modulo 2, each of which delivers one
operand a cycle. Each bank has a queue: an instruction issues when at most one cycle of reads is
left in the queues of the banks that it reads, so that three reads of one bank are hidden behind
instructions that read the other. An operand with `.reuse` stays at its place among the sources
until another `.reuse` takes that place; reading it there costs nothing. Measured on an H100 with
FFMAs of chosen registers, one to four warps a scheduler, and with those of compiled kernels (see
`benchmarks/results/h100-ffma-banks.json`); the same encoding from compute capability 7.0 on.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_INSTRUCTION_BYTES = 16
_OPCODE_MASK = 0xFFF
# `FFMA Rd, Ra, Rb, Rc`, all of them registers.
_FFMA = 0x223
_BRANCH = 0x947
_SHARED_LOAD = 0x984
# Places of the sources, as bits of the instruction: of FFMA, IMAD and IADD3; of FADD; of MOV.
_SOURCES = {_FFMA: (24, 32, 64), 0x224: (24, 32, 64), 0x210: (24, 32, 64), 0x221: (24, 32)}
_SOURCES[0x202] = (32,)
_REUSE = {24: 122, 32: 123, 64: 124}
_ZERO_REGISTER = 255
_BANKS = 2
# Cycles of reads that may wait in a bank's queue when an instruction that reads it issues.
_QUEUE = 1
# Turns of a loop until its queues are in their steady state, and turns that are measured then.
_FIRST_TURNS, _TURNS = 2, 4


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop as 128-bit words: how many FFMAs it has, and cycles that it waits for registers."""

    words: tuple[int, ...]
    count: int
    waits: float


@dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """FFMAs with register operands, of the loop that holds most of them.

    `total` are those of the whole kernel; `count` those of that loop (of the whole kernel where no
    loop holds any), which take `cycles` where nothing but the register file holds them up.
    `shared_loads` are the loop's load instructions from shared memory, `loop` all of it, as 128-bit
    words, and `around` what the loop around it has besides innermost loops; both are empty where
    there is none. `loops` are all innermost loops with FFMAs, by address.
    """

    total: int
    count: int
    cycles: float
    shared_loads: int
    loop: tuple[int, ...] = ()
    around: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()

    @property
    def issue_cycles(self) -> float:
        """Cycles of one on average; 1 where there is none."""
        return self.cycles / self.count if self.count else 1.0


def multiply_adds(cubin: bytes, entry: str, arch: str) -> MultiplyAdds | None:
    """The FFMAs of one kernel; None where these bytes hold no such kernel."""
    code = _code(cubin, entry)
    if code is None:
        return None
    words = list(_words(code))
    inner = _inner_loops(words, arch)
    loops = tuple(_loop(words[each]) for each in inner)
    found, around = _main_loop(words, arch, inner)
    main = words[found]
    whole = max(loops, key=lambda loop: loop.count, default=None) or _loop(main)
    return MultiplyAdds(
        total=sum(map(_is_ffma, words)),
        count=whole.count,
        cycles=whole.count + whole.waits,
        shared_loads=sum(word & _OPCODE_MASK == _SHARED_LOAD for word in main),
        loop=tuple(main) if len(main) < len(words) else (),
        around=_without(words, around, [found, *inner]),
        loops=loops,
    )


def _without(words: Sequence[int], whole: slice, parts: Sequence[slice]) -> tuple[int, ...]:
    """The instructions of a stretch of code that are in none of these."""
    gone = {place for part in parts for place in range(part.start, part.stop)}
    return tuple(words[place] for place in range(whole.start, whole.stop) if place not in gone)


def _loop(words: Sequence[int]) -> Loop:
    return Loop(tuple(words), sum(map(_is_ffma, words)), _waits(words))


def _inner_loops(words: Sequence[int], arch: str) -> list[slice]:
    """The innermost loops with FFMAs, by address."""
    # A loop that only loads is a part of the loop around it.
    multiplying = [each for each in _loops(words, arch) if any(map(_is_ffma, words[slice(*each)]))]
    return [
        slice(head, end)
        for head, end in sorted(set(multiplying))
        if not any(
            head <= other_head and other_end <= end and (head, end) != (other_head, other_end)
            for other_head, other_end in multiplying
        )
    ]


def _main_loop(words: Sequence[int], arch: str, inner: Sequence[slice]) -> tuple[slice, slice]:
    """The innermost loop with most FFMAs, or all of the code; and the smallest loop around it, or
    the same once more."""
    if not inner:
        return slice(0, len(words)), slice(0, len(words))
    main = max(inner, key=lambda each: sum(map(_is_ffma, words[each.start : each.stop])))
    head, end = main.start, main.stop
    outside = [each for each in _loops(words, arch) if each[0] <= head and end <= each[1]]
    outside = [each for each in outside if each != (head, end)]
    return main, slice(*min(outside, key=lambda at: at[1] - at[0], default=(head, end)))


def _loops(words: Sequence[int], arch: str) -> list[tuple[int, int]]:
    """First instruction of each loop, and the one after its last."""
    loops = []
    for place, word in enumerate(words):
        if word & _OPCODE_MASK == _BRANCH:
            head = place + 1 + _branch_distance(word, arch) // _INSTRUCTION_BYTES
            if 0 <= head < place:
                loops.append((head, place + 1))
    return loops


def _branch_distance(word: int, arch: str) -> int:
    """Bytes from the next instruction to the target."""
    distance = word >> 34 & (1 << 48) - 1
    distance -= distance >> 47 << 48
    number = re.search(r"\d+", arch)
    if number is not None and int(number[0]) >= 90:
        distance = distance << 8 | word >> 16 & 0xFF
    return 4 * distance


def _waits(words: Sequence[int]) -> float:
    """Cycles that one turn of a loop waits for the register file."""
    kept: dict[int, int] = {}
    drained = [0] * _BANKS
    time = start = 0
    for turn in range(_FIRST_TURNS + _TURNS):
        start = time if turn == _FIRST_TURNS else start
        for word in words:
            sources = {place: word >> place & 0xFF for place in _places(word)}
            read = {
                register
                for place, register in sources.items()
                if kept.get(place) != register and register != _ZERO_REGISTER
            }
            for bank in {register % _BANKS for register in read}:
                time = max(time, drained[bank] - _QUEUE)
            for register in read:
                bank = register % _BANKS
                drained[bank] = max(drained[bank], time) + 1
            kept |= {
                place: register for place, register in sources.items() if word >> _REUSE[place] & 1
            }
            time += 1
    return (time - start) / _TURNS - len(words)


def _places(word: int) -> tuple[int, ...]:
    return _SOURCES.get(word & _OPCODE_MASK, ())


def _is_ffma(word: int) -> bool:
    return word & _OPCODE_MASK == _FFMA


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
