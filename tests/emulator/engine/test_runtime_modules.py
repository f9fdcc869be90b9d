"""Code loads every runtime module that it calls, whatever was loaded before it."""

from __future__ import annotations

import pytest

from gemmkit.emulator.codegen.runtime.modules import build_module, modules_for

CALLS = [
    "gemmkit.load_global_32x1",
    "gemmkit.store_generic_64x2",
    "gemmkit.copy_async_4",
    "gemmkit.atomic_global_32",
    "gemmkit.atomic_generic_64",
]
# The operations that are passed to an atomic.
ACTIONS = ["gemmkit.add_f32", "gemmkit.cas_b64"]


@pytest.mark.parametrize("prefix", ["", "sanitized_"])
@pytest.mark.parametrize("call", CALLS)
def test_call_and_what_it_needs(call, prefix):
    name = call.replace("gemmkit.", f"gemmkit.{prefix}")
    defined = {
        function
        for piece in modules_for([name])
        for function in build_module(piece, permutes=True).functions
    }
    assert {name, *(ACTIONS if "atomic" in call else [])} <= defined
