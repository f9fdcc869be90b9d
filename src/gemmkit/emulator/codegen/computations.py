"""Emits computations: at once with scalars, deferred otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.values import Emit, Lanes, Location, Node, Result, Scalar


class Computations:
    """Makes the locations of computed values, in the function `f`."""

    def __init__(self, f: Function) -> None:
        self.f = f
        self._serial = 0

    def inverted(self, predicate: Location) -> Location:
        """The complement of a predicate."""
        if isinstance(predicate, Scalar):
            return Scalar(self.f.not_(predicate.value))
        if isinstance(predicate, Lanes):
            return Lanes(self.f.not_(predicate.value))
        return self.node(lambda f, s: (f.not_(s[0]),), [(predicate, 1)], [1])[0]

    def node(
        self,
        emit: Emit,
        sources: Sequence[tuple[Location, int]],
        bits: Sequence[int],
    ) -> list[Result]:
        """Defer a computation; returns its results."""
        self._serial += 1
        node = Node(self._serial, emit, tuple(sources), tuple(bits))
        for source, _ in sources:
            if isinstance(source, Result):
                source.node.readers += 1
        return [Result(node, index) for index in range(len(bits))]

    def at_once(self, emit: Emit, sources: Sequence[tuple[Location, int]]) -> list[Scalar]:
        """Compute with scalars at once; returns the results."""
        values = [location.value for location, _ in sources if isinstance(location, Scalar)]
        return [Scalar(value) for value in emit(self.f, values)]

    def resized(self, value: Location, bits: int, *, signed: bool = False) -> Location:
        """A value in another width."""
        if value.bits == bits:
            return value
        if isinstance(value, Scalar):
            if value.value.number is not None and not signed:
                return Scalar(literal(f"i{bits}", value.value.number))
            return Scalar(self.f.resize(value.value, bits, signed=signed))

        def resize(f: Function, s: Sequence[Value]) -> Sequence[Value]:
            return (f.resize(s[0], bits, signed=signed),)

        return self.node(resize, [(value, value.bits)], [bits])[0]
