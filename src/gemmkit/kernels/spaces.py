"""Goes through a kernel's space without building what its tiles rule out from the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmkit.gpu import WARP_SIZE, GpuSpec

REGISTER_TILES: Mapping[str, tuple[int, ...]] = {
    "BM": (32, 64, 128),
    "BN": (32, 64, 128),
    "BK": (8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}

# Keys that bound each other come first, so that most of what cannot be is never looked at.
_ORDER = ("TM", "TN", "WM", "WN", "BM", "BN")


def fitting_values(space: Mapping[str, tuple[int, ...]], gpu: GpuSpec) -> Iterator[dict[str, int]]:
    """The combinations of a space in which larger tiles are made of smaller ones.

    A warp's tile has a multiple of a thread's rows and columns and 32 times its results; a block's
    has a multiple of a warp's, and no more threads than a GPU allows. Blocks of a cluster share
    operands or the k of a tile, not both, and only several consumers have tiles of their own. Of a
    million combinations some ten thousand are left. Where a warp has a WN but no WM, it has no
    tile: it may be wider than the block's.
    """
    keys = sorted(space, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))
    return _extended({}, keys, space, gpu)


def _extended(
    chosen: dict[str, int], keys: list[str], space: Mapping[str, tuple[int, ...]], gpu: GpuSpec
) -> Iterator[dict[str, int]]:
    if not keys:
        yield {key: chosen[key] for key in space}
        return
    key, *rest = keys
    for value in space[key]:
        if _fits(chosen, key, value, gpu):
            yield from _extended({**chosen, key: value}, rest, space, gpu)


def _fits(chosen: Mapping[str, int], key: str, value: int, gpu: GpuSpec) -> bool:
    """Whether a key may have that value beside those that are chosen already."""
    if key == "cluster_k":
        return 1 in (value, chosen.get("cluster_m", 1) * chosen.get("cluster_n", 1))
    if key == "pingpong":
        return value <= chosen.get("consumers", value)
    if key not in _ORDER[2:]:
        return True
    side = key[1]
    part = chosen.get(f"W{side}") if key[0] == "B" and "WM" in chosen else None
    part = part or chosen.get(f"T{side}")
    if part is not None and value % part:
        return False
    if not {"TM", "TN"} <= chosen.keys():
        return True
    results = chosen["TM"] * chosen["TN"]
    if key == "WN" and "WM" in chosen:
        return chosen["WM"] * value == WARP_SIZE * results
    if key == "BN" and "BM" in chosen:
        return chosen["BM"] * value <= gpu.capability.max_threads_per_block * results
    return True
