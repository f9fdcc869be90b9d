"""Compact code: what occurs in many places is compiled once, and is right in each of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from launching import ENGINE, ORACLE, kernel_ptx, launch

from gemmkit.emulator.codegen import compile as compiling

# Registers, a number that all lanes share, and a constant: only the first two places are alike.
PLACES = [
    ("%r1", "%r2", "%n", 5),
    ("%r2", "%r1", "%n", 5),
    ("%r1", "%r1", "%m", 5),
    ("%r2", "%r2", "%n", 7),
]
BODY = """
    mul.lo.u32 %r3, {a}, {by};
    setp.lt.u32 %p1, {a}, {b};
    setp.gt.s32 %p2, %r3, {scalar};
    selp.u32 %r4, {b}, {scalar}, %p1;
    add.u32 %r4, %r4, %tid;
    @%p2 xor.b32 %r4, %r4, %r3;
    st.global.u32 [%at], %r4;
    @%p1 st.global.u32 [%at+128], %r3;
    add.s64 %at, %at, 256;
"""


def test_equal_segments_are_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    compile_ir = compiling.compile_ir

    def noted(text: str, **options: bool) -> bytes:
        texts.append(text)
        return compile_ir(text, **options)

    monkeypatch.setattr(compiling, "compile_ir", noted)
    monkeypatch.setattr(compiling, "COMBINED_INSTRUCTIONS", 0)
    begin = """
        .reg .b32 %n, %m;
        mov.u32 %n, %ctaid.x;
        add.u32 %m, %n, 3;
        ld.global.u32 %r1, [%at];
        ld.global.u32 %r2, [%at+128];
    """
    words = np.random.default_rng(3).integers(0, 2**31, 64 * len(PLACES), np.uint32)
    functions = []
    for count in (1, 2, 3, 4):
        places = "".join(
            BODY.format(a=a, b=b, scalar=scalar, by=by) for a, b, scalar, by in PLACES[:count]
        )
        text = kernel_ptx(begin + places)
        engine, oracle = (launch(each, text, words.copy()) for each in (ENGINE, ORACLE))
        assert np.array_equal(engine.arrays[0], oracle.arrays[0])
        functions.append(len(re.findall(r"^define .*@segment", texts[-1], re.MULTILINE)))
    once, twice, same_register, other_constant = functions
    assert once == twice < same_register < other_constant
