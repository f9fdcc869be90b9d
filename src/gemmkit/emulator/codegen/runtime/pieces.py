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
    copy_counts,
    counts,
    delayed,
    lane_races,
    lanes,
    matrices,
    order,
    ordered,
    patterns,
    shadow,
    shadow_global,
    spaces,
    undefined,
    unordered,
    watched,
    within_block,
)

CORE = "core"
SANITIZERS = watched.PREFIX.removesuffix("_")
_ACCESS = re.compile(r"(?:load|store)_(global|shared|local|generic)_(\d+)x\d")


def pieces_for(functions: Iterable[str]) -> list[str]:
    """The pieces that define these functions, each after those that it needs."""
    found = [CORE]
    for function in sorted(functions):
        for piece in _pieces_of(function.removeprefix(RUNTIME_PREFIX)):
            if piece not in found:
                found.append(piece)
    if any(piece.startswith(SANITIZERS) for piece in found):
        found.insert(1, SANITIZERS)
    return list(dict.fromkeys(found))


def _pieces_of(function: str) -> list[str]:
    if function.startswith(watched.PREFIX):
        names = _pieces_of(function.removeprefix(watched.PREFIX))
        # What an atomic operation does is one function, with sanitizers or without, and rows of
        # words that were looked at as a whole may be loaded one by one.
        plain = [name for name in names if name in ("atomics", "global_32", "shared_32")]
        return [SANITIZERS, *plain, *map(_sanitized, names)]
    match = _ACCESS.fullmatch(function)
    if match:
        space, bits = match.groups()
        parts = ("global", "shared", "local") if space == "generic" else ()
        return [f"{each}_{bits}" for each in (*parts, space)]
    if function.startswith("load_row_"):
        return [f"{function.removeprefix('load_row_')}_32"]
    if function.startswith("copy_async") or function in ("positive", "commit", "wait"):
        return ["copies"]
    if function.startswith("atomic_"):
        return ["atomics"]
    if function.startswith(matrices.PREFIX):
        return [function]
    return []


def _sanitized(piece: str) -> str:
    """The piece that the sanitizers have instead; there is one of local memory for all."""
    return piece if piece.startswith("local_") else watched.PREFIX + piece


def piece_module(piece: str, *, permutes: bool) -> Module:
    """A piece's IR; `permutes` where the host has AVX2's permutation of words."""
    module = Module()
    if piece == CORE:
        patterns.define(module)
        bounds.define(module)
        counts.define(module)
        copy_counts.define(module)
        access.define_words(module)
        lanes.define(module)
        blocks.define(module)
    elif piece == SANITIZERS:
        shadow.define(module)
        lane_races.define(module)
        shadow_global.define(module)
        order.define(module)
        ordered.define(module)
        unordered.define(module)
        within_block.define(module)
        undefined.define(module)
        blocks.define(module, sanitize=True)
    elif piece.startswith(watched.PREFIX):
        _add(module, piece.removeprefix(watched.PREFIX), permutes, watched.Watching())
    else:
        _add(module, piece, permutes, None)
    return module


def _add(module: Module, piece: str, permutes: bool, extra: access.Extra | None) -> None:
    if piece == "copies":
        (copies if extra is None else delayed).define(module)
    elif piece.startswith(matrices.PREFIX):
        matrices.define(module, piece)
    elif piece == "atomics":
        (atomics.define if extra is None else watched.define_atomics)(module)
    else:
        space, bits = piece.split("_")
        if space in ("global", "shared"):
            access.define(module, space, int(bits), permutes=permutes, extra=extra)
        else:
            spaces.define(module, space, int(bits), prefix=extra.prefix if extra else "")
