"""`wmma` on every executor: what the registers of fragments hold, and products."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.fragment_products import products
from gemmkit.emulator.isa.matrix_access import sizes
from gemmkit.emulator.isa.table import form_of, table
from gemmkit.emulator.isa.types import TYPES
from gemmkit.errors import UnsupportedInstruction

SPACES = ("", "global", "shared")
# In elements: the widest matrix and some more, a multiple of 16 bytes for every type.
STRIDE = 48
# The largest matrix has 32 rows of 4-byte elements.
BYTES = 32 * STRIDE * 4
GROUP, QUAD = np.divmod(np.arange(32), 4)


def forms_of(operation: str, space: str) -> list[Form]:
    """A third of the forms, each with one space: what a form accesses and how a space is accessed
    do not depend on each other, and each type of fragment meets each space. Types of few forms are
    tested with each space."""
    found: dict[tuple[str, ...], list[Form]] = {}
    for form in table().values():
        if form.opcode.startswith("wmma") and form.operation == operation:
            found.setdefault(tuple(form[each] for each in "FTLG"), []).append(form)
    chosen = []
    of_type = Counter(key[:2] for key in found)
    for number, (key, forms) in enumerate(sorted(found.items())):
        here = [form for form in forms if form["S"] == space]
        rare = of_type[key[:2]] < len(SPACES)
        if rare or number % len(SPACES) == SPACES.index(space):
            # `.shared` and `.shared::cta` in turn.
            chosen.append(here[number // len(SPACES) % len(here)])
    return chosen


def held(form: Form, matrix: np.ndarray) -> np.ndarray:
    """The registers of a fragment (registers, lanes): those of `mma.sync`, as the PTX manual has
    them, for each part of the matrix that an instruction takes."""
    _, _, k = sizes(form["G"])
    which, bits = form["F"].replace("d", "c"), TYPES[form["T"]].bits
    if form["G"] == "m8n32k16":  # the transpose is computed
        matrix, which = matrix.T, {"a": "b", "b": "a", "c": "c"}[which]
    pair = max(32 // bits, 1)
    steps = [start + pair * QUAD + each for start in range(0, k, 4 * pair) for each in range(pair)]
    halves = range(0, min(matrix.shape[0], 16), 8)
    if which == "a":
        height, width = len(halves) * 8, k
        places = [
            (GROUP + half, step)
            for start in range(0, len(steps), pair)
            for half in halves
            for step in steps[start : start + pair]
        ]
    elif which == "b":
        height, width = k, 8
        places = [(step, GROUP) for step in steps]
    else:
        height, width = len(halves) * 8, 8
        places = [(GROUP + half, 2 * QUAD + odd) for half in halves for odd in (0, 1)]
    numbers = np.array(
        [
            matrix[row + rows, column + columns]
            for row in range(0, matrix.shape[0], height)
            for column in range(0, matrix.shape[1], width)
            for rows, columns in places
        ]
    )
    if bits >= 32:
        return numbers
    words = np.zeros((len(numbers) // pair, 32), np.uint32)
    for each in range(pair):
        words |= numbers[each::pair].astype(np.uint32) << np.uint32(bits * each)
    return np.concatenate([words] * (count_of(form) // len(words)))


def matrix_in(memory: np.ndarray, form: Form) -> np.ndarray:
    """The matrix at the start of memory, as raw numbers."""
    m, n, k = sizes(form["G"])
    rows, columns = {"a": (m, k), "b": (k, n)}.get(form["F"], (m, n))
    if form["L"] == "col":
        rows, columns = columns, rows
    numbers = memory.view(f"u{TYPES[form['T']].bytes}")
    found = np.stack([numbers[row * STRIDE :][:columns] for row in range(rows)])
    return found if form["L"] == "row" else found.T


def count_of(form: Form) -> int:
    return next(spec.count for spec in form.operands if spec.role in ("dest", "source"))


def listed(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{number}" for number in range(count)) + "}"


def setup() -> tuple[str, str]:
    """Copies the input to shared memory; `%sh`, `%gl` and `%ge` are addresses of the matrix."""
    body = f"""
        mul.wide.u32 %lane, %tid, 8; add.s64 %out, %rd0, %lane; add.s64 %from, %rd1, %lane;
        mov.u32 %sh, tile; mov.u64 %ge, tile; cvta.shared.u64 %ge, %ge; mov.u64 %gl, %rd1;
        shl.b32 %to, %tid, 3; add.u32 %to, %to, %sh;
        mov.u32 %n, 0;
        COPY:
        ld.global.b64 %w, [%from]; st.shared.b64 [%to], %w;
        add.s64 %from, %from, 256; add.u32 %to, %to, 256; add.u32 %n, %n, 1;
        setp.lt.u32 %p1, %n, {BYTES // 256};
        @%p1 bra COPY;
        bar.warp.sync -1;
    """
    declarations = (
        ".reg .b64 %lane, %out, %from, %ge, %gl, %w, %y<8>; .reg .b32 %sh, %to, %n, %x<8>;"
        f" .shared .align 128 .b8 tile[{BYTES}];"
    )
    return body, declarations


def names(form: Form) -> tuple[str, str]:
    wide = form["T"] == "f64"
    return ("y", "b64") if wide else ("x", "b32")


def groups() -> Iterator[object]:
    for space in SPACES:
        for fragment in "abc":
            forms = [form for form in forms_of("load", space) if form["F"] == fragment]
            yield pytest.param(forms, id=f"{fragment}-{space or 'generic'}")


@pytest.mark.parametrize("forms", list(groups()))
@pytest.mark.sample(3)
def test_loads_fill_the_fragments_of_mma(executor: Executor, forms: Sequence[Form]) -> None:
    body, declarations = setup()
    places = {"": "%ge", "global": "%gl", "shared": "%sh"}
    for number, form in enumerate(forms):
        name, kind = names(form)
        count = count_of(form)
        body += f"{form.opcode} {listed(name, count)}, [{places[form['S']]}], {STRIDE};\n"
        # Few wide stores take less time to compile than many narrow ones.
        width = min(count, 2 if kind == "b64" else 4)
        for each in range(0, count, width):
            at = f"%wide+{512 * (2 * number + each // width)}"
            registers = ", ".join(f"%{name}{each + more}" for more in range(width))
            if width == 1:
                body += f"st.global.{kind} [{at}], {registers};\n"
            else:
                body += f"st.global.v{width}.{kind} [{at}], {{{registers}}};\n"
    text = kernel_ptx(
        f"mul.wide.u32 %wide, %tid, 16; add.s64 %wide, %wide, %rd0;\n{body}",
        pointers=2,
        declarations=f"{declarations} .reg .b64 %wide;",
    )
    memory = np.random.default_rng(len(forms)).integers(0, 2**64, BYTES // 8, np.uint64)
    out = np.zeros((len(forms), 2, 32, 2), np.uint64)
    found = launch(executor, text, out, memory).arrays[0]
    for form, pieces in zip(forms, found, strict=True):
        size = np.uint64 if names(form)[1] == "b64" else np.uint32
        count = count_of(form)
        width = min(count, 16 // np.dtype(size).itemsize)
        lanes = pieces.view(size)[..., :width].transpose(0, 2, 1).reshape(-1, 32)
        wanted = held(form, matrix_in(memory, form)).astype(size)
        assert np.array_equal(lanes[: len(wanted)], wanted), form.opcode


@pytest.mark.parametrize("space", SPACES)
def test_stores_are_the_inverse_of_loads(executor: Executor, space: str) -> None:
    """What was loaded goes to the same places of another matrix; all else is left alone."""
    body, declarations = setup()
    forms = forms_of("store", space)
    declarations += " .reg .b64 %back;"
    for number, form in enumerate(forms):
        name, _ = names(form)
        load = form.opcode.replace("store.d", "load.c")
        if space:
            load = re.sub(r"\.(global|shared(::cta)?)\.", ".global.", load)
        else:
            head, _, kind = load.rpartition(".")
            load = f"{head}.global.{kind}"
        start = BYTES * number
        body += f"{load} {listed(name, count_of(form))}, [%gl], {STRIDE};\n"
        if space == "shared":
            body += f"{form.opcode} [back+{start}], {listed(name, count_of(form))}, {STRIDE};\n"
        else:
            body += f"add.s64 %back, %rd0, {start};\n"
            body += f"{form.opcode} [%back], {listed(name, count_of(form))}, {STRIDE};\n"
    if space == "shared":
        declarations += f" .shared .align 128 .b8 back[{BYTES * len(forms)}];"
        body += f"""
            bar.warp.sync -1;
            shl.b32 %to, %tid, 3; mov.u32 %sh, back; add.u32 %to, %to, %sh; mov.u32 %n, 0;
            mov.u64 %back, %out;
            BACK:
            ld.shared.b64 %w, [%to]; st.global.b64 [%back], %w;
            add.s64 %back, %back, 256; add.u32 %to, %to, 256; add.u32 %n, %n, 1;
            setp.lt.u32 %p1, %n, {BYTES * len(forms) // 256};
            @%p1 bra BACK;
        """
    text = kernel_ptx(body, pointers=2, declarations=declarations)
    memory = np.random.default_rng(1).integers(0, 2**64, BYTES // 8, np.uint64)
    out = np.zeros((len(forms), BYTES // 8), np.uint64)
    found = launch(executor, text, out, memory).arrays[0]
    for form, stored in zip(forms, found, strict=True):
        wanted = np.zeros(BYTES // 8, np.uint64)
        numbers, source = wanted.view(f"u{TYPES[form['T']].bytes}"), matrix_in(memory, form)
        lines = source if form["L"] == "row" else source.T
        for row, line in enumerate(lines):
            numbers[row * STRIDE :][: len(line)] = line
        assert np.array_equal(stored, wanted), form.opcode


def product_forms() -> list[Form]:
    """The products whose `mma.sync` are in the table; operand layouts do not matter for them."""
    return [
        form
        for form in table().values()
        if form.operation == "multiply_fragments"
        and (form["A"], form["B"]) == ("row", "col")
        and all(form_of(each.opcode) is not None for each in products(form))
    ]


def encoded(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Small integers as raw numbers of a type."""
    if kind in ("s8", "u8", "s32"):
        size = TYPES[kind].bytes
        return numbers.astype(f"i{size}").view(f"u{size}")
    if kind == "f64":
        return numbers.astype(np.float64).view(np.uint64)
    if kind == "f16":
        return numbers.astype(np.float16).view(np.uint16)
    single = numbers.astype(np.float32).view(np.uint32)
    return (single >> 16).astype(np.uint16) if kind == "bf16" else single


def types_of(form: Form) -> tuple[str, str, str]:
    """The types of A and B, of C, and of D."""
    kind = form["T"] or "f16"
    sums = {"f64": "f64", "s8": "s32", "u8": "s32"}.get(kind, "f32")
    return kind, form.modifiers.get("C", sums), form.modifiers.get("D", sums)


def kinds() -> list[str]:
    return sorted({types_of(form)[0] for form in product_forms()})


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.sample(2)
def test_products(executor: Executor, kind: str) -> None:
    """Small integers, whose product is exact, through loads, product and store."""
    forms = [form for form in product_forms() if types_of(form)[0] == kind]
    body, wanted = "", []
    buffers = [np.zeros((len(forms), BYTES), np.uint8) for _ in range(4)]
    for number, form in enumerate(forms):
        m, n, k = sizes(form["G"])
        _, before, after = types_of(form)
        rng = np.random.default_rng(k)
        low = 0 if kind == "u8" else -4
        a, b, c = (rng.integers(low, 5, shape) for shape in ((m, k), (k, n), (m, n)))
        opcodes = [
            f"wmma.store.d.sync.aligned.row.{form['G']}.global.{after}",
            f"wmma.load.a.sync.aligned.row.{form['G']}.global.{kind}",
            f"wmma.load.b.sync.aligned.col.{form['G']}.global.{kind}",
            f"wmma.load.c.sync.aligned.row.{form['G']}.global.{before}",
        ]
        lists = [
            listed(name, count_of(table()[opcode]))
            for name, opcode in zip("dabc", opcodes, strict=True)
        ]
        places = [f"[%rd{buffer}+{BYTES * number}]" for buffer in range(4)]
        for opcode, registers, place in list(zip(opcodes, lists, places, strict=True))[1:]:
            body += f"{opcode} {registers}, {place};\n"
        body += f"{form.opcode} {', '.join(lists)};\n{opcodes[0]} {places[0]}, {lists[0]};\n"
        given = encoded(a, kind), np.ascontiguousarray(encoded(b, kind).T), encoded(c, before)
        for buffer, each in zip(buffers[1:], given, strict=True):
            buffer[number, : each.nbytes] = np.frombuffer(each.tobytes(), np.uint8)
        wanted.append(encoded(a @ b + c, after))
    declarations = f".reg .b{64 if kind == 'f64' else 32} %a<8>, %b<8>, %c<8>, %d<8>;"
    text = kernel_ptx(body, pointers=4, declarations=declarations)
    found = launch(executor, text, *buffers).arrays[0]
    for form, stored, product in zip(forms, found, wanted, strict=True):
        assert stored[: product.nbytes].tobytes() == product.tobytes(), form.opcode


def test_a_product_without_its_instruction_is_refused_by_name(executor: Executor) -> None:
    lists = ", ".join(["{%a0, %a1, %a2, %a3}"] * 2)
    opcode = "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32"
    text = kernel_ptx(f"{opcode} {lists};", declarations=".reg .b32 %a<4>;")
    with pytest.raises(UnsupportedInstruction, match=r"nvcuda::wmma.*kernel\.cu:1"):
        launch(executor, text, np.zeros(1, np.uint32))


@pytest.mark.parametrize("kinds", ["f16.f16", "f32.f32"])
def test_saturation_of_floating_point_products_is_refused(executor: Executor, kinds: str) -> None:
    """ptxas refuses it as well, from PTX 6.5 on."""
    text = kernel_ptx(
        f"wmma.mma.sync.aligned.row.col.m16n16k16.{kinds}.satfinite "
        f"{', '.join([listed('a', 8)] * 4)};",
        declarations=".reg .b32 %a<8>;",
    )
    with pytest.raises(UnsupportedInstruction, match="satfinite"):
        launch(executor, text, np.zeros(1, np.uint32))
