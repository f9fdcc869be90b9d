"""Where the value of a register is while the code of a basic block is emitted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.layout import vector_bytes

Emit = Callable[[Function, Sequence[Value]], Sequence[Value]]


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """One value for all lanes."""

    value: Value

    @property
    def bits(self) -> int:
        """Width."""
        return int(self.value.type[1:])


class Slot(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A vector in memory: in the warp's registers (`w`) or in the worker's scratch (`t`).

    `offset` is in bytes from the start of the area.
    """

    area: str
    offset: int
    bits: int


class Lanes(msgspec.Struct, frozen=True, gc=False):
    """A predicate, one bit per lane in an i32."""

    value: Value

    @property
    def bits(self) -> int:
        """Width."""
        return 1


@dataclass(frozen=True, slots=True)
class LaneNumber:
    """The lane's index, 0 to 31."""

    bits: int = 32


@dataclass(eq=False, slots=True)
class Node:
    """A deferred per-lane computation.

    Nodes are numbered in program order. `emit` computes the results from the values of `sources`,
    each resized to the width beside it. `bits` are the results' widths. `stored` says where a
    result is kept once computed.
    """

    serial: int
    emit: Emit
    sources: tuple[tuple[Location, int], ...]
    bits: tuple[int, ...]
    stored: dict[int, Slot | Lanes] = field(default_factory=dict)
    # The number of readers created, and of those whose code is emitted.
    readers: int = 0
    served: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a node.

    `root` and `distance` are set for the sum of a vector and a scalar: addresses with the same root
    have the same pattern.
    """

    node: Node
    index: int = 0
    root: Slot | Result | None = None
    distance: Value | None = None

    @property
    def bits(self) -> int:
        """Width."""
        return self.node.bits[self.index]

    @property
    def stored(self) -> Slot | Lanes | None:
        """Where it is kept, if it was computed."""
        return self.node.stored.get(self.index)


Location = Scalar | Slot | Lanes | LaneNumber | Result


def root_of(location: Location) -> tuple[Slot | Result | None, Value | None]:
    """The vector and the scalar that a sum was made of; the vector itself if it is not a sum."""
    if isinstance(location, Result):
        return (location.root, location.distance) if location.root is not None else (location, None)
    return (location, None) if isinstance(location, Slot) else (None, None)


class Scratch:
    """Allocates scratch slots within a basic block. Sizes are in bytes."""

    _UNIT = vector_bytes(32)

    def __init__(self) -> None:
        self.size = 0
        self._end = 0
        self._free: list[int] = []

    def take(self, bits: int) -> Slot:
        """Allocate a slot for a vector of that width."""
        if vector_bytes(bits) == self._UNIT and self._free:
            return Slot("t", self._free.pop(), bits)
        slot = Slot("t", self._end, bits)
        self._end += vector_bytes(bits)
        self.size = max(self.size, self._end)
        return slot

    def take_row(self, count: int) -> list[Slot]:
        """Allocate adjacent slots for vectors of 32 bits."""
        start, self._end = self._end, self._end + count * self._UNIT
        self.size = max(self.size, self._end)
        return [Slot("t", start + location * self._UNIT, 32) for location in range(count)]

    def keep_only(self, kept: Sequence[Slot]) -> None:
        """Free all slots but these."""
        used = {
            start
            for slot in kept
            if slot.area == "t"
            for start in range(slot.offset, slot.offset + vector_bytes(slot.bits), self._UNIT)
        }
        self._end = max(used, default=-self._UNIT) + self._UNIT
        self._free = [start for start in range(0, self._end, self._UNIT) if start not in used]

    @property
    def in_use(self) -> int:
        """Bytes that are allocated."""
        return self._end - self._UNIT * len(self._free)


def with_shared(wanted: Sequence[Result], held: Collection[Node]) -> list[Result]:
    """Add to the results to be computed those that others will read again, so that each is computed
    once.

    `held` are computations that registers hold, which later instructions may read.
    """
    nodes: set[Node] = set()
    work = [each.node for each in wanted]
    while work:
        node = work.pop()
        if node not in nodes:
            nodes.add(node)
            work += [
                source.node
                for source, _ in node.sources
                if isinstance(source, Result) and source.stored is None
            ]
    inside: dict[Node, int] = {}
    for node in nodes:
        for source, _ in node.sources:
            if isinstance(source, Result):
                inside[source.node] = inside.get(source.node, 0) + 1
    chosen = dict.fromkeys(wanted)
    for node in sorted(nodes, key=lambda node: node.serial):
        if node.readers > node.served + inside.get(node, 0) or node in held:
            for index in range(len(node.bits)):
                chosen.setdefault(Result(node, index))
    return list(chosen)
