"""The runtime in pieces, of which a kernel loads those that it calls, and what they call."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Module
from gemmkit.emulator.codegen.runtime import (
    access,
    atomics,
    blocks,
    bounds,
    copies,
    counts,
    lanes,
    patterns,
    spaces,
)

CORE = "core"
_ACCESS = re.compile(r"(?:load|store)_(global|shared|local|generic)_(\d+)x\d")


def pieces_for(functions: Iterable[str]) -> list[str]:
    """The pieces that define these functions, each after those that it needs."""
    found = [CORE]
    for function in sorted(functions):
        for piece in _pieces_of(function.removeprefix(RUNTIME_PREFIX)):
            if piece not in found:
                found.append(piece)
    return found


def _pieces_of(function: str) -> list[str]:
    match = _ACCESS.fullmatch(function)
    if match:
        space, bits = match.groups()
        parts = ("global", "shared", "local") if space == "generic" else ()
        return [f"{each}_{bits}" for each in (*parts, space)]
    if function.startswith("load_row_"):
        return [f"{function.removeprefix('load_row_')}_32"]
    if function.startswith("copy_async") or function == "positive":
        return ["copies"]
    if function.startswith("atomic_"):
        return ["atomics"]
    return []


def piece_module(piece: str, *, permutes: bool) -> Module:
    """A piece's IR; `permutes` where the host has AVX2's permutation of words."""
    module = Module()
    if piece == CORE:
        patterns.define(module)
        bounds.define(module)
        counts.define(module)
        access.define_words(module)
        lanes.define(module)
        blocks.define(module)
    elif piece == "copies":
        copies.define(module)
    elif piece == "atomics":
        atomics.define(module)
    else:
        space, bits = piece.split("_")
        if space in ("global", "shared"):
            access.define(module, space, int(bits), permutes=permutes)
        else:
            spaces.define(module, space, int(bits))
    return module
