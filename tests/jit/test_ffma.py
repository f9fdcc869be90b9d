"""Multiply-adds read from the cubin: by hand, and against NVIDIA's disassembler."""

from __future__ import annotations

import re

import pytest

from gemmkit.gpu import find_board
from gemmkit.jit import ffma
from gemmkit.jit.compiler import compile_plan
from gemmkit.jit.ffma import MultiplyAdds, multiply_adds
from gemmkit.jit.sass import disassemble, disassembler
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("H100")
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\d+ )?(\S+) ?(.*?) *;")
_REGISTERS = re.compile(r"R\d+, (R\d+|RZ)(\.reuse)?, (R\d+|RZ)(\.reuse)?, (R\d+|RZ)(\.reuse)?$")


def word(a: int, b: int, c: int, reuse: int = 0) -> int:
    return 0x223 | a << 24 | b << 32 | c << 64 | reuse << 122


def seen_in(monkeypatch, *words: int, arch: str = "sm_80") -> MultiplyAdds:
    monkeypatch.setattr(
        ffma, "_code", lambda *_: b"".join(each.to_bytes(16, "little") for each in words)
    )
    seen = multiply_adds(b"", "", arch)
    assert seen is not None
    return seen


# Cycles that an H100 took for each FFMA of a loop of these, registers by operand.
MEASURED = {
    "one register": ([(8, 8, 8)], 1.0),
    "three of a bank": ([(4, 6, 8)], 3.0),
    "three of a bank, four apart": ([(4, 8, 12)], 3.0),
    "two of a bank": ([(4, 6, 9)], 2.0),
    "one register twice": ([(4, 4, 6)], 2.0),
    "one kept": ([(4, 6, 9, 1)], 1.0),
    "one of three kept": ([(4, 6, 8, 1)], 2.0),
    "two of three kept": ([(4, 6, 8, 3)], 1.0),
    "kept at another place": ([(4, 6, 9, 3), (6, 4, 9, 3)], 2.0),
    "kept behind another register": ([(4, 6, 9, 1), (11, 8, 255)], 1.0),
    "two banks in turn": ([(4, 6, 9), (5, 5, 5)], 1.0),
    "more of each": ([(4, 6, 9), (5, 7, 8)], 1.5),
    "three hidden behind three": ([(4, 6, 8), (5, 5, 5), (5, 5, 5), (5, 5, 5)], 1.0),
    "three hidden behind one": ([(4, 6, 8), (5, 5, 5)], 1.5),
    "one of four": ([(4, 6, 9), (4, 7, 7), (4, 7, 7), (4, 7, 7)], 1.25),
    "no register": ([(4, 6, 9), (255, 255, 255)], 1.0),
}


@pytest.mark.parametrize("name", MEASURED)
def test_as_measured_on_an_h100(monkeypatch, name):
    sources, cycles = MEASURED[name]
    found = seen_in(monkeypatch, *[word(*each) for each in sources] * 16)
    assert found.issue_cycles == pytest.approx(cycles, abs=0.03)


def test_a_move_reads_a_bank_too(monkeypatch):
    move = 0x202 | 10 << 32
    found = seen_in(monkeypatch, *[word(4, 6, 9), move] * 16)
    # Two instructions take three cycles, of which one is the move's own.
    assert found.issue_cycles == pytest.approx(2.0, abs=0.07)


@pytest.mark.parametrize(("arch", "shift"), [("sm_80", 0), ("sm_90a", 8)])
def test_the_loop_with_most_counts(monkeypatch, arch, shift):
    """A loop of three FFMAs within one that has one more, behind a loop of a single one."""

    def back(count: int) -> int:
        distance = -4 * count
        if shift:
            return 0x947 | (distance & 0xFF) << 16 | ((distance >> 8) % (1 << 48)) << 34
        return 0x947 | distance % (1 << 48) << 34

    one, load = word(0, 1, 2), 0x984
    inner = [one, load, one, one, back(5)]
    code = [one, back(2), one, load, *inner, back(8), one, one]
    found = seen_in(monkeypatch, *code, arch=arch)
    assert (found.total, found.count, found.shared_loads) == (7, 3, 1)
    assert list(found.loop) == inner
    assert [each & 0xFFF for each in found.around] == [0x223, 0x984, 0x947]


def test_every_innermost_loop_is_seen_with_its_own_waits(monkeypatch):
    def back(instructions: int) -> int:
        return 0x947 | (-4 * (instructions + 1) & (1 << 48) - 1) << 34

    free, held = [word(5, 5, 5)] * 2, [word(4, 6, 8)] * 3
    found = seen_in(monkeypatch, *free, back(2), *held, back(3))
    assert [(loop.count, len(loop.words)) for loop in found.loops] == [(2, 3), (3, 4)]
    assert found.loops[0].waits == 0
    assert found.loops[1].waits > 4
    assert (found.count, found.loop) == (3, found.loops[1].words)


def test_the_code_around_a_loop_is_without_other_loops(monkeypatch):
    def back(instructions: int) -> int:
        return 0x947 | (-4 * (instructions + 1) & (1 << 48) - 1) << 34

    one, load, store = word(0, 1, 2), 0x981, 0x388
    found = seen_in(
        monkeypatch, load, *[one] * 3, back(3), store, *[one] * 2, back(2), load, back(10)
    )
    assert [loop.count for loop in found.loops] == [3, 2]
    assert [each & 0xFFF for each in found.around] == [0x981, 0x388, 0x981, 0x947]


def test_no_multiply_adds_take_one_cycle_each():
    assert MultiplyAdds(0, 0, 0, 0).issue_cycles == 1.0


@pytest.mark.parametrize("cubin", [b"", b"no cubin", b"\x7fELF" + bytes(60)])
def test_bytes_that_are_no_cubin_have_none(cubin):
    assert multiply_adds(cubin, "naive", "sm_90a") is None


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90a", "sm_120a"])
@pytest.mark.sample(2)
def test_against_the_disassembler(arch):
    if disassembler() is None:
        pytest.skip("needs nvdisasm")
    kernel = find_kernel("coarsening_1d")
    plan = kernel.plan(GemmProblem(64, 64, 64), kernel.default, H100)
    binary = compile_plan(plan, arch)
    opcodes = [line for line in map(_LINE.search, disassemble(binary.cubin).splitlines()) if line]
    adds = sum(each[1] == "FFMA" and _REGISTERS.match(each[2]) is not None for each in opcodes)
    loads = sum(each[1].startswith("LDS") for each in opcodes)
    found = multiply_adds(binary.cubin, binary.entry, arch)
    assert found is not None
    assert found.total == adds >= 128
    # All shared loads are in the loop that multiplies.
    assert found.shared_loads == loads > 0
    assert found.count <= found.cycles <= 3 * found.count
