"""Counts of accesses follow the counting rules, for any addresses and any lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import ENGINE, Outcome, kernel_ptx, launch

from gemmkit.emulator.codegen.load_groups import load_groups
from gemmkit.emulator.codegen.operands import actions_of
from gemmkit.emulator.counters.rules import global_sectors, local_sectors, shared_wavefronts
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse

SIZES = {"u8": 1, "u16": 2, "u32": 4, "v2.u32": 8, "v4.u32": 16, "u64": 8}
OPERANDS = {
    "u8": "%r1",
    "u16": "%h1",
    "u32": "%r1",
    "u64": "%rd9",
    "v2.u32": "{%r1, %r2}",
    "v4.u32": "{%r1, %r2, %r3, %r4}",
}
SPACE_BYTES = 4096


def scattered(space: str, kind: str, width: str) -> str:
    """Lane i of block b accesses offset `offsets[b][i]` if that is not negative."""
    operand = OPERANDS[width]
    operands = f"{operand}, [%r9]" if kind == "ld" else f"[%r9], {operand}"
    if space == "global":
        operands = operands.replace("%r9", "%rd8")
    return kernel_ptx(
        f"""
        mov.u32 %r8, %ctaid.x;
        mad.lo.u32 %r8, %r8, 32, %tid;
        mul.wide.u32 %rd7, %r8, 4;
        add.s64 %rd7, %rd7, %rd0;
        ld.global.s32 %r9, [%rd7];
        cvt.s64.s32 %rd8, %r9;
        add.s64 %rd8, %rd8, %rd1;
        setp.ge.s32 %p1, %r9, 0;
        @%p1 {kind}.{space}.{width} {operands};
        """,
        pointers=2,
        declarations=f".shared .align 16 .b8 tile[{SPACE_BYTES}];"
        f".local .align 16 .b8 own[{SPACE_BYTES}];",
    )


def offset_rows(size: int) -> st.SearchStrategy[list[int]]:
    """Offsets of 32 lanes: strided, repeated, reversed or random, some left out."""
    last = SPACE_BYTES // size - 1
    strided = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 32)).map(
        lambda each: [each[0] + lane // each[2] * each[1] for lane in range(32)]
    )
    row = st.one_of(strided, st.lists(st.integers(0, last), min_size=32, max_size=32))
    masks = st.one_of(st.just(2**32 - 1), st.integers(0, 2**32 - 1))
    return st.tuples(row, masks).map(
        lambda each: [
            min(number, last) * size if each[1] >> lane & 1 else -1
            for lane, number in enumerate(each[0])
        ]
    )


def run(space: str, kind: str, width: str, rows: list[list[int]]) -> Outcome:
    data = np.zeros(SPACE_BYTES, np.uint8)
    table = np.array(rows, np.int32)
    return launch(ENGINE, scattered(space, kind, width), table, data, grid=len(rows))


@pytest.mark.parametrize("width", list(SIZES))
@pytest.mark.parametrize("kind", ["ld", "st"])
@pytest.mark.parametrize("space", ["global", "shared", "local"])
@pytest.mark.sample
def test_counts_follow_the_rules(space: str, kind: str, width: str) -> None:
    size = SIZES[width]

    @settings(max_examples=15)
    @given(st.lists(offset_rows(size), min_size=1, max_size=40))
    def check(rows: list[list[int]]) -> None:
        outcome = run(space, kind, width, rows)
        wanted = dict.fromkeys(("sectors", "wavefronts", "conflicts"), 0)
        for row in rows:
            active = [offset for offset in row if offset >= 0]
            if not active:
                continue
            if space == "global":
                wanted["sectors"] += global_sectors(active, size)
            elif space == "local":
                lanes = {lane: offset for lane, offset in enumerate(row) if offset >= 0}
                wanted["sectors"] += local_sectors(lanes, size)
            else:
                masks = [offset >= 0 for offset in row]
                found = shared_wavefronts(row, masks, size, kind == "st")
                wanted["wavefronts"] += found[0]
                wanted["conflicts"] += found[1]
        opcode = f"{kind}.{space}.{width}"
        assert {name: outcome.count(name, opcode) for name in wanted} == wanted
        lanes_active = sum(offset >= 0 for row in rows for offset in row)
        assert outcome.count("lanes", opcode) == lanes_active
        assert outcome.count("data_bytes", opcode) == lanes_active * size
        assert outcome.count("requests", opcode) == sum(max(row) >= 0 for row in rows)
        assert outcome.count("executed", opcode) == len(rows)

    check()


def grouped(body: str) -> list[list[str]]:
    (kernel,) = parse(kernel_ptx(body)).kernels.values()
    flow = ControlFlow.of(kernel)
    actions = actions_of(flow)
    return [
        [actions[number].instruction.text for number in group]
        for block in flow.blocks
        for group in load_groups(actions, block)
    ]


def loads(*offsets: int, base: str = "%rd0") -> list[str]:
    return [f"ld.global.f32 %f{n}, [{base}+{at}];" for n, at in enumerate(offsets)]


class TestNeighbours:
    def test_four_words_in_a_row_are_loaded_together(self) -> None:
        assert grouped("\n".join(loads(8, 0, 4, 12, 20))) == [
            [f"ld.global.f32 %f{n}, [%rd0+{at}]" for n, at in ((1, 0), (2, 4), (0, 8), (3, 12))]
        ]

    @pytest.mark.parametrize(
        "between",
        ["st.global.f32 [%rd1], %f0;", "add.s64 %rd0, %rd0, 4;", "red.global.add.u32 [%rd1], 1;"],
    )
    def test_nothing_may_change_between(self, between: str) -> None:
        first, second, third, fourth = loads(0, 4, 8, 12)
        assert grouped("\n".join([first, second, between, third, fourth])) == []

    def test_other_loads_are_left_alone(self) -> None:
        assert grouped("\n".join(loads(0, 4, 8))) == []
        assert grouped("\n".join(f"@%p1 {each}" for each in loads(0, 4, 8, 12))) == []
        volatile = [each.replace("ld.", "ld.volatile.") for each in loads(0, 4, 8, 12)]
        assert grouped("\n".join(volatile)) == []

    @pytest.mark.parametrize("words", [64, 35, 34, 33])
    def test_each_load_is_counted_and_checked_by_itself(self, words: int) -> None:
        text = kernel_ptx(
            """
            ld.global.u32 %r1, [%at+8];
            ld.global.u32 %r2, [%at];
            ld.global.u32 %r3, [%at+12];
            ld.global.u32 %r4, [%at+4];
            mad.lo.u32 %r1, %r1, 100, %r2;
            mad.lo.u32 %r3, %r3, 10000, %r4;
            add.u32 %r1, %r1, %r3;
            st.global.u32 [%at], %r1;
            """
        )
        data = np.arange(words, dtype=np.uint32)
        if words < 35:
            with pytest.raises(Exception, match=rf"kernel\.cu:{'3' if words == 34 else '1'}"):
                launch(ENGINE, text, data)
            return
        outcome = launch(ENGINE, text, data)
        i = np.arange(32)
        wanted = (i + 2) * 100 + i + (i + 3) * 10000 + i + 1
        assert outcome.arrays[0][:32].tolist() == wanted.tolist()
        body = [n for n, form in enumerate(outcome.flow.forms) if form.opcode == "ld.global.u32"]
        assert outcome.tally.sectors[body].tolist() == [5, 4, 5, 5]
