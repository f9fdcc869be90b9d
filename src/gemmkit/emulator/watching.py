"""`WatchedAccess`: a memory request as a watched launch records it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchedAccess:
    """One memory request of one warp.

    `array` is the name of an allocation or of a shared or local variable. `offsets` are in bytes
    from the array's start, one for each of the 32 lanes, None for inactive lanes; `base` is the
    address of that start in its space. `warp` is counted over the blocks that run, `barriers` are
    those at which the warp has waited before. `kind` is "load", "store", "copy" (a cp.async makes
    two requests, one per space) or "atomic". If the kernel has no line information, `file` is empty
    and `line` is one of the PTX.
    """

    file: str
    line: int
    number: int
    opcode: str
    array: str
    space: str
    kind: str
    bytes_per_lane: int
    warp: int
    barriers: int
    base: int
    offsets: tuple[int | None, ...]
