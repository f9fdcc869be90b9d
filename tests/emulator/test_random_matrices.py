"""Random programs that move matrices: engine and oracle agree bit for bit and count for count."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, kernel_ptx, launch
from test_undefined_bits import uses_of

from gemmkit.emulator import DeviceMemory, LaunchRequest
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.fragment_products import products
from gemmkit.emulator.isa.matrix_access import is_fragment, is_matrix, sizes
from gemmkit.emulator.isa.table import form_of, table
from gemmkit.emulator.isa.types import TYPES

# Registers of each width, and bytes of the tile in shared memory and of the array.
WORDS, WIDE, TILE = 24, 4, 16384
# Registers for products, which no other instruction reads: all numbers stay finite in every format,
# since every byte of the others is small.
SUMS = 8
SMALL = np.uint64(0x3F3F3F3F3F3F3F3F)


def is_product(form: Form) -> bool:
    """Whether this is a product whose `mma.sync` are in the table."""
    return form.operation == "multiply_fragments" and all(
        form_of(each.opcode) is not None for each in products(form)
    )


@cache
def forms() -> list[list[Form]]:
    """Loads, stores, transpositions and products, by kind."""
    found: dict[str, list[Form]] = {}
    for form in table().values():
        if is_matrix(form):
            found.setdefault(f"{form.operation} {is_fragment(form)}", []).append(form)
        elif form.operation == "transpose_matrix" or is_product(form):
            found.setdefault(form.operation, []).append(form)
    return list(found.values())


@st.composite
def instructions(draw: st.DrawFn) -> str:
    form = draw(st.sampled_from(draw(st.sampled_from(forms()))))
    operands = []
    for spec in form.operands:
        if spec.role == "address":
            operands.append(draw(addresses(form)))
            continue
        if spec.optional:
            operands.append(draw(strides(form)))
            continue
        wide = spec.type.bits == 64
        name, size = ("%y", WIDE) if wide else ("%x", WORDS)
        if form.operation == "multiply_fragments" and spec.role == "dest":
            name, size = ("%v", 2) if wide else ("%z", SUMS)
        first = draw(st.integers(0, size - spec.count))
        each = [f"{name}{number}" for number in range(first, first + spec.count)]
        bare = form.operation == "transpose_matrix"
        operands.append(each[0] if bare else f"{{{', '.join(each)}}}")
    return f"{form.opcode} {', '.join(each for each in operands if each)};"


@st.composite
def addresses(draw: st.DrawFn, form: Form) -> str:
    """Rows at the lanes' random offsets, or the start of a matrix that lies within the tile."""
    start = 32 * draw(st.integers(0, 15))
    if not is_fragment(form):
        return f"[%row{draw(st.integers(0, 1))}+{start}]"
    space = {"": "%ge", "global": "%gl"}.get(form["S"], "%sh")
    return f"[{space}+{start}]"


@st.composite
def strides(draw: st.DrawFn, form: Form) -> str:
    """A stride with which the last line is still in the tile, or none."""
    lines = max(sizes(form["G"]))
    nbytes = TYPES[form["T"]].bytes
    most = (TILE - 512 - 32 * nbytes) // (lines * nbytes) // 16
    chosen = draw(st.integers(0, min(most, 6)))
    if not chosen:
        return ""
    return draw(st.sampled_from([str(16 * chosen), f"%stride{min(chosen, 4)}"]))


