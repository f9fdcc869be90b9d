"""`Definedness`: which bits of registers and memory are defined, and where undefined ones are used.

It runs before each instruction and follows the rules of `isa.definedness`. Registers and memory
have shadow arrays, with a 1 for each defined bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.operands import (
    Action,
    result_widths,
    source_widths,
)
from gemmkit.emulator.codegen.shadow_layout import USED_SOURCE
from gemmkit.emulator.codegen.tracking import overwrites, used_from
from gemmkit.emulator.isa.cluster import OFFSET_MASK
from gemmkit.emulator.isa.fragments import defined_fragments
from gemmkit.emulator.isa.matrices import defined_products
from gemmkit.emulator.isa.matrix_access import (
    copies,
    is_matrix,
    registers_of,
)
from gemmkit.emulator.isa.matrix_moves import transposed
from gemmkit.emulator.isa.semantics.raw import Raw
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.oracle.access import WINDOWS, space_of
from gemmkit.emulator.oracle.bit_rules import all_where
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Group
from gemmkit.emulator.oracle.matrix_access import assembled, requests, taken_apart
from gemmkit.emulator.oracle.memory import WINDOW_BYTES, Addresses, Lanes, window_of
from gemmkit.emulator.oracle.register_definedness import RegisterDefinedness
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.oracle.warp import shuffle_sources
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.memory_faults import LOCAL, never_written
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.undefined import absent_lane

Bytes = NDArray[np.uint8]
_ATOMICS = ("atomic", "reduction", "compare_and_swap")


class Definedness(RegisterDefinedness):
    """The state of one chunk: its registers and memory; findings go to `collection`."""

    def __init__(
        self, chunk: Chunk, names: Names, memory: DeviceMemory, collection: Collection
    ) -> None:
        super().__init__(chunk, names, collection)
        self._memory = memory
        self._overwrites = overwrites(names.actions)
        # One byte for each address of shared and local memory, by owner.
        self._spaces: Mapping[str, Bytes] = {
            space: np.zeros((int(chunk.owners[space].max()) + 1, each.base + each.nbytes), np.uint8)
            for space, each in ((name, chunk.spaces[name]) for name in ("shared", "local"))
        }
        sizes = [
            min(4, action.form.type.bytes)
            for action in names.actions
            if action.operation in ("load", "store", *_ATOMICS)
            and action.form["S"].removesuffix("::cta") in ("shared", "")
        ]
        self._granule = min(sizes, default=4)

    def step(self, group: Group, step: Step, lanes: Lanes, active: Lanes) -> None:
        """Before an instruction runs in these lanes, out of the active ones."""
        action = self._names.actions[step.number]
        if action.pure:
            self._set(group, action, self._computed(group, action), lanes, active)
            return
        self._look_at_uses(group, action, lanes, active)
        results = self._effects(group, step, action, lanes)
        self._set(group, action, results or [None] * len(action.dests), lanes, active)

    # Effects

    def _effects(
        self, group: Group, step: Step, action: Action, lanes: Lanes
    ) -> list[Raw | None] | None:
        """What an instruction does to memory; returns the undefined bits of its results."""
        operation = action.operation
        if operation in ("load", "store") and is_matrix(action.form):
            move = self._load_matrix if operation == "load" else self._store_matrix
            return move(group, step, action, lanes)
        if operation == "load" and step.form["S"] != "const":
            return self._load(group, step, action, lanes)
        if operation == "store":
            self._store(group, step, action, lanes)
        elif operation == "copy_async":
            self._copy(group, step, action, lanes)
        elif operation in _ATOMICS:
            self._update(group, step, action, lanes)
        elif operation == "shuffle":
            return self._shuffle(group, step, action, lanes)
        elif operation in ("multiply_matrices", "multiply_fragments"):
            widths = source_widths(action)
            pairs = zip(action.sources, widths, strict=True)
            defined = [~self._undefined(group, *each) for each in pairs]
            product = defined_products if operation == "multiply_matrices" else defined_fragments
            return [~each for each in product(action.form, defined)]
        elif operation == "wgmma_multiply":
            scale = np.broadcast_to(group.read(*step.sources[-1]), lanes.shape)
            sums = [self._undefined(group, each, 32) for each in action.sources[: len(step.dests)]]
            return [np.where(scale, each, np.uint32(0)) for each in sums]
        elif operation == "transpose_matrix":
            return [transposed(self._undefined(group, action.sources[0], 32))]
        elif action.form.opcode_class == "warp" and used_from(action) and action.sources:
            bits = source_widths(action)[0]
            bad = (lanes & (self._undefined(group, action.sources[0], bits) != 0)).any(axis=1)
            column = np.broadcast_to(bad[:, None], lanes.shape)
            return [all_where(column, width) for width in result_widths(action)]
        return None

    def _shuffle(self, group: Group, step: Step, action: Action, lanes: Lanes) -> list[Raw | None]:
        values = self._undefined(group, action.sources[0], 32)
        other, _ = shuffle_sources(group, step, lanes)
        masks = np.broadcast_to(group.read(*step.sources[3]), lanes.shape)
        named = masks >> other.astype(np.uint32) & np.uint32(1) == 1
        absent = lanes & ~(np.take_along_axis(lanes, other, axis=1) & named)
        for index in np.flatnonzero(absent.any(axis=1)).tolist():
            row, lane = int(group.rows[index]), int(absent[index].argmax())
            block, warp = int(self._chunk.block[row, 0]), row % self._chunk.warps_per_block
            whose = int(other[index, lane])
            found = absent_lane(self._names, action.number, block, warp, 1 << lane, whose)
            self._uses.read(action.number, block, found)
        taken = np.take_along_axis(values, other, axis=1)
        return [np.where(absent, np.uint32(0xFFFFFFFF), taken), None]

    def _accesses(
        self, group: Group, step: Step, addresses: Addresses, lanes: Lanes
    ) -> list[tuple[str, Addresses, Lanes]]:
        """For each space that is accessed: the addresses in it and the lanes. The bits of another
        block's shared memory are not followed: they count as defined."""
        space = space_of(group, step)
        if self._chunk.cluster_blocks > 1 and space in ("shared", "generic"):
            window = np.uint64(WINDOWS["shared"] if space == "generic" else 0)
            within = addresses - window
            distant = (within > OFFSET_MASK) & (within < WINDOW_BYTES)
            lanes = lanes & ~distant
        if space != "generic":
            return [(space, addresses, lanes)]
        found = []
        for each in ("shared", "local", "global"):
            inside = lanes & window_of(addresses, each)
            if inside.any():
                found.append((each, addresses - np.uint64(WINDOWS.get(each, 0)), inside))
        return found

    def _each(self, group: Group, space: str, lanes: Lanes) -> list[tuple[int, int, int]]:
        """(position in the group, lane, owner) of each active lane."""
        owners = np.broadcast_to(
            self._chunk.owners["local" if space == "global" else space],
            (self._chunk.count, WARP),
        )
        return [
            (index, lane, int(owners[group.rows[index], lane]))
            for index, lane in np.argwhere(lanes).tolist()
        ]

    def _bytes(self, space: str, owner: int, address: int, nbytes: int) -> Bytes | None:
        """The shadow of bytes in memory, readable and writable; None if all are defined."""
        if space != "global":
            return self._spaces[space][owner, address : address + nbytes]
        found = self._memory.find(address)
        written = self._memory.written(found.address) if found is not None else None
        if found is None or written is None:
            return None
        return written[address - found.address :][:nbytes]

    def _load(self, group: Group, step: Step, action: Action, lanes: Lanes) -> list[Raw | None]:
        assert action.address is not None
        accesses = self._accesses(group, step, group.address(action.address), lanes)
        return list(
            self._loaded(group, action, accesses, action.form.type.bytes, len(action.dests))
        )

    def _loaded(
        self,
        group: Group,
        action: Action,
        accesses: Sequence[tuple[str, Addresses, Lanes]],
        size: int,
        count: int,
    ) -> list[Raw]:
        """The undefined bits of `count` numbers of `size` bytes that each lane loads."""
        found = [np.zeros((len(group.rows), WARP), f"u{size}") for _ in range(count)]
        for space, addresses, inside in accesses:
            reported: set[int] = set()
            for index, lane, owner in self._each(group, space, inside):
                address = int(addresses[index, lane])
                known = self._bytes(space, owner, address, size * count)
                if known is None:
                    continue
                bits = known.copy() if space == "local" else np.where(known != 0, 255, 0)
                bits = bits.astype(np.uint8)
                if not (bits == 255).all() and index not in reported:
                    reported.add(index)
                    first = address + int(np.flatnonzero(bits != 255)[0])
                    self._read(group, action, index, lane, space, first)
                numbers = ~bits.view(f"u{size}")
                for number in range(count):
                    spoilt = size < 4 and numbers[number]
                    found[number][index, lane] = (
                        ~numbers.dtype.type(0) if spoilt else numbers[number]
                    )
        return found

    def _load_matrix(
        self, group: Group, step: Step, action: Action, lanes: Lanes
    ) -> list[Raw | None]:
        parts = []
        for piece, addresses, acting in requests(group, step, lanes):
            accesses = self._accesses(group, step, addresses, acting)
            size = piece.bits // 8
            parts.append((piece, self._loaded(group, action, accesses, size, piece.count)))
        values = assembled(parts)
        return [values[number] for number in copies(action.form)]

    def _store_matrix(
        self, group: Group, step: Step, action: Action, lanes: Lanes
    ) -> list[Raw | None]:
        width, bits = registers_of(action.form), source_widths(action)[0]
        held = [self._undefined(group, each, bits) for each in action.sources[:width]]
        for piece, addresses, acting in requests(group, step, lanes):
            accesses = self._accesses(group, step, addresses, acting)
            first = piece.registers[0]
            for number, undefined in enumerate(taken_apart(piece, held)):
                self._stored(group, action, accesses, undefined, first, number * piece.bits // 8)
        return []

    def _read(
        self, group: Group, action: Action, index: int, lane: int, space: str, address: int
    ) -> None:
        names, row = self._names, int(group.rows[index])
        array, offset = LOCAL, address
        if space != "local":
            array, offset = (names.shared if space == "shared" else names.device)(address)
        block = int(self._chunk.block[row, 0])
        thread = names.lane(row % self._chunk.warps_per_block, lane)
        finding = never_written(names, action.number, thread, block, array, offset)
        if action.operation == "load":
            self._uses.read(action.number, block, finding)
        else:
            self._collection.add(finding, block)

    def _store(self, group: Group, step: Step, action: Action, lanes: Lanes) -> None:
        of = action.form.type
        assert action.address is not None
        accesses = self._accesses(group, step, group.address(action.address), lanes)
        for number, source in enumerate(action.sources):
            undefined = self._undefined(group, source, of.bits)
            self._stored(group, action, accesses, undefined, number, number * of.bytes)

    def _stored(
        self,
        group: Group,
        action: Action,
        accesses: Sequence[tuple[str, Addresses, Lanes]],
        undefined: Raw,
        source: int,
        distance: int,
    ) -> None:
        """Each lane stores a number of which these bits are undefined, `distance` bytes from its
        address; `source` is the operand."""
        for space, addresses, inside in accesses:
            if space == "global":
                self._use(group, action, USED_SOURCE + source, inside & (undefined != 0))
            else:
                self._note_kept(group, action, inside & (undefined != 0))
            for index, lane, owner in self._each(group, space, inside):
                address = int(addresses[index, lane]) + distance
                known = self._bytes(space, owner, address, undefined.itemsize)
                if known is None:
                    continue
                bits = ~np.ascontiguousarray(undefined[index, lane : lane + 1]).view(np.uint8)
                if space == "global":
                    known[:] = 1
                elif space == "local":
                    known[:] = bits
                else:
                    known[:] = 255
                    self._spoil(owner, address, bits)

    def _spoil(self, owner: int, address: int, bits: Bytes) -> None:
        """Shared memory is tracked in granules: one undefined bit makes a granule undefined."""
        for byte in np.flatnonzero(bits != 255).tolist():
            start = (address + byte) // self._granule * self._granule
            self._spaces["shared"][owner, start : start + self._granule] = 0

    def _copy(self, group: Group, step: Step, action: Action, lanes: Lanes) -> None:
        assert action.address is not None
        assert action.other_address is not None
        size = action.sources[0]
        assert isinstance(size, Immediate)
        to, start = group.address(action.address), group.address(action.other_address)
        length = np.full(lanes.shape, size.value, np.uint32)
        if step.sources:
            length = np.minimum(length, group.read(*step.sources[0]))
        reported: set[int] = set()
        entire = ((length == size.value) | (length == 0) | ~lanes).all(axis=1)
        for index, lane, owner in self._each(group, "shared", lanes):
            at = int(to[index, lane])
            self._spaces["shared"][owner, at : at + size.value] = 255
            source = int(start[index, lane])
            known = self._bytes("global", 0, source, int(length[index, lane]))
            if known is not None and not known.all() and entire[index] and index not in reported:
                reported.add(index)
                first = source + int(np.flatnonzero(known == 0)[0])
                self._read(group, action, index, lane, "global", first)

    def _update(self, group: Group, step: Step, action: Action, lanes: Lanes) -> None:
        of = action.form.type
        assert action.address is not None
        accesses = self._accesses(group, step, group.address(action.address), lanes)
        for space, addresses, inside in accesses:
            reported: set[int] = set()
            for index, lane, owner in self._each(group, space, inside):
                address = int(addresses[index, lane])
                known = self._bytes(space, owner, address, of.bytes)
                if known is None:
                    continue
                reads = action.number not in self._overwrites
                if reads and not known.all() and index not in reported:
                    reported.add(index)
                    first = address + int(np.flatnonzero(known == 0)[0])
                    self._read(group, action, index, lane, space, first)
                known[:] = 255 if space != "global" else 1
