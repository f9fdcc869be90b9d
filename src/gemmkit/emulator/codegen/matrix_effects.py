"""Emits instructions that move matrices: `ldmatrix`, `stmatrix`, `movmatrix`, loads, stores and
products of `wmma`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen import arithmetic, sanitizer_calls, undefined, undefined_matrices
from gemmkit.emulator.codegen.addresses import (
    base_of,
    guard_key,
    is_narrow,
    own_base,
    pattern_at,
    space_of,
)
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.operands import Action, source_widths
from gemmkit.emulator.codegen.runtime import matrix_moves
from gemmkit.emulator.codegen.runtime.matrices import function_of
from gemmkit.emulator.codegen.values import LaneNumber, Location, Scalar, Slot
from gemmkit.emulator.isa.cluster import reaches_peers
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.fragment_products import products, sums_type
from gemmkit.emulator.isa.fragments import conversion, product_form
from gemmkit.emulator.isa.matrix_access import (
    ALL_LANES,
    Coordinate,
    Piece,
    copies,
    default_stride,
    element_bytes,
    is_fragment,
    pieces,
    registers_of,
)

_HALF = 16


def load(b: BlockWriter, action: Action, lanes: Value) -> None:
    """A load of a matrix in these lanes."""
    sanitizer_calls.whole_warp(b, action, lanes)
    parts: list[tuple[Piece, list[Slot]]] = []
    known: list[tuple[Piece, list[Slot]]] = []
    for piece in pieces(action.form):
        space, arguments = _located(b, action, piece, lanes)
        slots = [b.scratch.take(max(piece.bits, 32)) for _ in range(piece.count)]
        name = f"load_{space}_{piece.bits}x{piece.count}"
        data = [b.pointer(slot) for slot in slots]
        b.f.runtime(b.context.access(name), "void", *arguments, *data)
        parts.append((piece, slots))
        if any(register in b.context.shadows for register in action.dests):
            known.append((piece, undefined_matrices.words_loaded(b, space, arguments, piece)))
    order = copies(action.form)
    values = _assembled(b, parts)
    if known:
        undefined_matrices.assign(b, action, [_assembled(b, known)[number] for number in order])
    b.put(action, [values[number] for number in order])


def store(b: BlockWriter, action: Action, lanes: Value) -> None:
    """A store of a matrix in these lanes."""
    sanitizer_calls.whole_warp(b, action, lanes)
    width = registers_of(action.form)
    bits = source_widths(action)[0]
    values = [b.in_memory(b.source(each, bits), bits) for each in action.sources[:width]]
    shadows = undefined_matrices.held(b, action, bits, width)
    for piece in pieces(action.form):
        words = _taken_apart(b, piece, values)
        space, arguments = _located(b, action, piece, lanes)
        name = f"store_{space}_{piece.bits}x{piece.count}"
        data = [b.pointer(slot) for slot in words]
        b.f.runtime(b.context.access(name), "void", *arguments, *data)
        if shadows is not None:
            defined = _taken_apart(b, piece, shadows)
            undefined_matrices.words_stored(b, action, space, arguments, piece, defined)


def transpose(b: BlockWriter, action: Action, lanes: Value) -> None:
    """`movmatrix`."""
    sanitizer_calls.whole_warp(b, action, lanes)
    slot = b.in_memory(b.source(action.sources[0], 32), 32)
    shadows = undefined_matrices.held(b, action, 32, 1)
    if shadows is not None:
        undefined_matrices.assign(b, action, [_transposed(b, shadows[0])])
    b.put(action, [_transposed(b, slot)])


def multiply(b: BlockWriter, action: Action, lanes: Value) -> None:
    """`wmma.mma`, as several `mma.sync`."""
    sanitizer_calls.whole_warp(b, action, lanes)
    form = action.form
    sources = zip(action.sources, source_widths(action), strict=True)
    slots = [b.in_memory(b.source(source, bits), bits) for source, bits in sources]
    a, others = form.operands[1].count, form.operands[1].count + form.operands[2].count
    factors: Mapping[str, Sequence[Slot]] = {"a": slots[:a], "b": slots[a:others]}
    sums = slots[others:]
    single = sums_type(form) == "f32"
    if single and form.modifiers.get("C") == "f16":
        sums = [half for slot in sums for half in _widened(b, slot)]
    for each in products(form):
        (left, rows), (right, columns) = each.left, each.right
        operands = [factors[left][number] for number in rows]
        operands += [factors[right][number] for number in columns]
        operands += [sums[number] for number in each.sums]
        results = [b.scratch.take(sums[number].bits) for number in each.sums]
        multiply_into(b, product_form(each.opcode), results, operands)
        for number, result in zip(each.sums, results, strict=True):
            sums[number] = result
    found: Sequence[Location] = sums
    if single and form.modifiers.get("D") == "f16":
        pairs = zip(sums[::2], sums[1::2], strict=True)
        found = [_narrowed(b, low, high) for low, high in pairs]
    undefined.multiplied(b, action)
    b.put(action, found)


def multiply_into(
    b: BlockWriter, form: Form, results: Sequence[Slot], operands: Sequence[Slot]
) -> None:
    """The product of one `mma.sync`."""
    pointers = (b.pointer(each) for each in (*results, *operands))
    capability = b.context.analysis.flow.kernel.capability
    b.f.runtime(function_of(form, capability), "void", *pointers)


# Addresses


def _located(b: BlockWriter, action: Action, piece: Piece, lanes: Value) -> tuple[str, list[Value]]:
    """The space of a piece, and the first arguments of the function that performs it."""
    assert action.address is not None
    f, space, key = b.f, space_of(action), guard_key(b, action)
    bits = 32 if is_narrow(action) else 64
    location = base_of(b, action.address, bits, peers=reaches_peers(action.form))
    if piece.line is not None and piece.along is not None:
        location = _element(b, action, piece.line, piece.along, location, bits)
    acting = f.and_(lanes, piece.lanes) if piece.lanes != ALL_LANES else lanes
    pattern, base = pattern_at(b, action, location, bits, acting, key, piece.lanes)
    if action.address.offset:
        base = f.add(base, action.address.offset)
    site = f.offset(C, b.context.areas.site(action.number))
    here = [C, W] if space in ("local", "generic") else [C]
    base = own_base(b, action, action.address, base, bits)
    return space, [*here, site, pattern, f.resize(base, 64)]


def _element(
    b: BlockWriter,
    action: Action,
    line: Coordinate,
    along: Coordinate,
    start: Location,
    bits: int,
) -> Location:
    """The addresses of the lanes' elements; the matrix begins at `start`."""
    form = action.form
    given = action.sources[registers_of(form) if form.operation == "store" else 0 :]
    stride: Location = Scalar(literal("i32", default_stride(form)))
    if is_fragment(form) and given:
        stride = b.source(given[0], 32)

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        first, step, lane = s
        lines, within = (_coordinate(f, each, lane) for each in (line, along))
        elements = f.add(f.binary("mul", lines, step), within)
        return (f.add(first, _times(f, elements, element_bytes(form))),)

    lane = b.node(lambda f, s: (f.resize(s[0], bits),), [(LaneNumber(), 32)], [bits])[0]
    return b.node(emit, [(start, bits), (b.resized(stride, bits), bits), (lane, bits)], [bits])[0]


