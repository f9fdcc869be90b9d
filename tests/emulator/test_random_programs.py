"""Random programs of dependent instructions: engine and oracle agree in all bits and counts."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, launch
from register_programs import interesting_words, without_payloads

from gemmkit.emulator.codegen import compile as compiling
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics import OPERATIONS, reads_carry, writes_carry
from gemmkit.emulator.isa.table import table

# Registers of each pool; a pool holds values of one kind, so that the bits of a NaN, which PTX
# leaves undefined, never occur in a number of another kind.
POOL_SIZE = 4
POOLS = {
    **dict.fromkeys(("pred",), "pred"),
    **dict.fromkeys(("b8", "u8", "s8", "b16", "u16", "s16"), "b16"),
    **dict.fromkeys(("b32", "u32", "s32"), "b32"),
    **dict.fromkeys(("b64", "u64", "s64"), "b64"),
    **{each: each for each in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")},
}
WORDS = 8  # operands that a program starts with, for each lane
# The sign of a NaN is also undefined.
LEFT_OUT = {"copy_sign"}


@cache
def forms_by_operation() -> dict[str, list[Form]]:
    found: defaultdict[str, list[Form]] = defaultdict(list)
    for form in table().values():
        carries = reads_carry(form) or writes_carry(form)
        if form.operation in OPERATIONS and form.operation not in LEFT_OUT and not carries:
            found[form.operation].append(form)
    return dict(found)


def pool_type(pool: str) -> str:
    return {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64"}.get(
        pool, "b32" if pool.endswith("x2") else pool
    )


@st.composite
def instructions(draw: st.DrawFn) -> str:
    form = draw(st.sampled_from(draw(st.sampled_from(list(forms_by_operation().values())))))

    operands = []
    for spec in form.operands:
        if spec.role == "immediate":
            operands.append(str(draw(st.integers(0, 255))))
            continue
        pool, number = POOLS[spec.type.name], draw(st.integers(0, POOL_SIZE - 1))
        name = f"%{pool}_{number}"
        if spec.role == "source" and pool in ("b32", "b64") and draw(st.integers(0, 5)) == 0:
            name = str(draw(st.sampled_from([0, 1, -1, 7, 31, 32, 255, 0x7FFFFFFF])))
        if spec.role == "dest" and spec.pair and draw(st.booleans()):
            name += f"|%pred_{(number + 1) % POOL_SIZE}"
        operands.append(name)
    guard = draw(st.sampled_from(["", "", "", "@", "@!"]))
    if guard:
        guard += f"%pred_{draw(st.integers(0, POOL_SIZE - 1))} "
    return f"{guard}{form.opcode} {', '.join(operands)};"


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Straight lines, with forward branches, and a loop around a part of them."""
    lines = draw(st.lists(instructions(), min_size=4, max_size=40))
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(lines))] * 2)))
    turns = draw(st.integers(1, 3))
    lines[start:end] = [
        "mov.u32 %turn, 0;",
        "AGAIN:",
        *lines[start:end],
        "add.u32 %turn, %turn, 1;",
        # Lanes leave the loop after 1, 2, 3 … turns.
        f"and.b32 %left, %t, {turns};",
        "setp.gt.u32 %more, %left, %turn;",
        "@%more bra AGAIN;",
    ]
    for number in range(draw(st.integers(0, 2))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(lines))] * 2)))
        sign = draw(st.sampled_from(["", "!"]))
        skipped = "\n".join(lines[start:end])
        breaks = "bra AGAIN" in skipped and "AGAIN:" not in skipped
        if "%turn" in skipped and not breaks:
            continue  # the loop would not end
        lines.insert(end, f"SKIP{number}:")
        lines.insert(start, f"@{sign}%pred_{number} bra SKIP{number};")
    return "\n".join(lines)


def whole(body: str) -> tuple[str, list[str]]:
    """The program with all registers loaded before and stored after it; their pools, in order."""
    pools = list(dict.fromkeys(POOLS.values()))
    declared, loads, stores, order = [], [], [], []
    for number, pool in enumerate(pools):
        kind = pool_type(pool)
        declared.append(f".reg .{kind} %{pool}_<{POOL_SIZE}>;")
        for each in range(POOL_SIZE):
            name = f"%{pool}_{each}"
            word = number * POOL_SIZE + each
            if pool == "pred":
                loads += [
                    f"ld.global.u32 %w, [%in+{256 * word}];",
                    "and.b32 %w, %w, 1;",
                    f"setp.ne.u32 {name}, %w, 0;",
                ]
                stores += [f"selp.u32 %w, 1, 0, {name};", f"st.global.u32 [%out+{256 * word}], %w;"]
            else:
                loads.append(f"ld.global.{kind} {name}, [%in+{256 * word}];")
                stores.append(f"st.global.{kind} [%out+{256 * word}], {name};")
            order.append(pool)
    text = "\n".join([*loads, body, *stores])
    return (
        f"""
.version 8.5
.target sm_100
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1)
{{
    .reg .b64 %in, %out, %lane8;
    .reg .b32 %w, %t, %turn, %left;
    .reg .pred %more;
    {" ".join(declared)}
    ld.param.u64 %out, [p0];
    ld.param.u64 %in, [p1];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %lane8, %t, 8;
    add.s64 %in, %in, %lane8;
    add.s64 %out, %out, %lane8;
    {text}
    ret;
}}
""",
        order,
    )


# No shrinking: each smaller example would be compiled too.
@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])
@given(programs(), st.integers(0, 2**32 - 1), st.sampled_from([32, 32, 23]), st.booleans())
def test_engine_and_oracle_agree(body: str, seed: int, threads: int, compact: bool) -> None:
    """Some programs twice, as compact as large ones are: both times by the same functions."""
    text, pools = whole(f"{{ {body} }}\n{{ {body} }}" if compact else body)
    words = interesting_words(len(pools) * 32, np.random.default_rng(seed)).reshape(-1, 32)
    with pytest.MonkeyPatch.context() as patch:
        if compact:
            patch.setattr(compiling, "COMBINED_INSTRUCTIONS", 0)
        results = [
            launch(executor, text, np.zeros_like(words), words, block=threads)
            for executor in (ENGINE, ORACLE)
        ]
    engine, oracle = (each.arrays[0] for each in results)
    for number, pool in enumerate(pools):
        pair = [without_payloads(each[number], pool) for each in (engine, oracle)]
        assert np.array_equal(*pair), (pool, number % POOL_SIZE)
    assert results[0].tally.differences(results[1].tally) == {}
