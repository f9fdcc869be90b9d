"""`mma.sync` on every executor: the product, and the fragment layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor, kernel_ptx, launch

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import multiply
from gemmkit.emulator.isa.table import form_of
from gemmkit.errors import UnsupportedInstruction

# Shapes with types of D, A, B; each type, each depth, and each mixture once.
FORMS = [
    f"mma.sync.aligned.{shape}.row.col{'.satfinite' if 'sat' in types else ''}"
    f".{types.removesuffix('.sat')}.{types.partition('.')[0]}"
    for shapes, kinds in (
        ("m16n8k8,m16n8k16", "f32.f16.f16,f16.f16.f16,f32.bf16.bf16"),
        ("m16n8k4,m16n8k8", "f32.tf32.tf32"),
        ("m16n8k16,m16n8k32", "f32.e4m3.e4m3,f16.e5m2.e4m3"),
        ("m16n8k32", "f32.e5m2.e5m2,f16.e4m3.e4m3,s32.u8.s8,s32.s8.u8.sat"),
        ("m8n8k16,m16n8k16,m16n8k32", "s32.s8.s8"),
        ("m8n8k4,m16n8k4,m16n8k8,m16n8k16", "f64.f64.f64"),
    )
    for shape in shapes.split(",")
    for types in kinds.split(",")
]
CAPABILITY = (9, 0)
WARPS = 2


def form(opcode: str) -> Form:
    found = form_of(opcode)
    assert found is not None, opcode
    return found


def program(opcode: str, target: str = "sm_90") -> str:
    """Register i of lane j of warp w is loaded from word (registers w + i) 32 + j; the result's
    registers are stored likewise."""
    bits = 64 if "f64" in opcode else 32
    dests, *sources = (spec.count for spec in form(opcode).operands)
    warp = 4 * bits * (dests + sum(sources))
    lines = ["mov.u32 %warp, %ctaid.x;", f"mad.wide.u32 %here, %warp, {warp}, %rd0;"]
    lists, at = [], dests
    lines.append(f"mad.wide.u32 %here, %tid, {bits // 8}, %here;")
    for count in sources:
        registers = [f"%x{at + i}" for i in range(count)]
        lists.append(f"{{{', '.join(registers)}}}")
        for register in registers:
            place = at * 4 * bits
            lines.append(f"ld.global.b{bits} {register}, [%here+{place}];")
            at += 1
    results = [f"%x{i}" for i in range(dests)]
    lines.append(f"{opcode} {{{', '.join(results)}}}, {', '.join(lists)};")
    lines += [f"st.global.b{bits} [%here+{i * 4 * bits}], %x{i};" for i in range(dests)]
    declarations = f".reg .b{bits} %x<24>; .reg .b64 %here; .reg .b32 %warp;"
    return kernel_ptx("\n".join(lines), declarations=declarations, target=target)


def bits_of(value: float, kind: str) -> int:
    """The bits of a small integer."""
    if kind in ("s8", "u8", "s32"):
        return int(value) & (0xFF if kind != "s32" else 0xFFFF_FFFF)
    if kind == "f64":
        return int(np.float64(value).view(np.uint64))
    half = int(np.float16(value).view(np.uint16))
    if kind in ("f16", "e5m2"):
        return half if kind == "f16" else half >> 8
    if kind == "e4m3":  # numbers that both types have: the exponent's bias differs by 8
        return (half >> 8 & 0x80) | ((half & 0x7FFF) - (8 << 10) >> 7 if value else 0)
    single = int(np.float32(value).view(np.uint32))
    return single >> 16 if kind == "bf16" else single


@pytest.mark.parametrize("opcode", FORMS)
@pytest.mark.sample(3)
def test_products(executor: Executor, opcode: str) -> None:
    """Of small integers, which are exact, in the fragments of the PTX manual; and of any bits as
    they are defined."""
    shape, sums = opcode.split(".")[3], opcode.split(".")[-1]
    m, k = int(shape[1:].partition("n")[0]), int(shape.partition("k")[2])
    of_a, of_b = opcode.split(".")[-3:-1]
    packed = {"f64": 1, "tf32": 1, "f16": 2, "bf16": 2}.get(of_a, 4)
    rng = np.random.default_rng(len(opcode) + k)
    least = 0 if "u8" in opcode else -4
    a, b = rng.integers(least, 5, (m, k)), rng.integers(least, 5, (k, 8))
    c = rng.integers(-8, 9, (m, 8))

    def register(word: int, kind: str, number: Callable[[int, int], int]) -> list[int]:
        """A register of all lanes; `number(lane, k)` is what the lane has at a step of k."""
        row = []
        for lane in range(32):
            first = 4 * packed * word + packed * (lane % 4)
            parts = (bits_of(number(lane, first + i), kind) for i in range(packed))
            row.append(sum(each << 32 // packed * i for i, each in enumerate(parts)))
        return row

    deep, lower_rows = range(k // (4 * packed)), range(0, m, 8)
    words = [
        register(word, of_a, lambda lane, step, down=down: a[lane // 4 + down, step])
        for word in deep
        for down in lower_rows
    ]
    words += [register(word, of_b, lambda lane, step: b[step, lane // 4]) for word in deep]
    columns = [[0, 1]] if sums == "f16" else [[0], [1]]
    for down in lower_rows:
        for odd in columns:
            words.append(
                [
                    sum(
                        bits_of(c[lane // 4 + down, 2 * (lane % 4) + each], sums) << 16 * index
                        for index, each in enumerate(odd)
                    )
                    for lane in range(32)
                ]
            )
    word = np.uint64 if sums == "f64" else np.uint32
    dests = m // 4 // len(columns[0])
    given = np.zeros((WARPS, dests + len(words), 32), word)
    given[0, dests:] = np.array(words, np.uint64)
    given[1, dests:] = rng.integers(0, np.iinfo(word).max, (len(words), 32), word)
    found = launch(executor, program(opcode), given, grid=WARPS).arrays[0][:, :dests]
    kinds = {"f16": np.float16, "f32": np.float32, "s32": np.int32, "f64": np.float64}
    numbers = np.ascontiguousarray(found[0].T).view(kinds[sums])
    wanted = a @ b + c
    for lane in range(32):
        for index in range(m // 4):
            row, column = lane // 4 + 8 * (index // 2), 2 * (lane % 4) + index % 2
            assert numbers[lane, index] == wanted[row, column]
    defined = multiply(form(opcode), CAPABILITY, list(given[1, dests:]))
    assert np.array_equal(found[1], np.stack(defined))


OPCODE = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def sums_of_tiny_products(executor: Executor, target: str) -> float:
    """1 + 15 * 2**-25, as a tensor core adds it."""
    one, tiny = bits_of(1.0, "bf16"), bits_of(2.0**-25, "bf16")
    given = np.zeros((14, 32), np.uint32)
    given[4:8] = one | one << 16
    given[8:10] = tiny | tiny << 16
    # The first step of k is 1 * 1.
    given[8, ::4] = one | tiny << 16
    found = launch(executor, program(OPCODE, target), given).arrays[0]
    (result,) = set(found[:4].view(np.float32).ravel().tolist())
    return float(result)


@pytest.mark.parametrize(
    ("target", "ulps"),
    [
        # 25 bits below the top exponent: 15 of them make 3.75 in the 23rd.
        ("sm_90", 3),
        ("sm_100", 3),
        # 24 bits: each is lost, next to the 1 and next to the first half's sum.
        ("sm_80", 0),
    ],
)
def test_the_target_decides_the_sum(executor: Executor, target: str, ulps: int) -> None:
    assert sums_of_tiny_products(executor, target) == 1 + ulps * 2.0**-23


def test_an_architecture_may_lack_a_type() -> None:
    opcode = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
    for executor in (ORACLE, ENGINE):
        with pytest.raises(UnsupportedInstruction, match=r"needs compute capability 8\.9 or later"):
            launch(executor, program(opcode, "sm_80"), np.zeros((14, 32), np.uint32))
