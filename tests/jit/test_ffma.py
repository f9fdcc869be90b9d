"""Multiply-adds read from the cubin: by hand, and against NVIDIA's disassembler."""

from __future__ import annotations

import re

import pytest

from gemmkit.gpu import find_board
from gemmkit.jit import ffma
from gemmkit.jit.compiler import compile_plan
from gemmkit.jit.ffma import MultiplyAdds, multiply_adds
from gemmkit.jit.sass import disassemble, disassembler
from gemmkit.kernels.ladder import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("H100")
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\d+ )?(\S+) ?(.*?) *;")
_REGISTERS = re.compile(r"R\d+, (R\d+|RZ)(\.reuse)?, (R\d+|RZ)(\.reuse)?, (R\d+|RZ)(\.reuse)?$")


def word(a: int, b: int, c: int, reuse: int = 0) -> int:
    return 0x223 | a << 24 | b << 32 | c << 64 | reuse << 122


def cycles_of(monkeypatch, *words: int) -> MultiplyAdds:
    monkeypatch.setattr(
        ffma, "_code", lambda *_: b"".join(each.to_bytes(16, "little") for each in words)
    )
    seen = multiply_adds(b"", "")
    assert seen is not None
    return seen


@pytest.mark.parametrize(
    ("sources", "cycles"),
    [((0, 1, 2), 2), ((0, 2, 4), 3), ((1, 2, 1), 1), ((0, 0, 0), 1), ((255, 1, 3), 2)],
)
def test_one_takes_as_long_as_its_fullest_bank(monkeypatch, sources, cycles):
    assert cycles_of(monkeypatch, word(*sources)) == MultiplyAdds(1, cycles)


def test_a_kept_operand_costs_nothing_the_next_time(monkeypatch):
    # The first keeps its first source; the second then reads one register of each bank.
    assert cycles_of(monkeypatch, word(0, 2, 1, reuse=1), word(0, 4, 3)) == MultiplyAdds(2, 3)
    # In another place, or after another instruction, it is read again.
    assert cycles_of(monkeypatch, word(0, 2, 1, reuse=2), word(0, 4, 3)) == MultiplyAdds(2, 4)
    moved = cycles_of(monkeypatch, word(0, 2, 1, reuse=1), 0x202, word(0, 4, 3))
    assert moved == MultiplyAdds(2, 4)


def test_no_multiply_adds_take_one_cycle_each():
    assert MultiplyAdds(0, 0).issue_cycles == 1.0


@pytest.mark.parametrize("cubin", [b"", b"no cubin", b"\x7fELF" + bytes(60)])
def test_bytes_that_are_no_cubin_have_none(cubin):
    assert multiply_adds(cubin, "naive") is None


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90a", "sm_120a"])
def test_against_the_disassembler(arch):
    if disassembler() is None:
        pytest.skip("needs nvdisasm")
    kernel = find_kernel("coarsening_1d")
    plan = kernel.plan(GemmProblem(64, 64, 64), kernel.default, H100)
    binary = compile_plan(plan, arch)
    count = cycles = 0
    kept: dict[int, str] = {}
    for line in disassemble(binary.cubin).splitlines():
        found = _LINE.search(line)
        if found is None:
            continue
        registers = _REGISTERS.match(found[2]) if found[1] == "FFMA" else None
        if registers is None:
            kept = {}
            continue
        sources = registers.group(1, 3, 5)
        read = {name for place, name in enumerate(sources) if kept.get(place) != name} - {"RZ"}
        odd = sum(int(name[1:]) % 2 for name in read)
        count += 1
        cycles += max(1, odd, len(read) - odd)
        flags = registers.group(2, 4, 6)
        kept = {place: name for place, name in enumerate(sources) if flags[place]}
    assert multiply_adds(binary.cubin, binary.entry) == MultiplyAdds(count, cycles)
    assert count >= 128
