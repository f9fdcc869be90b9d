"""PTX programs made of register forms: operands from memory, results to memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics import reads_carry, writes_carry
from gemmkit.emulator.isa.types import PtxType

LANES = 32
SLOTS = 4
FLOATS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11, "f16x2": 5, "bf16x2": 8}


def interesting_words(count: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """64-bit words that are often special values of any type they are cut to."""
    random = rng.integers(0, 2**64, count, np.uint64, endpoint=False)
    ends = np.array([0, 1, 2, 31, 32, 63, 64, 127, 128, 255, 2**64 - 1, 2**63], np.uint64)
    halves = [0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x7BFF]
    halves += [0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x0080, 0x007F, 0x7F7F]
    singles = [0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x00000001, 0x807FFFFF]
    singles += [0x00800000, 0x7F7FFFFF, 0x4F000000, 0xCF000000, 0x5F000000, 0x4B800001]
    doubles = [0x3FF << 52, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 1, 1 << 52, (0x7FF << 52) - 1]
    doubles += [0x43E << 52, 0xC3E << 52, 0x41E << 52, 0x36A << 52 | 1, 0x8000000000000001]
    pairs = rng.choice(np.array(halves, np.uint64), (count, 4))
    quads = (pairs << np.array([0, 16, 32, 48], np.uint64)).sum(axis=1, dtype=np.uint64)
    twos = rng.choice(np.array(singles, np.uint64), (count, 2))
    near = rng.integers(0x3E000000, 0x41000000, count, np.uint64)
    close = rng.integers(0x3FE << 52, 0x402 << 52, count, np.uint64)
    kinds = [
        random,
        rng.choice(ends, count),
        quads,
        twos[:, 0] << np.uint64(32) | twos[:, 1],
        rng.choice(np.array(doubles, np.uint64), count),
        near << np.uint64(32) | near[::-1],
        close,
    ]
    return np.choose(rng.integers(0, len(kinds), count), kinds)


def register_type(of: PtxType) -> str:
    """The type of a register that holds values of a type."""
    return "pred" if of.bits == 1 else f"b{max(of.bits, 16)}"


def sources_of(form: Form) -> list[PtxType]:
    return [spec.type for spec in form.operands if spec.role == "source" and spec.type]


def dests_of(form: Form) -> list[PtxType]:
    return [spec.type for spec in form.operands if spec.role == "dest" and spec.type]


def cut(words: NDArray[np.uint64], of: PtxType) -> NDArray[np.generic]:
    """Raw bits of a type from 64-bit words."""
    return words % 2 == 1 if of.bits == 1 else words.astype(f"u{of.bytes}")


def program(forms: Sequence[Form], *, truth: int = 0xE4) -> str:
    """One instruction per form, each on its own operands.

    Of the inputs p1, word [form][slot][lane] is the operand (the carry is the last slot); of the
    outputs p0, words [form][0][lane] and [form][1][lane] are its results.
    """
    lines, declared = [], []
    for number, form in enumerate(forms):
        names = []
        for slot, of in enumerate(sources_of(form)):
            name = f"%s{number}_{slot}"
            declared.append(f".reg .{register_type(of)} {name};")
            lines += _load(name, of, number * SLOTS + slot)
            names.append(name)
        if reads_carry(form):
            lines += _load_carry(number * SLOTS + SLOTS - 1)
        results = []
        for place, of in enumerate(dests_of(form)):
            results.append(f"%d{number}_{place}")
            declared.append(f".reg .{register_type(of)} {results[-1]};")
        if form.operands[0].pair:
            results.append(f"%d{number}_q")
            declared.append(f".reg .pred {results[-1]};")
        immediates = [f"{truth:#x}" for spec in form.operands if spec.role == "immediate"]
        operands = ", ".join(["|".join(results), *names, *immediates])
        lines.append(f"{form.opcode} {operands};")
        kinds = [*dests_of(form), *([None] if form.operands[0].pair else [])]
        for place, (name, of) in enumerate(zip(results, kinds, strict=True)):
            lines += _store(name, of, number * 2 + place)
        if writes_carry(form):
            lines += ["addc.u32 %w, 0, 0;", f"st.global.u32 [%out+{256 * (number * 2 + 1)}], %w;"]
    body = "\n".join(lines)
    return f"""
.version 8.5
.target sm_100
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1)
{{
    .reg .b64 %in, %out, %lane8;
    .reg .b32 %w, %t;
    .reg .b16 %b;
    {" ".join(declared)}
    ld.param.u64 %out, [p0];
    ld.param.u64 %in, [p1];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %lane8, %t, 8;
    add.s64 %in, %in, %lane8;
    add.s64 %out, %out, %lane8;
    {body}
    ret;
}}
"""


def _load(name: str, of: PtxType, word: int) -> list[str]:
    where = f"[%in+{256 * word}]"
    if of.bits == 1:
        return [
            f"ld.global.u16 %b, {where};",
            "and.b16 %b, %b, 1;",
            f"setp.ne.u16 {name}, %b, 0;",
        ]
    return [f"ld.global.b{max(of.bits, 16)} {name}, {where};"]


def _load_carry(word: int) -> list[str]:
    """1 + 0xFFFFFFFF carries."""
    return [
        f"ld.global.u32 %w, [%in+{256 * word}];",
        "and.b32 %w, %w, 1;",
        "add.cc.u32 %w, %w, 0xFFFFFFFF;",
    ]


def _store(name: str, of: PtxType | None, word: int) -> list[str]:
    where = f"[%out+{256 * word}]"
    if of is None or of.bits == 1:
        return [f"selp.u32 %w, 1, 0, {name};", f"st.global.u32 {where}, %w;"]
    return [f"st.global.b{max(of.bits, 16)} {where}, {name};"]


def without_payloads(bits: NDArray[np.uint64], of: str) -> NDArray[np.uint64]:
    """Every NaN replaced by one NaN; PTX guarantees no payload."""
    if of in ("f16x2", "bf16x2"):
        low, high = bits & np.uint64(0xFFFF), bits >> np.uint64(16) & np.uint64(0xFFFF)
        single = of.removesuffix("x2")
        return without_payloads(low, single) | without_payloads(high, single) << np.uint64(16)
    if of not in FLOATS:
        return bits
    width = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[of]
    infinity = np.uint64(((1 << FLOATS[of]) - 1) << (width - 1 - FLOATS[of]))
    magnitude = bits & np.uint64((1 << (width - 1)) - 1)
    return np.where(magnitude > infinity, np.uint64((1 << (width - 1)) - 1), bits)