def _coordinate(f: Function, coordinate: Coordinate, lane: Value) -> Value:
    found: Value | None = None
    for bit, count, weight in _fields(coordinate.weights):
        field = f.and_(f.lshr(lane, bit) if bit else lane, (1 << count) - 1)
        part = _times(f, field, weight)
        found = part if found is None else f.add(found, part)
    if found is None:
        return literal(lane.type, coordinate.start)
    return f.add(found, coordinate.start) if coordinate.start else found


def _fields(weights: Sequence[int]) -> list[tuple[int, int, int]]:
    """The bits of a lane's number that count together, as (first, how many, weight of the first):
    each counts twice as much as the one before it."""
    found: list[tuple[int, int, int]] = []
    for bit, weight in enumerate(weights):
        if not weight:
            continue
        if found:
            first, count, least = found[-1]
            if first + count == bit and least << count == weight:
                found[-1] = first, count + 1, least
                continue
        found.append((bit, 1, weight))
    return found


def _times(f: Function, a: Value, factor: int) -> Value:
    """A product with a constant; vectors of 64 bits are shifted in one instruction."""
    if factor & (factor - 1):
        return f.binary("mul", a, factor)
    return f.shl(a, factor.bit_length() - 1) if factor > 1 else a


# Arrangements


def _assembled(b: BlockWriter, parts: Sequence[tuple[Piece, list[Slot]]]) -> list[Location]:
    """The registers of a fragment from what the lanes loaded, piece by piece."""
    found: dict[int, Location] = {}
    for piece, slots in parts:
        values: list[Location] = list(slots)
        if piece.by_rows:
            values = list(_distributed(b, piece, slots))
        elif piece.arrange == "transposed":
            values = [_transposed(b, slots[0])]
        elif piece.arrange == "byte":
            (register,) = piece.registers
            values = [_with_byte(b, found.get(register), slots[0], 8 * piece.place)]
        found |= zip(piece.registers, values, strict=True)
    return [found[number] for number in sorted(found)]


