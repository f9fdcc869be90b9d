"""Emits a set of deferred computations as one pass over the strips.

Lanes do not interact here, so eight of them at a time go through the whole computation, and most
values fit the processor's registers. Results are computed in groups, each its own LLVM block, which
keeps few values alive at once: a group of accumulators performs all of its multiply-adds before the
next group starts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Value, literal, vector
from gemmkit.emulator.codegen.layout import LANES, STRIP_LANES, STRIPS
from gemmkit.emulator.codegen.shared_segments import Parameters, UnknownCode
from gemmkit.emulator.codegen.values import LaneNumber, Location, Node, Result, Scalar, Slot

# Results per group: with eight accumulators, an operand and a scratch value, AVX2's sixteen
# registers suffice.
GROUP = 8
# Up to this many computations, unrolled code is faster than a loop over the strips.
UNROLL_LIMIT = 3


@dataclass(frozen=True, slots=True)
class Output:
    """A value to be computed and its destination: a slot, or None for a predicate.

    `kept` lanes (a predicate) of the slot's old content are preserved where it is set.
    """

    value: Location
    target: Slot | None
    only: Value | None = None


class Segment:
    """One pass over the strips that computes `outputs`."""

    def __init__(
        self, f: Function, outputs: Sequence[Output], *, hot: bool, compact: bool = False
    ) -> None:
        """`hot` code runs often: small computations are then unrolled. `compact` code calls a
        function for what several segments of the kernel compute."""
        self._f = f
        self._hot = hot
        self._compact = compact
        self._parameters: Parameters | None = None
        self._outputs = outputs
        self._groups = [outputs[at : at + GROUP] for at in range(0, len(outputs), GROUP)]
        self._computed: dict[Node, Sequence[Value]] = {}
        self._pinned: dict[Slot, Value] = {}
        self._loaded: dict[Slot, Value] = {}
        # What is emitted once per group: scalars in all lanes, and the strip's start in each area.
        self._splats: dict[tuple[str, int], Value] = {}
        self._starts: dict[tuple[str, int], Value] = {}
        self._strip: int | None = None
        self._index = Value("i64", "0")
        self._shift: Value | None = None
        self._plans: list[list[Node]] = []
        self._readers: dict[Slot, int] = {}
        self._plan()

    @property
    def nodes(self) -> list[Node]:
        """The computations that are emitted here."""
        return [node for plan in self._plans for node in plan]

    def _plan(self) -> None:
        """Find each group's computations, in program order, and the last group reading a slot."""
        seen: set[Node] = set()
        for number, group in enumerate(self._groups):
            plan: list[Node] = []
            work: list[Location] = [output.value for output in group]
            work += [output.target for output in group if output.target and output.only]
            while work:
                location = work.pop()
                if isinstance(location, Result) and location.stored is not None:
                    location = location.stored
                if isinstance(location, Slot):
                    self._readers[location] = number
                elif isinstance(location, Result) and location.node not in seen:
                    seen.add(location.node)
                    plan.append(location.node)
                    work += [source for source, _ in location.node.sources]
            self._plans.append(sorted(plan, key=lambda node: node.serial))

    def write(self) -> dict[int, Value]:
        """Emit the code; returns the lanes of each predicate among the outputs, by number."""
        predicates = [
            number for number, output in enumerate(self._outputs) if output.target is None
        ]
        stores = sum(output.target is not None for output in self._outputs)
        if self._hot and len(self.nodes) + stores <= UNROLL_LIMIT:
            return self._unrolled(predicates)
        if self._compact:
            with suppress(UnknownCode):
                return self._called(predicates)
        return self._looped(predicates)

    def _called(self, predicates: Sequence[int]) -> dict[int, Value]:
        """The loop in a function, which other segments that compute the same share."""
        f, parameters = self._f, Parameters()
        key = self._key(parameters)
        result = {0: "void", 1: "i32"}.get(len(predicates), f"[{len(predicates)} x i32]")
        name = f.module.segments.get(key)
        if name is None:
            name = f.module.segments[key] = f"segment{len(f.module.segments)}"
            self._parameters = parameters
            with f.module.function(name, result, parameters.names, inline=False) as self._f:
                found = self._looped(predicates)
                self._f.ret(self._gathered(result, [found[number] for number in predicates]))
            self._f, self._parameters = f, None
        given = [
            f.offset(Value("ptr", f"%{each.area}"), each.offset) if isinstance(each, Slot) else each
            for each in parameters.given
        ]
        returned = f.call(name, result, *given)
        if len(predicates) < 2:
            return dict.fromkeys(predicates, returned)
        return {
            number: f.value("i32", f"extractvalue {returned}, {place}")
            for place, number in enumerate(predicates)
        }

    def _gathered(self, result: str, values: Sequence[Value]) -> Value | None:
        """What a function returns: nothing, a value or several."""
        if len(values) < 2:
            return values[0] if values else None
        found = Value(result, "poison")
        for place, value in enumerate(values):
            found = self._f.value(result, f"insertvalue {found}, {value}, {place}")
        return found

    def _key(self, parameters: Parameters) -> Hashable:
        """What the code depends on, apart from parameters.

        Raises:
            UnknownCode: this cannot be told.
        """
        return tuple(
            [
                (
                    tuple([parameters.computation(node) for node in plan]),
                    tuple(
                        [
                            (
                                parameters.location(output.value),
                                output.value.bits,
                                output.target and parameters.location(output.target),
                                output.only and parameters.of(output.only).name,
                            )
                            for output in group
                        ]
                    ),
                )
                for plan, group in zip(self._plans, self._groups, strict=True)
            ]
        )

    def _unrolled(self, predicates: Sequence[int]) -> dict[int, Value]:
        found = {number: literal("i32", 0) for number in predicates}
        for strip in range(STRIPS):
            self._strip = strip
            self._shift = literal("i32", strip * STRIP_LANES)
            self._computed.clear()
            self._pinned.clear()
            for number, group in enumerate(self._groups):
                for location, bits in self._write_group(number, group).items():
                    found[location] = self._f.or_(found[location], bits)
        return found

    def _looped(self, predicates: Sequence[int]) -> dict[int, Value]:
        f = self._f
        head, after = f.name("strip"), f.name("done")
        nexts = [f.name("n") for _ in predicates]
        self._strip = None
        sums = {number: Value("i32", f"%{f.name('p')}") for number in predicates}
        f.emit(f"store volatile i64 0, {f.cell}, align 8")
        if predicates:
            before, last = f.name("segment"), f.name("turn")
            f.branch(before)
            f.label(before)
        f.branch(head)
        f.label(head)
        for number, name in zip(predicates, nexts, strict=True):
            f.emit(f"{sums[number].name} = phi i32 [0, %{before}], [%{name}, %{last}]")
        # The index is volatile, so that the compiler does not spend time on a loop of four
        # iterations.
        self._index = f.value("i64", f"load volatile i64, {f.cell}, align 8")
        self._shift = None
        found: dict[int, Value] = {}
        for number, group in enumerate(self._groups):
            if number:
                label = f.name("group")
                f.branch(label)
                f.label(label)
            found |= self._write_group(number, group)
        if predicates:
            f.branch(last)
            f.label(last)
        for number, name in zip(predicates, nexts, strict=True):
            f.emit(f"%{name} = or i32 {sums[number].name}, {found[number].name}")
        following = f.add(self._index, STRIP_LANES)
        f.emit(f"store volatile {following}, {f.cell}, align 8")
        f.branch_if(f.compare("ult", following, LANES), head, after)
        f.label(after)
        return {
            number: Value("i32", f"%{name}") for number, name in zip(predicates, nexts, strict=True)
        }

    def _write_group(self, number: int, group: Sequence[Output]) -> dict[int, Value]:
        """Compute a whole group, then store: a slot may be both read and written."""
        f = self._f
        self._loaded = dict(self._pinned)
        self._splats.clear()
        self._starts.clear()
        for node in self._plans[number]:
            operands = [self._value(source, bits) for source, bits in node.sources]
            self._computed[node] = node.emit(f, operands)
        values = []
        for output in group:
            value = self._value(output.value, output.value.bits)
            if output.only is not None and output.target is not None:
                bits = output.target.bits
                value = f.select(self._lanes(output.only), value, self._value(output.target, bits))
            values.append(value)
        for output in group:
            target = output.target
            if target is not None and self._readers.get(target, -1) > number:
                self._pinned[target] = self._value(target, target.bits)
        found = {}
        for location, (output, value) in enumerate(zip(group, values, strict=True)):
            if output.target is not None:
                f.store(value, self._address(output.target))
            else:
                byte = Value("i8", f.packed(value).name)
                found[number * GROUP + location] = f.shl(f.cast("zext", byte, "i32"), self._first)
        return found

    @property
    def _first(self) -> Value:
        """The strip's first lane, as i32."""
        if self._shift is None:
            self._shift = self._f.resize(self._index, 32)
        return self._shift

    def _address(self, slot: Slot) -> Value:
        f = self._f
        if self._parameters is not None:
            return f.element(self._parameters.of(slot), self._index, slot.bits)
        area, element = Value("ptr", f"%{slot.area}"), slot.bits // 8
        if self._strip is not None:
            return f.offset(area, slot.offset + self._strip * STRIP_LANES * element)
        key = slot.area, slot.bits
        start = self._starts.get(key)
        if start is None:
            start = self._starts[key] = f.element(area, self._index, slot.bits)
        return f.offset(start, slot.offset)

    def _lanes(self, lanes: Value) -> Value:
        f = self._f
        if self._parameters is not None:
            lanes = self._parameters.of(lanes)
        byte = f.resize(f.lshr(lanes, self._first), 8)
        return f.unpacked(byte)

    def _value(self, location: Location, bits: int) -> Value:
        """The strip's value of a location, resized."""
        f = self._f
        if isinstance(location, Result):
            if location.stored is not None:
                return self._value(location.stored, bits)
            value = self._computed[location.node][location.index]
        elif isinstance(location, Slot):
            if location not in self._loaded:
                self._loaded[location] = f.load(
                    vector(f"i{location.bits}"), self._address(location)
                )
            value = self._loaded[location]
        elif isinstance(location, Scalar):
            scalar = location.value
            if self._parameters is not None:
                scalar = self._parameters.of(scalar)
            if scalar.number is not None:
                return literal(vector(f"i{bits}"), scalar.number)
            splat = self._splats.get((scalar.name, bits))
            if splat is None:
                splat = self._splats[scalar.name, bits] = f.splat(f.resize(scalar, bits))
            return splat
        elif isinstance(location, LaneNumber):
            first = STRIP_LANES * (self._strip or 0)
            lanes = ", ".join(f"i32 {first + lane}" for lane in range(STRIP_LANES))
            value = Value(vector("i32"), f"<{lanes}>")
            if self._strip is None:
                value = f.add(f.splat(self._first), value)
        else:
            return self._lanes(location.value)
        return f.resize(value, bits)
