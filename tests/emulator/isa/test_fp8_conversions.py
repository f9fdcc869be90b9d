"""Conversions to and from e4m3 and e5m2 give what an H100 returned, to the bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of

# Of the results of e4m3, e5m2, and of both with `.relu`, one after the other: the first 16 digits
# of their SHA-256 on an H100.
FROM_F32, FROM_F16, TO_F16 = "4765926732d763e3", "4acc255a08ee3375", "c02bcf49ce3d1805"
WORDS = np.arange(1 << 16, dtype=np.uint32)
# All upper halves of float32 numbers, with lower halves at and beside what is halfway.
LOW = np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF], np.uint32)
F32 = (WORDS[:, None] << np.uint32(16) | LOW).reshape(-1)


@pytest.mark.parametrize(
    ("opcode", "sources", "digest"),
    [
        ("cvt.rn.satfinite{relu}.{type}.f32", (F32, F32[::-1].copy()), FROM_F32),
        (
            "cvt.rn.satfinite{relu}.{type}.f16x2",
            (WORDS | (np.uint32(0xFFFF) - WORDS) << np.uint32(16),),
            FROM_F16,
        ),
        ("cvt.rn{relu}.f16x2.{type}", (WORDS.astype(np.uint16),), TO_F16),
    ],
)
def test_conversions(opcode: str, sources: tuple[np.ndarray, ...], digest: str) -> None:
    found = b""
    for relu in ("", ".relu"):
        for kind in ("e4m3x2", "e5m2x2"):
            form = form_of(opcode.format(relu=relu, type=kind))
            assert form is not None
            found += evaluate(form, sources)[0].tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == digest