def _distributed(b: BlockWriter, piece: Piece, words: Sequence[Slot]) -> list[Slot]:
    matrices = len(piece.registers)
    results = [b.scratch.take(32) for _ in range(matrices)]
    name = matrix_moves.distribute(matrices, transposed=piece.arrange == "columns")
    b.f.runtime(name, "void", *(b.pointer(each) for each in (*results, *words)))
    return results


def _transposed(b: BlockWriter, register: Slot) -> Slot:
    result = b.scratch.take(32)
    b.f.runtime(matrix_moves.TRANSPOSE, "void", b.pointer(result), b.pointer(register))
    return result


def _with_byte(b: BlockWriter, before: Location | None, byte: Slot, shift: int) -> Location:
    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        moved = f.shl(f.and_(s[0], 0xFF), shift) if shift else f.and_(s[0], 0xFF)
        return (f.or_(moved, s[1]) if len(s) > 1 else moved,)

    sources: list[tuple[Location, int]] = [(byte, 32)]
    sources += [(before, 32)] if before is not None else []
    return b.node(emit, sources, [32])[0]


def _taken_apart(b: BlockWriter, piece: Piece, registers: Sequence[Slot]) -> list[Slot]:
    """What the lanes store in a piece, from all registers of a fragment."""
    values = [registers[number] for number in piece.registers]
    if piece.arrange == "transposed":
        return [_transposed(b, values[0])]
    if not piece.by_rows:
        return values
    words = [b.scratch.take(32) for _ in range(piece.count)]
    name = matrix_moves.collect(len(values), transposed=piece.arrange == "columns")
    b.f.runtime(name, "void", *(b.pointer(each) for each in (*words, *values)))
    return words


def _widened(b: BlockWriter, pair: Slot) -> list[Slot]:
    """The two fp16 numbers of a register as fp32."""

    def emit(shift: int) -> Callable[[Function, Sequence[Value]], Sequence[Value]]:
        def halves(f: Function, s: Sequence[Value]) -> Sequence[Value]:
            half = f.resize(f.lshr(s[0], shift) if shift else s[0], _HALF)
            return arithmetic.emit(f, conversion(narrow=False), [half])

        return halves

    return [b.in_memory(b.node(emit(shift), [(pair, 32)], [32])[0], 32) for shift in (0, _HALF)]


def _narrowed(b: BlockWriter, low: Slot, high: Slot) -> Location:
    """Two fp32 numbers rounded to fp16, in one register."""

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        halves = [arithmetic.emit(f, conversion(narrow=True), [each])[0] for each in s]
        first, second = (f.resize(each, 32) for each in halves)
        return (f.or_(first, f.shl(second, _HALF)),)

    return b.node(emit, [(low, 32), (high, 32)], [32])[0]
