"""Undefined bits of operands propagate the same way through each register form on engine and
oracle."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from launching import kernel_ptx
from register_programs import LANES, SLOTS, interesting_words, program

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.isa.definedness import Flow, flow_of
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics import OPERATIONS
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse
from gemmkit.emulator.sanitizer.undefined import UndefinedUses, Use

_STORE = re.compile(r"st\.global\.[bu](16|32|64) \[%out\+(\d+)\], (\S+);")
# By instruction, operand and warp, the lanes in which undefined bits are used.
Uses = dict[tuple[int, int, int], int]
# Forms of each operation in which any undefined bit makes the whole result undefined, and others.
WHOLE, OTHERS = 1, 5


def sample() -> list[Form]:
    """Some forms of each operation."""
    found: defaultdict[tuple[str, Flow], list[Form]] = defaultdict(list)
    for form in table().values():
        if form.operation in OPERATIONS and form.operation != "move":
            found[form.operation, flow_of(form)].append(form)
    sample = []
    for (_, flow), forms in found.items():
        wanted = WHOLE if flow.kind == "whole" else OTHERS
        sample += forms[:: -(-len(forms) // wanted)]
    return sample


def by_bytes(store: re.Match[str]) -> str:
    """A store, one byte at a time: each shows whether its own bits are defined."""
    bits, start, name = int(store[1]), int(store[2]), store[3]
    lines = []
    for byte in range(bits // 8):
        lines += [
            f"shr.b{bits} %x{bits}, {name}, {8 * byte};",
            f"st.global.u8 [%out+{start + byte}], %x{bits};",
        ]
    return "\n".join(lines)


def text_of(forms: list[Form]) -> str:
    text = _STORE.sub(by_bytes, program(forms))
    return text.replace(".reg .b16 %b;", ".reg .b16 %b, %x16; .reg .b32 %x32; .reg .b64 %x64;")


def prepared(forms: list[Form]) -> tuple[DeviceMemory, LaunchRequest]:
    """Operands of which some bytes were never written."""
    rng = np.random.default_rng(len(forms))
    words = interesting_words(len(forms) * SLOTS * LANES, rng)
    memory = DeviceMemory()
    out = memory.allocate(len(forms) * 2 * LANES * 8)
    inputs = memory.allocate(words.nbytes, "in", initialized=False)
    memory.view(inputs.address, inputs.nbytes)[:] = words.view(np.uint8)
    written = memory.written(inputs.address)
    assert written is not None
    written[: words.nbytes] = rng.random(words.nbytes) < 0.8
    packed = out.address.to_bytes(8, "little") + inputs.address.to_bytes(8, "little")
    return memory, LaunchRequest((1, 1, 1), (LANES, 1, 1), packed)


def uses_of(text: str, prepare: Callable[[], tuple[DeviceMemory, LaunchRequest]]) -> Uses:
    """The engine's uses of undefined bits in a kernel; the oracle must find the same."""
    uses: Uses = defaultdict(int)

    def note(_: UndefinedUses, use: Use) -> None:
        uses[use.number, use.operand, use.warp] |= use.lanes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UndefinedUses, "use", note)
        memory, request = prepare()
        load(text, "k", sanitize=True).run(request, memory, threads=1, sanitize=True)
        engine = dict(uses)
        uses.clear()
        memory, request = prepare()
        flow = ControlFlow.of(parse(text).kernels["k"])
        oracle.run(flow, request, memory, track=True)
    for key in engine.keys() | uses.keys():
        one, two = engine.get(key, 0), uses.get(key, 0)
        assert one == two, f"{flow.kernel.body[key[0]].text}: {one:#x} by the engine, {two:#x}"
    return engine


def test_every_kind_of_form() -> None:
    forms = sample()
    assert len(uses_of(text_of(forms), lambda: prepared(forms))) > 2 * len(forms)


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """Arbitrary branches, under which some lanes set and combine registers that others do not."""
    count = draw(st.integers(2, 5))
    targets = [f"B{n}" for n in range(count)] + ["END"]
    lines = []
    for number in range(count):
        lines += [
            f"B{number}:",
            f"mad.lo.u32 %r1, %r1, 1664525, {1013904223 + number};",
            "add.u32 %r2, %r2, 1;",
            "setp.ge.u32 %p1, %r2, 12;",
            "@%p1 bra END;",
        ]
        for _ in range(draw(st.integers(1, 3))):
            lines += [
                f"shr.u32 %r3, %r1, {draw(st.integers(20, 31))};",
                "and.b32 %r3, %r3, 1;",
                "setp.ne.u32 %p2, %r3, 0;",
            ]
            one, two, three = (draw(st.sampled_from(["%r4", "%r5", "%r6"])) for _ in range(3))
            what = [
                f"bra {draw(st.sampled_from(targets))};",
                f"mov.u32 {one}, %r1;",
                f"add.u32 {one}, {two}, %r2;",
                f"xor.b32 {one}, {two}, {three};",
                f"setp.lt.u32 %p3, {two}, %r1;",
                f"selp.b32 {one}, {two}, {three}, %p3;",
                f"and.b32 {one}, {two}, 0xFF;",
                f"st.shared.u32 [%r7], {one};",
                f"ld.shared.u32 {one}, [%r7];",
                f"shfl.sync.bfly.b32 {one}, {two}, 1, 31, -1;",
            ]
            guard = draw(st.sampled_from(["@%p2 ", "@!%p2 ", "@%p2 ", "@%p3 "]))
            lines.append(guard + draw(st.sampled_from(what)))
    return "\n".join(lines)


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(graphs(), st.integers(0, 2**32 - 1))
def test_paths_of_lanes(body: str, seed: int) -> None:
    text = kernel_ptx(
        f"""
        ld.global.u32 %r1, [%at];
        mov.u32 %r2, 0;
        shl.b32 %r7, %tid, 2;
        {body}
        END:
        st.global.u32 [%at], %r4;
        st.global.u32 [%at], %r5;
        st.global.u32 [%at], %r6;
        """,
        declarations=".shared .align 4 .b8 own[256];",
    )
    states = np.random.default_rng(seed).integers(0, 5, 64).astype(np.uint32) * np.uint32(seed | 1)

    def prepare() -> tuple[DeviceMemory, LaunchRequest]:
        memory = DeviceMemory()
        held = memory.allocate(states.nbytes)
        memory.view(held.address, held.nbytes)[:] = states.view(np.uint8)
        return memory, LaunchRequest((1, 1, 1), (64, 1, 1), held.address.to_bytes(8, "little"))

    uses_of(text, prepare)
