"""`RegisterDefinedness`: which bits of registers are defined, and where undefined ones are used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmkit.emulator.codegen.operands import (
    Action,
    extends_sign,
    register_of,
    result_widths,
    source_widths,
)
from gemmkit.emulator.codegen.shadow_layout import USED_ADDRESS, USED_GUARD, USED_SOURCE
from gemmkit.emulator.codegen.tracking import used_from
from gemmkit.emulator.isa.definedness import flow_of
from gemmkit.emulator.isa.matrix_access import addressing_lanes
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.semantics.raw import Mask, Raw
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.oracle.bit_rules import bitwise, moved, whole
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Group
from gemmkit.emulator.oracle.memory import Lanes
from gemmkit.emulator.ptx.module import Immediate, Register, Source
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.undefined import UndefinedUses, Use

_MOVES = ("move", "call_parameter", "load_parameter")


class RegisterDefinedness:
    """The registers of one chunk; findings go to `collection`."""

    def __init__(self, chunk: Chunk, names: Names, collection: Collection) -> None:
        self._chunk, self._names, self._collection = chunk, names, collection
        self._uses = UndefinedUses(names, collection)
        self._registers: dict[Register, Raw] = {}

    def _defined(self, register: Register) -> Raw:
        if register not in self._registers:
            bits = TYPES[register.type].bits
            kind = np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
            self._registers[register] = np.zeros((self._chunk.count, WARP), kind)
        return self._registers[register]

    def _undefined(self, group: Group, source: Source, bits: int) -> Raw:
        """The undefined bits of an operand in the width in which it is read."""
        register = register_of(source)
        kind = np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
        if register is None:
            return np.zeros((len(group.rows), WARP), kind)
        return (~group.take(self._defined(register))).astype(kind)

    def _some(self, group: Group, register: Register) -> Mask:
        """Lanes in which a bit of a register is undefined."""
        found: Mask = ~group.take(self._defined(register)) != 0
        return found

    def _set(
        self,
        group: Group,
        action: Action,
        undefined: Sequence[Raw | None],
        lanes: Lanes,
        active: Lanes,
    ) -> None:
        """Record which bits of an instruction's results are undefined, none by default."""
        guard = action.guard
        unsure = self._some(group, guard.register) if guard and action.pure else None
        for register, bits in zip(action.dests, undefined, strict=False):
            if register is None:
                continue
            target = self._defined(register)
            value = np.zeros((len(group.rows), WARP), target.dtype)
            if bits is not None:
                if extends_sign(action) and target.dtype.itemsize > bits.dtype.itemsize:
                    bits = bits.view(f"i{bits.dtype.itemsize}")
                value = np.broadcast_to(bits.astype(target.dtype), value.shape)
            kept = np.where(lanes, ~value, target[group.rows])
            if unsure is not None:
                kept = np.where(active & unsure, np.zeros_like(kept), kept)
            target[group.rows] = kept

    def _computed(self, group: Group, action: Action) -> list[Raw | None]:
        widths, results = source_widths(action), result_widths(action)
        undefined = [
            self._undefined(group, source, bits)
            for source, bits in zip(action.sources, widths, strict=True)
        ]
        if action.operation in _MOVES:
            return moved(undefined, widths, results)
        flow, form = flow_of(action.form), action.form
        if flow.kind == "whole":
            return whole(undefined, results, flow.part)
        if flow.kind == "packed":
            high, low = (np.where(bits != 0, 0xFFFF, 0) for bits in undefined)
            return [(high << 16 | low).astype(np.uint32)]
        values: list[Raw | int] = [
            source.value
            if isinstance(source, Immediate) and action.operation == "logic3" and index == 3
            else group.read(source, TYPES["pred" if bits == 1 else f"b{bits}"])
            for index, (source, bits) in enumerate(zip(action.sources, widths, strict=True))
        ]
        if flow.kind == "bitwise":
            return [bitwise(lambda each: evaluate(form, each)[0], values, undefined)]
        operands = [
            undefined[index] if index in flow.data else value for index, value in enumerate(values)
        ]
        (found,) = evaluate(form, operands)
        for index, bits in enumerate(undefined):
            if index not in flow.data:
                found = np.where(bits != 0, ~np.zeros_like(found), found)
        return [found]

    # Uses

    def _use(self, group: Group, action: Action, operand: int, lanes: Mask) -> None:
        warps = self._chunk.warps_per_block
        for index in np.flatnonzero(lanes.any(axis=1)).tolist():
            row = int(group.rows[index])
            mask = int((lanes[index].astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum())
            block = int(self._chunk.block[row, 0])
            self._uses.use(Use(action.number, operand, block, row % warps, mask))

    def _look_at_uses(self, group: Group, action: Action, lanes: Lanes, active: Lanes) -> None:
        guard = action.guard
        if guard is not None:
            unsure = active & self._some(group, guard.register)
            self._use(group, action, USED_GUARD, unsure)
        if action.operation != "no_operation":
            given = lanes & (addressing_lanes(action.form) >> np.arange(WARP) & 1 == 1)
            for index, address in enumerate((action.address, action.other_address)):
                if address is not None and isinstance(address.base, Register):
                    found = given & self._some(group, address.base)
                    self._use(group, action, USED_ADDRESS + index, found)
        for index in range(used_from(action), len(action.sources)):
            register = register_of(action.sources[index])
            if register is not None:
                self._use(group, action, USED_SOURCE + index, lanes & self._some(group, register))

    def _note_kept(self, group: Group, action: Action, lanes: Mask) -> None:
        for index in np.flatnonzero(lanes.any(axis=1)).tolist():
            self._uses.keep(action.number, int(self._chunk.block[group.rows[index], 0]))
