"""The engine against this machine's GPU, bit for bit: each instruction, and tensor cores on random
and adversarial operands. GEMMKIT_TENSOR_RESULTS sets how many results of each kind are compared."""

from __future__ import annotations

import os
import re
import zlib

import numpy as np
import pytest
from gpu_executor import GPU
from launching import ENGINE, kernel_ptx, launch
from register_programs import LANES, SLOTS, interesting_words, program
from register_programs import dests_of as destinations
from test_every_form import TRUTH, form_groups, without_payloads
from test_matrices import form as form_named
from test_matrices import program as product_program

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import MatrixProduct
from gemmkit.emulator.isa.table import table

pytestmark = pytest.mark.gpu

RESULTS = int(os.environ.get("GEMMKIT_TENSOR_RESULTS", "20000"))
PRODUCTS = sorted(
    opcode for opcode, form in table().items() if form.operation == "multiply_matrices"
)
# What the kinds of adversarial operands are about.
WAYS = ("normal", "bits", "wide", "cancel", "special", "denormal", "huge", "zeros")
# Bits of a number, and of its fraction.
WIDTHS = {
    "f16": (16, 10),
    "bf16": (16, 7),
    "e4m3": (8, 3),
    "e5m2": (8, 2),
    "tf32": (32, 23),
    "f32": (32, 23),
    "f64": (64, 52),
}


# Forms whose results are approximate, or that PTX leaves open for some operands: a carry of an
# addition taken for a borrow, fields outside of 0 to 255 bits, the payload of a NaN in tf32, an
# mbarrier's state in a format of the hardware's own. An H100 rounds a subnormal fp32 number up or
# down to fp16 where .ftz, by PTX, makes it zero first.
OPEN = re.compile(
    r".*\.approx|div\.full|(sub|mad)c\.|addc\.|(add|sub|mad).*\.cc|bf[ie]\.|cvt.*\.tf32|"
    r"cvt\.r[mp]\.ftz\.f16|mbarrier"
)


@pytest.mark.parametrize("forms", form_groups())
def test_register_forms(forms: list[Form]) -> None:
    exact = [form for form in forms if not OPEN.match(form.opcode)]
    if not exact:
        pytest.skip("PTX leaves open what they give")
    rng = np.random.default_rng(zlib.crc32(exact[0].opcode.encode()))
    words = interesting_words(len(exact) * SLOTS * LANES, rng).reshape(len(exact), SLOTS, LANES)
    out, text = np.zeros((len(exact), 2, LANES), np.uint64), program(exact, truth=TRUTH)
    text = text.replace(".target sm_100", ".target sm_90")
    engine, gpu = (launch(each, text, out, words).arrays[0] for each in (ENGINE, GPU))
    for form, one, other in zip(exact, engine, gpu, strict=True):
        (of,) = destinations(form)
        here, there = (without_payloads(each[0], of.name) for each in (one, other))
        wrong = np.flatnonzero(here != there)
        lane = int(wrong[0]) if len(wrong) else 0
        assert not len(wrong), f"{form.opcode}: {here[lane]:#x}, the GPU {there[lane]:#x}"


def operands(rng: np.random.Generator, shape: tuple[int, ...], of: str, way: str) -> np.ndarray:
    """Raw bits of numbers of a type, as words of 64 bits; the last axis but one runs along k."""
    if of in ("s8", "u8", "s32"):
        return rng.integers(0, 1 << (32 if of == "s32" else 8), shape, np.uint64)
    width, fraction = WIDTHS[of]
    random = rng.integers(0, (1 << width) - 1, shape, np.uint64, endpoint=True)
    if way == "bits":
        return random
    most = (1 << width - 1 - fraction) - 1
    middle = most // 2
    lowest, highest = {
        "wide": (middle // 2, middle + middle // 2),
        "zeros": (middle // 2, middle + middle // 2),
        "denormal": (0, 3),
    }.get(way, (middle - 2, middle + 2))
    exponents = rng.integers(lowest, highest, shape, endpoint=True)
    rare = rng.random(shape) < 0.05
    if way in ("huge", "special", "denormal"):
        exponents = np.where(rare, {"huge": most - 1, "special": most}.get(way, middle), exponents)
    sign = np.uint64(1) << np.uint64(width - 1)
    last_places = np.uint64((1 << fraction) - 1)
    found = exponents.astype(np.uint64) << np.uint64(fraction) | random & (sign | last_places)
    if way == "special":
        found = np.where(rare & (rng.random(shape) < 0.5), found & ~last_places, found)
    if way == "zeros":
        found = np.where(rng.random(shape) < 0.5, found & sign, found)
    if way == "cancel":
        found[..., 1::2, :] = found[..., : 2 * (shape[-2] // 2) : 2, :] ^ sign
    return found


def packed(numbers: np.ndarray, bits: int, word: int) -> np.ndarray:
    """Registers, (…, registers, lanes), from numbers (…, registers, numbers of one, lanes)."""
    shifts = (np.arange(word // bits, dtype=np.uint64) * np.uint64(bits))[:, None]
    return np.bitwise_or.reduce(numbers << shifts, axis=-2)


def registers(
    rng: np.random.Generator, count: int, warps: int, of: str, word: int, way: str
) -> np.ndarray:
    width = 32 if of == "s32" else WIDTHS.get(of, (8, 0))[0]
    numbers = operands(rng, (warps, count, word // width, LANES), of, way)
    return packed(numbers, width, word)


@pytest.mark.parametrize("opcode", PRODUCTS)
def test_tensor_cores(opcode: str) -> None:
    form = form_named(opcode)
    product = MatrixProduct.of(form)
    sums, a, b, _ = (spec.count for spec in form.operands)
    word = 64 if product.kind.a == "f64" else 32
    per_warp = product.rows * 8
    warps = -(-RESULTS // (per_warp * len(WAYS)))
    text = product_program(opcode)
    for number, way in enumerate(WAYS):
        rng = np.random.default_rng((zlib.crc32(opcode.encode()), number))
        kind = product.kind
        parts = [
            registers(rng, count, warps, of, word, way)
            for count, of in ((a, kind.a), (b, kind.b), (sums, kind.result))
        ]
        given = np.zeros((warps, 2 * sums + a + b, LANES), np.uint64)
        given[:, sums:] = np.concatenate(parts, axis=1)
        given = given.astype(np.uint64 if word == 64 else np.uint32)
        engine, gpu = (
            launch(each, text, given, grid=warps).arrays[0][:, :sums] for each in (ENGINE, GPU)
        )
        wrong = int((engine != gpu).sum())
        assert wrong == 0, f"{way}: {wrong:,} of {engine.size:,} registers differ"


def test_the_lowest_bit_of_a_parity_counts() -> None:
    text = kernel_ptx(
        """mov.u32 %r10, full;
        setp.eq.u32 %p0, %tid, 0;
        @%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
        bar.sync 0;
        ld.global.u32 %r2, [%at];
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], %r2;
        selp.u32 %r1, 1, 0, %p2;
        st.global.u32 [%at], %r1;""",
        declarations=".shared .align 8 .b64 full;",
        target="sm_90",
    )
    parities = np.arange(-16, 16, dtype=np.int32).view(np.uint32)
    engine, gpu = (launch(each, text, parities).arrays[0] for each in (ENGINE, GPU))
    assert np.array_equal(engine, gpu)
