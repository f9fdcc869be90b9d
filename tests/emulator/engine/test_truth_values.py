"""Comparisons of vectors of truth values, which LLVM does not select for every processor."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace

import pytest

from gemmkit.emulator.codegen import native
from gemmkit.emulator.codegen.ir import Module, Value

COMPARISONS = {
    ("ne", "b"): lambda a, b: a ^ b,
    ("eq", "b"): lambda a, b: ~(a ^ b),
    ("ne", 0): lambda a, b: a,
    ("eq", 0): lambda a, b: ~a,
    ("ne", 1): lambda a, b: ~a,
    ("eq", 1): lambda a, b: a,
}


@pytest.fixture(scope="module")
def text() -> str:
    """A function that writes the results of all comparisons of eight pairs of bits."""
    module = Module()
    with module.function(
        "all", "void", [Value("i8", "%a"), Value("i8", "%b"), Value("ptr", "%to")]
    ) as f:
        a, b = (
            f.value("<8 x i1>", f"bitcast {Value('i8', name)} to <8 x i1>") for name in ("%a", "%b")
        )
        for number, (relation, other) in enumerate(COMPARISONS):
            found = f.compare(relation, a, b if other == "b" else other)
            f.store(f.value("i8", f"bitcast {found} to i8"), Value("ptr", "%to"), number)
        f.ret()
    return str(module)


def test_their_bits(text: str) -> None:
    code = native.compile_ir(text, quick=True, combine=False)
    loaded = native.LoadedCode(code, ["all"])
    function = ctypes.CFUNCTYPE(None, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_void_p)(
        loaded.addresses["all"]
    )
    results = (ctypes.c_uint8 * len(COMPARISONS))()
    a, b = 0b0011_0101, 0b0101_0110
    function(a, b, ctypes.addressof(results))
    assert list(results) == [each(a, b) & 0xFF for each in COMPARISONS.values()]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the features are x86's")
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_they_compile_without_the_combiner(
    cpu: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = replace(native.host(), cpu=cpu, features="")
    monkeypatch.setattr(native, "host", lambda: processor)
    assert native.compile_ir(text, quick=True, combine=False)
