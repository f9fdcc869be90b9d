"""`mma.sync` on every executor: the product, and the fragment layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.emulator.isa.matrices import multiply
from gemmkit.emulator.isa.table import table

FORMS = sorted(opcode for opcode in table() if opcode.startswith("mma.sync"))


def program(opcode: str) -> str:
    """Register i of lane j is loaded from word 32 i + j; the result's registers are stored
    likewise."""
    bits = 64 if "f64" in opcode else 32
    dests, *sources = (spec.count for spec in table()[opcode].operands)
    lists, lines, at = [], [f"mad.wide.u32 %here, %tid, {bits // 8}, %rd0;"], dests
    for count in sources:
        registers = [f"%x{at + i}" for i in range(count)]
        lists.append(f"{{{', '.join(registers)}}}")
        for register in registers:
            place = (at - dests) * 4 * bits
            lines.append(f"ld.global.b{bits} {register}, [%here+{place}];")
            at += 1
    results = [f"%x{i}" for i in range(dests)]
    lines.append(f"{opcode} {{{', '.join(results)}}}, {', '.join(lists)};")
    lines += [f"st.global.b{bits} [%here+{i * 4 * bits}], %x{i};" for i in range(dests)]
    declarations = f".reg .b{bits} %x<20>; .reg .b64 %here;"
    return kernel_ptx("\n".join(lines), declarations=declarations)


def bits_of(value: float, kind: str) -> int:
    if kind == "f64":
        return int(np.float64(value).view(np.uint64))
    if kind == "f16":
        return int(np.float16(value).view(np.uint16))
    single = int(np.float32(value).view(np.uint32))
    return single >> 16 if kind == "bf16" else single


@pytest.mark.parametrize("opcode", FORMS)
def test_products(executor: Executor, opcode: str) -> None:
    """Small integers, whose product is exact, in the fragments of the PTX manual."""
    shape = opcode.split(".")[3]
    m, k = int(shape[1:].partition("n")[0]), int(shape.partition("k")[2])
    kind = opcode.split(".")[-3]
    rng = np.random.default_rng(k)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, 8))
    c = rng.integers(-8, 9, (m, 8))
    wide, sums = kind == "f64", "f64" if kind == "f64" else "f32"

    def register(number: int, of_lane: Callable[[int, int], int]) -> list[int]:
        """A register of all lanes; `of_lane(lane, k)` gives the number at a step of k."""
        row = []
        for lane in range(32):
            t = lane % 4
            steps = [4 * number + t] if wide else [8 * number + 2 * t, 8 * number + 2 * t + 1]
            low, *high = (bits_of(of_lane(lane, step), kind) for step in steps)
            row.append(low | high[0] << 16 if high else low)
        return row

    deep, lower_rows = range(k // 4 if wide else k // 8), range(0, m, 8)
    words = [
        register(number, lambda lane, step, down=down: a[lane // 4 + down, step])
        for number in deep
        for down in lower_rows
    ]
    words += [register(number, lambda lane, step: b[step, lane // 4]) for number in deep]
    words += [
        [bits_of(c[lane // 4 + down, 2 * (lane % 4) + odd], sums) for lane in range(32)]
        for down in lower_rows
        for odd in (0, 1)
    ]
    given = np.array(words, np.uint64 if wide else np.uint32)
    found = launch(executor, program(opcode), given).arrays[0]
    numbers = found[: m // 4].view(np.float64 if wide else np.float32)
    wanted = a @ b + c
    for lane in range(32):
        for register in range(m // 4):
            row, column = lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2
            assert numbers[register, lane] == wanted[row, column]


@pytest.mark.parametrize("opcode", FORMS)
def test_rounding_is_as_defined(executor: Executor, opcode: str) -> None:
    form = table()[opcode]
    dests, *sources = (spec.count for spec in form.operands)
    rng = np.random.default_rng(len(opcode))
    if "f64" in opcode:
        given = rng.standard_normal((sum(sources), 32)).view(np.uint64)
    else:
        numbers = rng.standard_normal((sum(sources), 2, 32))
        low, high = (
            [[bits_of(each, form["T"]) for each in row] for row in numbers[:, half]]
            for half in (0, 1)
        )
        given = (np.array(low) | np.array(high) << 16).astype(np.uint32)
        given[-dests:] = numbers[-dests:, 0].astype(np.float32).view(np.uint32)
    wanted = np.stack(multiply(form, list(given)))
    found = launch(executor, program(opcode), given).arrays[0]
    assert np.array_equal(found[:dests], wanted)


def test_sums_are_rounded_once(executor: Executor) -> None:
    """1 + 15 * 2**-25: each addition alone would be lost."""
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    one, tiny = bits_of(1.0, "bf16"), bits_of(2.0**-25, "bf16")
    given = np.zeros((10, 32), np.uint32)
    given[:4] = one | one << 16
    given[4:6] = tiny | tiny << 16
    # The first step of k is 1 * 1.
    given[4, ::4] = one | tiny << 16
    found = launch(executor, program(opcode), given).arrays[0]
    assert np.all(found[:4].view(np.float32) == np.float32(1 + 15 * 2.0**-25))