def whole(body: str) -> str:
    """The program with registers and shared memory loaded before, and stored after it."""
    names = [f"%x{n}" for n in range(WORDS)]
    loads = [f"ld.global.b32 {name}, [%in+{256 * n}];" for n, name in enumerate(names)]
    loads += [f"ld.global.b64 %y{n}, [%in+{256 * (WORDS + n)}];" for n in range(WIDE)]
    stores = [f"st.global.b32 [%out+{256 * n}], {name};" for n, name in enumerate(names)]
    stores += [f"st.global.b64 [%out+{256 * (WORDS + n)}], %y{n};" for n in range(WIDE)]
    at = WORDS + WIDE + 2
    stores += [f"st.global.b32 [%out+{256 * (at + n)}], %z{n};" for n in range(SUMS)]
    stores += [f"st.global.b64 [%out+{256 * (at + SUMS + n)}], %v{n};" for n in range(2)]
    for number in (0, 1):
        loads += [
            f"ld.global.u32 %n, [%in+{256 * (WORDS + WIDE + number)}];",
            f"and.b32 %n, %n, 0x3ff0; shr.u32 %n, %n, 1; and.b32 %n, %n, 0x1ff0;"
            f" add.u32 %row{number}, %sh, %n;",
        ]
    copy = f"""
        mov.u32 %n, 0; shl.b32 %to, %tid, 3; add.u32 %to, %to, %sh; mov.u64 %from, %fill;
        {{0}}:
        {{1}}
        add.s64 %from, %from, 256; add.u32 %to, %to, 256; add.u32 %n, %n, 1;
        setp.lt.u32 %p1, %n, {TILE // 256};
        @%p1 bra {{0}};
        bar.warp.sync -1;
    """
    there = "ld.global.b64 %w, [%from]; st.shared.b64 [%to], %w;"
    back = "ld.shared.b64 %w, [%to]; st.global.b64 [%from], %w;"
    strides = "\n".join(f"mov.u32 %stride{n}, {16 * n};" for n in range(1, 5))
    return kernel_ptx(
        "\n".join([
            "mul.wide.u32 %lane, %tid, 8; add.s64 %out, %rd0, %lane; add.s64 %in, %rd1, %lane;",
            "add.s64 %fill, %rd2, %lane; mov.u64 %gl, %rd3;",
            "mov.u32 %sh, tile; mov.u64 %ge, tile; cvta.shared.u64 %ge, %ge;",
            strides,
            copy.format("COPY", there),
            *loads,
            body,
            *stores,
            "bar.warp.sync -1;",
            copy.format("BACK", back),
        ]),
        pointers=4,
        declarations=f".reg .b32 %x<{WORDS}>, %n, %to, %sh, %row<2>, %stride<5>;"
        f".reg .b32 %z<{SUMS}>; .reg .b64 %v<2>, %y<{WIDE}>, %lane, %out, %in, %fill, %from;"
        f".reg .b64 %gl, %ge, %w;"
        f".shared .align 128 .b8 tile[{TILE}];",
        target="sm_90",
    )  # fmt: skip


# No shrinking: each smaller example would be compiled too.
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(st.lists(instructions(), min_size=2, max_size=12), st.integers(0, 2**32 - 1))
def test_engine_and_oracle_agree(body: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = WORDS + WIDE + 2 + SUMS + 2
    words, fill, array = (
        rng.integers(0, 2**64, shape, np.uint64) & SMALL
        for shape in ((rows, 32), TILE // 8, TILE // 8)
    )
    text = whole("\n".join(body))
    results = [
        launch(executor, text, np.zeros_like(words), words, fill, array)
        for executor in (ENGINE, ORACLE)
    ]
    for engine, oracle in zip(results[0].arrays, results[1].arrays, strict=True):
        assert np.array_equal(engine, oracle)
    assert results[0].tally.differences(results[1].tally) == {}


@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])
@given(st.lists(instructions(), min_size=2, max_size=8), st.integers(0, 2**32 - 1))
def test_undefined_bits_move_alike(body: list[str], seed: int) -> None:
    """The addresses of rows are defined; some of all else was never written."""
    text = whole("\n".join(body))
    shapes = (WORDS + WIDE + 2 + SUMS + 2) * 32, TILE // 8, TILE // 8

    def prepare() -> tuple[DeviceMemory, LaunchRequest]:
        rng, memory, packed = np.random.default_rng(seed), DeviceMemory(), b""
        for number, count in enumerate((shapes[0], *shapes)):
            words = rng.integers(0, 2**64, count, np.uint64) & SMALL
            if number == 1:  # rows that do not overlap: lanes that store to one place race
                for register in (0, 1):
                    start = 32 * (WORDS + WIDE + register)
                    words[start : start + 32] = 32 * rng.permutation(512)[:32]
            held = memory.allocate(words.nbytes, f"p{number}", initialized=number == 0)
            memory.view(held.address, held.nbytes)[:] = words.view(np.uint8)
            written = memory.written(held.address)
            if written is not None:
                # Whole words: shared memory is tracked in granules.
                chosen = rng.random(count) < 0.95
                chosen[32 * (WORDS + WIDE) :] |= number == 1
                written[: words.nbytes] = np.repeat(chosen, 8)
            packed += held.address.to_bytes(8, "little")
        return memory, LaunchRequest((1, 1, 1), (32, 1, 1), packed)

    assert uses_of(text, prepare)
