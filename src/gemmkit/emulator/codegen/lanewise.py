"""Translates instructions that compute lane by lane; scalar results at once, vector results
deferred."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.ir_values import like, mangled
from gemmkit.emulator.codegen.layout import WINDOWS, WORKER
from gemmkit.emulator.codegen.operands import Action, extends_sign, result_widths, source_widths
from gemmkit.emulator.codegen.values import Lanes, Location, Result, Scalar, root_of
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.ptx.module import Immediate

# Operations whose code is long, and which kernels have many of.
_LONG = frozenset(["convert_narrow", "convert_pack", "half", "half_fma", "half_extreme"])

Sources = list[tuple[Location, int]]


def compute(b: BlockWriter, action: Action) -> None:
    """Translate an instruction that has native code."""
    widths = source_widths(action)
    sources = [
        (b.resized(b.source(source, bits), bits), bits)
        for source, bits in zip(action.sources, widths, strict=True)
    ]
    b.put(action, _results(b, action, sources), signed=extends_sign(action))


def _results(b: BlockWriter, action: Action, sources: Sources) -> Sequence[Location]:
    form, operation, widths = action.form, action.operation, result_widths(action)
    if operation in ("move", "call_parameter"):
        return _moved(b, action, sources, widths)
    if operation == "convert_address":
        return [_converted(b, action, sources[0][0])]
    if operation == "load_parameter":
        return [_parameter(b, action, location) for location in range(len(widths))]
    locations = [location for location, _ in sources]
    emit = partial(_emit, form)
    if b.context.compact and form.operation in _LONG:
        emit = partial(_emit_shared, form, widths[0])
    if all(isinstance(location, Scalar) for location in locations):
        return b.at_once(emit, sources)
    predicates = [bits for _, bits in sources] + [*widths] == [1] * (len(sources) + 1)
    if predicates and all(isinstance(location, (Scalar, Lanes)) for location in locations):
        return [Lanes(each) for each in emit(b.f, [b.lanes(location) for location in locations])]
    if operation == "integer" and form["O"] in ("add", "sub"):
        moved = _distance(b, form["O"], locations, widths[0])
        if moved is not None:
            return [moved]
    return b.node(emit, sources, widths)


def _moved(
    b: BlockWriter, action: Action, sources: Sources, widths: Sequence[int]
) -> Sequence[Location]:
    """`mov`, which also joins registers into one or splits one."""
    bits = action.form.type.bits
    if len(sources) > 1 and len(widths) == 1:
        emit = partial(_pack, bits)
    elif len(widths) > 1 and len(sources) == 1:
        emit = partial(_unpack, bits, len(widths))
    else:
        return [location for location, _ in sources]
    if all(isinstance(location, Scalar) for location, _ in sources):
        return b.at_once(emit, sources)
    return b.node(emit, sources, widths)


def _distance(
    b: BlockWriter, operation: str, locations: Sequence[Location], bits: int
) -> Result | None:
    """The sum of a vector and scalars, with both kept apart so that addresses can be compared."""
    vectors = [location for location in locations if not isinstance(location, Scalar)]
    if len(vectors) != 1 or (operation == "sub" and vectors[0] is not locations[0]):
        return None
    root, before = root_of(vectors[0])
    if root is None:
        return None
    scalar = next(location.value for location in locations if isinstance(location, Scalar))
    amount = b.f.sub(literal(scalar.type, 0), scalar) if operation == "sub" else scalar
    total = amount if before is None else b.f.add(before, amount)
    sources: Sources = [(root, bits), (Scalar(total), bits)]
    node = b.node(lambda f, s: (f.add(s[0], s[1]),), sources, [bits])[0].node
    return Result(node, 0, root, total)


def _converted(b: BlockWriter, action: Action, location: Location) -> Location:
    """Conversion between addresses of a state space and generic addresses."""
    window, bits = WINDOWS.get(action.form["S"]), action.form.type.bits
    if window is None:
        return location
    start = Scalar(literal(f"i{bits}", window))
    operation = "sub" if action.form["D"] == "to" else "add"
    moved = _distance(b, operation, [location, start], bits)
    if moved is not None:
        return moved
    sources: Sources = [(location, bits), (start, bits)]

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.binary(operation, s[0], s[1]),)

    if isinstance(location, Scalar):
        return b.at_once(emit, sources)[0]
    return b.node(emit, sources, [bits])[0]


def _parameter(b: BlockWriter, action: Action, location: int) -> Scalar:
    start = action.sources[location]
    assert isinstance(start, Immediate)
    parameters = b.f.load("ptr", C, WORKER["parameters"])
    return Scalar(b.f.load(f"i{action.form.type.bits}", parameters, start.value))


def _emit(form: Form, f: Function, sources: Sequence[Value]) -> Sequence[Value]:
    return arithmetic.emit(f, form, sources)


def _emit_shared(form: Form, bits: int, f: Function, sources: Sequence[Value]) -> Sequence[Value]:
    """The same by a function, for one number or for a strip of them."""

    def body(f: Function, s: Sequence[Value]) -> Value:
        return arithmetic.emit(f, form, s)[0]

    name = f"{form.opcode}.{mangled(sources[0].type)}"
    return (f.shared(name, like(sources[0], f"i{bits}"), body, *sources),)


def _pack(bits: int, f: Function, sources: Sequence[Value]) -> Sequence[Value]:
    return (arithmetic.pack(f, bits, sources),)


def _unpack(bits: int, count: int, f: Function, sources: Sequence[Value]) -> Sequence[Value]:
    return arithmetic.unpack(f, sources[0], bits, count)
