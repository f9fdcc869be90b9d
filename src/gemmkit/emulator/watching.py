"""What a watched launch records: `WatchedAccess`, a memory request; `WatchedCopy`, one of the TMA;
`WatchedSignal` between warps; `SharedContent` of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SignalKind = Literal["copy", "arrive", "complete", "wait", "multiply", "commit", "wait products"]


@dataclass(frozen=True, slots=True)
class WatchedAccess:
    """One memory request of one warp.

    `array` is the name of an allocation or of a shared or local variable. `offsets` are in bytes
    from the array's start, one for each of the 32 lanes, None for inactive lanes; `base` is the
    address of that start in its space. `warp` is counted over the blocks that run, `barriers` are
    those at which the warp has waited before. `kind` is "load", "store", "copy" (a cp.async makes
    two requests, one per space) or "atomic". `by_rows` says whether the lanes address rows of
    matrices, as in `ldmatrix`: eight to a phase, which never merge. If the kernel has no line
    information, `file` is empty and `line` is one of the PTX.
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
    by_rows: bool = False

    @property
    def apart(self) -> bool:
        """Whether shared memory serves it by the rule of stores, without merging lanes."""
        return self.by_rows or self.kind != "load"


@dataclass(frozen=True, slots=True)
class WatchedCopy:
    """One bulk copy, tensor copy or reduction that a thread of a warp has issued.

    `array` is the name of the allocation in global memory. `spans` are what it reads or writes
    there, as offset from the array's start and number of bytes, without what is outside of a
    tensor; with several destinations, once. `kind` is "load", "store" or "reduction". `warp` and
    `number` are as in `WatchedAccess`.
    """

    number: int
    array: str
    kind: str
    warp: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WatchedSignal:
    """What a warp does that others may wait for, or the end of its own wait.

    `kind` is one of

    - "copy": a bulk copy from global memory to shared memory, of `nbytes` of `array`, begins;
    - "arrive": the warp arrives at a barrier;
    - "complete": a phase of a barrier is complete;
    - "wait": the warp has waited for the latest complete phase of a barrier;
    - "multiply": instruction `number`, a multiply-add or a product of matrices, issues `count`
      times in a row; of kernels with bulk copies alone;
    - "commit": the wgmma since the last such signal make a group;
    - "wait products": all but the latest `count` groups are complete.

    `barriers` are those concerned: of mbarriers the rank of their block and the address there, of
    a block's barriers the rank and -1 minus the number, of the cluster's (-1, 0). A copy to
    several blocks signals one in each. `warp` is as in `WatchedAccess`, -1 of a complete phase.
    """

    kind: SignalKind
    warp: int
    barriers: tuple[tuple[int, int], ...] = ()
    array: str = ""
    nbytes: int = 0
    number: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class Watched:
    """What the warps of some blocks have accessed and signaled, in the order in which they ran."""

    accesses: tuple[WatchedAccess, ...]
    copies: tuple[WatchedCopy, ...]
    signals: tuple[WatchedSignal, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedContent:
    """The shared memory of one block: `data`, whose first byte has the address `start`.

    `variables` has the address and the size in bytes of each array; that of dynamic shared memory
    is what the launch gave. Bytes that were never written are zero.
    """

    start: int
    data: bytes
    variables: Mapping[str, tuple[int, int]]
