"""The runtime's modules; a kernel loads those that it calls, and those that they call."""

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
    delayed_copies,
    descriptors,
    fenced_blocks,
    first_writes,
    fused_sums,
    granules,
    lane_races,
    lanes,
    launch_waits,
    logged_accesses,
    logged_barriers,
    logged_products,
    matrices,
    matrix_moves,
    mbarrier_objects,
    mbarriers,
    patterns,
    peers,
    product_groups,
    register_tables,
    sanitized,
    shadow,
    shadow_global,
    spaces,
    synchronization,
    undefined,
    warp_pairs,
    warpgroups,
    within_block,
)

CORE = "core"
SANITIZERS = sanitized.PREFIX.removesuffix("_")
_ACCESS = re.compile(r"(?:load|store)_(global|shared|local|generic)_(\d+)x\d")


def modules_for(functions: Iterable[str]) -> list[str]:
    """The modules that define these functions, each after those that it needs."""
    found = [CORE]
    for function in sorted(functions):
        for name in _modules_of(function.removeprefix(RUNTIME_PREFIX)):
            if name not in found:
                found.append(name)
    if any(name.startswith(SANITIZERS) for name in found):
        found.insert(1, SANITIZERS)
    return list(dict.fromkeys(found))


def _modules_of(function: str) -> list[str]:
    if function.startswith(sanitized.PREFIX):
        names = _modules_of(function.removeprefix(sanitized.PREFIX))
        # The operation of an atomic is the same function with and without sanitizers, and a row of
        # words that was checked as a whole may be loaded word by word.
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
        return matrices.modules_of(function)
    if function.startswith(warpgroups.PREFIX):
        return warpgroups.modules_of(function)
    if function in (descriptors.SAME, *descriptors.GATHER.values()):
        return [descriptors.MODULE]
    if matrix_moves.is_move(function):
        return [function]
    if function.startswith(mbarrier_objects.PREFIX):
        return ["mbarriers"]
    return []


def _sanitized(name: str) -> str:
    """The sanitizers' variant of a module; local memory has one module for both."""
    return name if name.startswith("local_") else sanitized.PREFIX + name


def build_module(name: str, *, permutes: bool) -> Module:
    """A module's IR; `permutes`: the host has AVX2's permutation of words."""
    module = Module()
    if name == CORE:
        patterns.define(module)
        bounds.define(module)
        peers.define(module)
        counts.define(module)
        copy_counts.define(module)
        access.define_words(module)
        lanes.define(module)
        register_tables.define(module)
        blocks.define(module)
        product_groups.define(module)
    elif name == SANITIZERS:
        shadow.define(module)
        first_writes.define(module)
        lane_races.define(module)
        shadow_global.define(module)
        launch_waits.define(module)
        synchronization.define(module)
        fenced_blocks.define(module)
        warp_pairs.define(module)
        within_block.define(module)
        undefined.define(module)
        granules.define(module)
        logged_products.define(module)
        logged_barriers.define(module)
        logged_accesses.define(module)
        blocks.define(module, sanitize=True)
    elif name.startswith(sanitized.PREFIX):
        _add(module, name.removeprefix(sanitized.PREFIX), permutes, sanitized.SanitizedAccess())
    else:
        _add(module, name, permutes, None)
    return module


def _add(module: Module, name: str, permutes: bool, hooks: access.AccessHooks | None) -> None:
    if name == "copies":
        (copies if hooks is None else delayed_copies).define(module)
    elif name.startswith(fused_sums.PREFIX):
        fused_sums.define(module, name)
    elif name.startswith(matrices.PREFIX):
        matrices.define(module, name)
    elif name.startswith(warpgroups.PREFIX):
        warpgroups.define(module, name)
    elif name == descriptors.MODULE:
        descriptors.define(module)
    elif matrix_moves.is_move(name):
        matrix_moves.define(module, name)
    elif name == "mbarriers":
        mbarriers.define(module, sanitize=hooks is not None)
    elif name == "atomics":
        (atomics.define if hooks is None else sanitized.define_atomics)(module)
    else:
        space, bits = name.split("_")
        if space in ("global", "shared"):
            access.define(module, space, int(bits), permutes=permutes, hooks=hooks)
        else:
            spaces.define(module, space, int(bits), prefix=hooks.prefix if hooks else "")
