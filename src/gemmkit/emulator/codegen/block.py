"""Emits the code of one basic block: registers, deferred computations, and when they are emitted.

Per-lane computations are deferred until an operation needs their result in memory: a memory access,
a vote, the end of the block. This collects them into few, long segments, and results that nothing
reads are not computed. Scalar computations are emitted at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.computations import Computations
from gemmkit.emulator.codegen.context import CodegenContext, T, W
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.operands import Action, unsupported
from gemmkit.emulator.codegen.ranks import own_window
from gemmkit.emulator.codegen.segment import Output, Segment
from gemmkit.emulator.codegen.specials import LANE_MASKS, lane_mask, special
from gemmkit.emulator.codegen.values import (
    LaneNumber,
    Lanes,
    Location,
    Result,
    Scalar,
    Scratch,
    Slot,
    with_shared,
)
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import (
    Guard,
    Immediate,
    Negated,
    Register,
    Source,
    Special,
)

# Bytes of scratch in use above which deferred work is emitted, so that its operands are still
# cached.
SCRATCH_LIMIT = 20480


class BlockWriter(Computations):
    """Emits the actions of one block, in order; `mask` holds the active lanes."""

    def __init__(self, context: CodegenContext, number: int, mask: Value, scratch: Scratch) -> None:
        super().__init__(context.f)
        self.context = context
        self.number = number
        self.mask = mask
        self.scratch = scratch
        self.block = context.analysis.flow.blocks[number]
        self._kept = context.analysis.shared_in(number)
        self._live_out = context.analysis.live_out(number)
        self._hot = number in context.analysis.in_loops and not context.compact
        self._locations: dict[Register, Location] = {}
        self._original: dict[Register, Location] = {}
        # The number of the instruction being emitted.
        self.at = self.block.start
        self._scratch_limit = SCRATCH_LIMIT
        # Results of loads that were performed early, by instruction number.
        self.loaded: dict[int, Slot] = {}
        # The patterns looked up in this block, with their base.
        self.patterns: dict[
            tuple[Location | None, Location | None, bool, int], tuple[Value, Value]
        ] = {}
        # If undefined bits are tracked, for the current instruction: the defined bits of its
        # results, its predicate, and where the predicate is defined.
        self.results: dict[Register, Location] = {}
        self.chosen: Location | None = None
        self.decided: Location = Scalar(literal("i1", 1))
        self._last_read = self._find_last_reads()
        scratch.keep_only([])

    def _find_last_reads(self) -> Mapping[Register, int]:
        last: dict[Register, int] = {}
        analysis = self.context.analysis
        for location in range(self.block.start, self.block.end):
            for register in analysis.read_by[location]:
                last[register] = location
            if analysis.actions[location].guard is not None:
                # Lanes in which the guard does not hold keep the old values.
                last |= dict.fromkeys(analysis.written_by[location], location)
        return last

    # Registers

    def location(self, register: Register) -> Location:
        """Where a register's value is."""
        found = self._locations.get(register)
        if found is None:
            found = self._locations[register] = self._original[register] = self._initial(register)
        return found

    def _initial(self, register: Register) -> Location:
        f, map_ = self.f, self.context.registers
        bits = TYPES[register.type].bits
        if self.context.analysis.bit(register) & self.context.analysis.scalar:
            if bits == 1:
                return Scalar(f.resize(f.load("i8", W, map_.scalar(register)), 1))
            return Scalar(f.load(f"i{bits}", W, map_.scalar(register)))
        if bits == 1:
            return Lanes(f.load("i32", W, map_.predicate(register)))
        return map_.slot(register)

    def is_scalar(self, register: Register) -> bool:
        """Whether one value serves all lanes."""
        return bool(self.context.analysis.bit(register) & self.context.analysis.scalar)

    def source(self, operand: Source, bits: int) -> Location:
        """The value of an operand."""
        if isinstance(operand, Register):
            return self.location(operand)
        if isinstance(operand, Immediate):
            return Scalar(literal(f"i{bits}", operand.value))
        if isinstance(operand, Negated):
            return self.inverted(self.location(operand.register))
        if isinstance(operand, Special):
            return self._special(operand.name)
        found = self.symbol(operand.name, bits)
        if self.context.shows_ranks and operand.name in self.context.analysis.flow.kernel.shared:
            return Scalar(self.f.add(found.value, own_window(self.f, bits)))
        return found

    def symbol(self, name: str, bits: int) -> Scalar:
        """The address of a variable in its own space, a relative one in shared memory.

        Raises:
            UnsupportedInstruction: there is no such variable.
        """
        found = self.context.symbols(name)
        if found is None:
            analysis = self.context.analysis
            instruction = analysis.actions[self.at].instruction
            raise unsupported(instruction, f"the address of '{name}' is not known")
        if found.number is not None:
            return Scalar(literal(f"i{bits}", found.number))
        return Scalar(self.f.resize(found, bits))

    def _special(self, name: str) -> Location:
        if name not in LANE_MASKS:
            return special(self.f, name)

        def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
            return (lane_mask(f, name, s[0]),)

        return self.node(emit, [(LaneNumber(), 32)], [32])[0]

    def put(self, action: Action, values: Sequence[Location], *, signed: bool = False) -> None:
        """Assign values to an action's destinations, in lanes where its guard holds.

        A wider register is zero-extended or sign-extended. The guard may be among the destinations.
        """
        chosen = None if action.guard is None else self.guard_location(action.guard)
        for register, value in zip(action.dests, values, strict=False):
            if register is not None:
                self._locations[register] = self._merged(register, value, chosen, signed)

    def keep(self, register: Register, value: Location, chosen: Location | None) -> None:
        """Assign a value of a register's width, in lanes where a predicate holds."""
        self._locations[register] = self._merged(register, value, chosen, False)

    def _spread(self, predicate: Scalar) -> Lanes:
        if predicate.value.number is not None:
            return Lanes(literal("i32", -predicate.value.number))
        return Lanes(self.f.resize(predicate.value, 32, signed=True))

    def _merged(
        self, register: Register, value: Location, chosen: Location | None, signed: bool
    ) -> Location:
        """The register's new value; it keeps the old one where `chosen` does not hold."""
        bits = TYPES[register.type].bits
        value = self.resized(value, bits, signed=signed)
        if chosen is None:
            spreads = bits == 1 and isinstance(value, Scalar) and not self.is_scalar(register)
            return Lanes(self.lanes(value)) if spreads else value
        old = self.location(register)
        if all(isinstance(each, Scalar) for each in (chosen, value, old)):
            return self.at_once(arithmetic.merge, [(chosen, 1), (value, bits), (old, bits)])[0]
        if bits == 1 and not any(isinstance(each, Result) for each in (chosen, value, old)):
            f = self.f
            c, new, kept = (self.lanes(each) for each in (chosen, value, old))
            return Lanes(f.or_(f.and_(c, new), f.and_(f.not_(c), kept)))
        return self.node(arithmetic.merge, [(chosen, 1), (value, bits), (old, bits)], [bits])[0]

    def guard_location(self, guard: Guard) -> Location:
        """The predicate of a guard."""
        predicate = self.location(guard.register)
        return self.inverted(predicate) if guard.negated else predicate

    def lanes(self, predicate: Location) -> Value:
        """A predicate as one bit per lane, inactive lanes included."""
        if isinstance(predicate, Scalar):
            return self._spread(predicate).value
        if isinstance(predicate, Lanes):
            return predicate.value
        self.materialise([predicate])
        kept = predicate.stored if isinstance(predicate, Result) else None
        assert isinstance(kept, Lanes)
        return kept.value

    def active(self, guard: Guard | None) -> Value:
        """The lanes in which an instruction under this guard acts."""
        if guard is None:
            return self.mask
        return self.f.and_(self.mask, self.lanes(self.guard_location(guard)))

    # Memory

    def materialise(self, locations: Sequence[Location]) -> None:
        """Emit deferred computations whose results are needed now; vectors go to slots."""
        wanted = [
            location
            for location in dict.fromkeys(locations)
            if isinstance(location, Result) and location.stored is None
        ]
        if wanted:
            held = {
                location.node
                for location in self._needed().values()
                if isinstance(location, Result)
            }
            self._write(with_shared(wanted, held))

    def _write(self, wanted: Sequence[Result]) -> None:
        outputs = []
        for result in {(each.node, each.index): each for each in wanted}.values():
            target = None if result.bits == 1 else self.scratch.take(result.bits)
            outputs.append(Output(result, target))
        segment = Segment(self.f, outputs, hot=self._hot, compact=self.context.compact)
        predicates = segment.write()
        self._account(segment)
        for number, output in enumerate(outputs):
            assert isinstance(output.value, Result)
            kept = output.target if output.target is not None else Lanes(predicates[number])
            output.value.node.stored[output.value.index] = kept

    def _account(self, segment: Segment) -> None:
        for node in segment.nodes:
            for source, _ in node.sources:
                if isinstance(source, Result):
                    source.node.served += 1

    def in_memory(self, location: Location, bits: int) -> Slot:
        """A vector of that width, in memory."""
        location = self.resized(location, bits)
        if isinstance(location, Slot):
            return location
        if not isinstance(location, Result):
            location = self.node(lambda _, s: s[:1], [(location, bits)], [bits])[0]
        self.materialise([location])
        kept = location.stored
        assert isinstance(kept, Slot)
        return kept

    def pointer(self, slot: Slot) -> Value:
        """The address of a slot's first strip."""
        return self.f.offset(T if slot.area == "t" else W, slot.offset)

    def destination(self, action: Action, register: Register | None, bits: int) -> Slot:
        """A slot for the result of a memory instruction, to be passed to `assign` afterward.

        It is the register's own slot if the old value is not needed any more.
        """
        analysis = self.context.analysis
        if (
            register is not None
            and action.guard is None
            and register not in self._original
            and TYPES[register.type].bits == bits
            and analysis.bit(register) & self._live_out & ~self._kept
            and not self._written_later(register, action.number)
        ):
            slot = self.context.registers.slot(register)
            self._original[register] = slot
            return slot
        return self.scratch.take(bits)

    def make_room(self) -> None:
        """Emit deferred work before a memory instruction takes scratch, if too much is in use."""
        if self.scratch.in_use > self._scratch_limit:
            self._write_pending()
            self._scratch_limit = max(SCRATCH_LIMIT, 2 * self.scratch.in_use)

    def _written_later(self, register: Register, number: int) -> bool:
        bit = self.context.analysis.bit(register)
        return any(
            self.context.analysis.writes[location] & bit
            for location in range(number + 1, self.block.end)
        )

    def _needed(self) -> dict[Register, Location]:
        """Registers that the rest of this block or its successors read."""
        return {
            register: location
            for register, location in self._locations.items()
            if self._last_read.get(register, -1) >= self.at
            or self.context.analysis.bit(register) & self._live_out
        }

    def _write_pending(self) -> None:
        """Move every value that is still needed to memory, and free all other scratch."""
        needed = self._needed()
        self.materialise(list(needed.values()))
        self._locations = {
            register: (location.stored or location) if isinstance(location, Result) else location
            for register, location in needed.items()
        }
        kept = [location for location in self._locations.values() if isinstance(location, Slot)]
        self.scratch.keep_only([*kept, *self.loaded.values()])

    # The end

    def finish(self, condition: Location | None = None) -> Value | None:
        """Emit what is deferred and live, and store registers where other blocks expect them.

        Returns the lanes of `condition` (the predicate of a branch), if one is given and is not a
        scalar.
        """
        vectors, predicates = self._live_values()
        self._write_with(vectors, [*predicates.values(), condition])
        f, map_ = self.f, self.context.registers
        for register, location in predicates.items():
            lanes = self.lanes(location)
            if self.context.analysis.bit(register) & self._kept:
                old = f.load("i32", W, map_.predicate(register))
                lanes = f.or_(f.and_(lanes, self.mask), f.and_(old, f.not_(self.mask)))
            f.store(lanes, W, map_.predicate(register))
        if condition is None or isinstance(condition, Scalar):
            return None
        return self.lanes(condition)

    def _live_values(self) -> tuple[list[Output], dict[Register, Location]]:
        """The live vectors and predicates to be stored; live scalars are stored at once."""
        analysis, map_ = self.context.analysis, self.context.registers
        outputs: list[Output] = []
        predicates: dict[Register, Location] = {}
        for register, location in self._locations.items():
            bit = analysis.bit(register)
            if location is self._original.get(register) or not bit & self._live_out:
                continue
            if analysis.scalar & bit:
                assert isinstance(location, Scalar)
                whole = self.f.resize(location.value, max(location.bits, 8))
                self.f.store(whole, W, map_.scalar(register))
            elif TYPES[register.type].bits == 1:
                predicates[register] = location
            elif location != map_.slot(register):
                only = self.mask if bit & self._kept else None
                outputs.append(Output(location, map_.slot(register), only))
        return outputs, predicates

    def _write_with(self, outputs: list[Output], predicates: Sequence[Location | None]) -> None:
        """Emit vectors together with the predicates that are not computed yet."""
        pending = [
            location
            for location in dict.fromkeys(predicates)
            if isinstance(location, Result) and location.stored is None
        ]
        everything = [*outputs, *(Output(location, None) for location in pending)]
        if everything:
            compact = self.context.compact
            found = Segment(self.f, everything, hot=self._hot, compact=compact).write()
            for number, location in enumerate(pending, len(outputs)):
                location.node.stored[location.index] = Lanes(found[number])
