"""Emits instructions with effects: memory accesses, votes, calls into Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen import (
    asynchronous_calls,
    matrix_effects,
    sanitizer_calls,
    undefined,
    warpgroup_effects,
)
from gemmkit.emulator.codegen.addresses import (
    address_of,
    base_of,
    guard_key,
    is_narrow,
    located,
    space_of,
)
from gemmkit.emulator.codegen.areas import counted_separately
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, T, W
from gemmkit.emulator.codegen.counting import count_instruction
from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Function, Value, literal
from gemmkit.emulator.codegen.layout import WINDOW_BYTES, WINDOWS, WORKER
from gemmkit.emulator.codegen.operands import (
    Action,
    extends_sign,
    result_widths,
    source_widths,
    unsupported,
)
from gemmkit.emulator.codegen.ordering import is_asynchronous
from gemmkit.emulator.codegen.ranks import mapped, own_window
from gemmkit.emulator.codegen.runtime.atomics import is_native
from gemmkit.emulator.codegen.runtime.blocks import ASYNCHRONOUS_COST
from gemmkit.emulator.codegen.runtime.matrices import function_of
from gemmkit.emulator.codegen.values import Lanes, Location, Result, Scalar, Slot, root_of
from gemmkit.emulator.isa.cluster import OFFSET_MASK
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.ptx.module import Address, Immediate
from gemmkit.errors import UnsupportedInstruction

NULL = Value("ptr", "null")


def write(b: BlockWriter, action: Action) -> None:
    """Emit an instruction with effects that does not end a block."""
    _WRITERS[action.operation](b, action)


def _active(b: BlockWriter, action: Action) -> Value:
    lanes = b.active(action.guard)
    if action.operation != "copy_async":
        count_separately(b, action, lanes, lanes)
    return lanes


def count_separately(b: BlockWriter, action: Action, acting: Value, lanes: Value) -> None:
    """Count an instruction that may act in fewer lanes than its block."""
    if not counted_separately(action):
        return
    count_instruction(b.context, b.context.areas.counter(action.number), acting, lanes)


# Loads and stores


def _load(b: BlockWriter, action: Action) -> None:
    b.make_room()
    if is_matrix(action.form):
        matrix_effects.load(b, action, _active(b, action))
        return
    group = b.context.areas.group_of.get(action.number)
    if group is not None and not b.context.shadows:
        _load_together(b, action, group)
        return
    bits, count = action.form.type.bits, len(action.dests)
    lanes = _active(b, action)
    space, arguments = located(b, action, lanes)
    width = max(bits, 32)
    slots = [b.destination(action, register, width) for register in action.dests]
    results = [b.pointer(slot) for slot in slots]
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"load_{space}_{bits}x{count}"), "void", *arguments, *results)
    sanitizer_calls.after(b, action, *arguments[-2:])
    undefined.loaded(b, action, space, arguments)
    values = [b.resized(slot, bits) for slot in slots]
    b.put(action, values, signed=action.form.type.is_signed)


def _load_together(b: BlockWriter, action: Action, group: Sequence[int]) -> None:
    """The first load of a group performs all of them; each takes its result at its own position."""
    if action.number not in b.loaded:
        slots = b.scratch.take_row(len(group))
        first = b.context.analysis.actions[group[0]]
        space, arguments = located(b, first, b.mask)
        function = b.context.access(f"load_row_{space}")
        b.f.runtime(function, "void", *arguments, b.pointer(slots[0]))
        b.loaded |= zip(group, slots, strict=True)
    slot = b.loaded.pop(action.number)
    b.put(action, [slot], signed=action.form.type.is_signed)


def _store(b: BlockWriter, action: Action) -> None:
    b.make_room()
    if is_matrix(action.form):
        matrix_effects.store(b, action, _active(b, action))
        return
    bits, count = action.form.type.bits, len(action.sources)
    width = max(bits, 32)
    locations = [b.resized(b.source(source, bits), width) for source in action.sources]
    assert action.address is not None
    root, _ = root_of(base_of(b, action.address, 32 if is_narrow(action) else 64))
    b.materialise([*locations, root] if isinstance(root, Result) else locations)
    slots = [b.in_memory(location, width) for location in locations]
    lanes = _active(b, action)
    space, arguments = located(b, action, lanes)
    data = [b.pointer(slot) for slot in slots]
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"store_{space}_{bits}x{count}"), "void", *arguments, *data)
    sanitizer_calls.after(b, action, *arguments[-2:])
    undefined.stored(b, action, space, arguments)


def _copy_async(b: BlockWriter, action: Action) -> None:
    b.make_room()
    f = b.f
    size, *given = action.sources
    assert isinstance(size, Immediate)
    assert action.address is not None
    assert action.other_address is not None
    if size.value not in (4, 8, 16):
        raise unsupported(action.instruction, "cp.async copies 4, 8 or 16 bytes")
    lanes = _active(b, action)
    key = guard_key(b, action)
    reading, sizes, source_key = lanes, NULL, key
    if given:
        location = _bytes_read(b, action, size.value)
        sizes = b.pointer(b.in_memory(location, 32))
        reading = f.and_(lanes, f.runtime("positive", "i32", sizes))
        # These lanes are a separate set; the location of the size distinguishes it.
        source_key = (
            location if key is None else b.node(lambda _, s: s[:1], [(location, 32)], [32])[0]
        )
    count_separately(b, action, reading, lanes)
    to, to_base = address_of(b, action, action.address, True, lanes, key)
    start, start_base = address_of(b, action, action.other_address, False, reading, source_key)
    site = f.offset(C, b.context.areas.site(action.number))
    function = b.context.access(f"copy_async_{size.value}")
    cached = literal("i1", action.form["C"] == "ca")
    f.runtime(function, "void", C, site, to, to_base, start, start_base, sizes, cached)


def _bytes_read(b: BlockWriter, action: Action, size: int) -> Location:
    """How many bytes each lane of a `cp.async` reads: all, or none with `ignore-src`."""
    source = action.sources[1]
    if source_widths(action)[1] != 1:
        return b.source(source, 32)

    def none_where_ignored(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.and_(f.sub(f.resize(s[0], 32), 1), size),)

    return b.node(none_where_ignored, [(b.source(source, 1), 1)], [32])[0]


# Atomics


def _atomic(b: BlockWriter, action: Action) -> None:
    b.make_room()
    form, bits = action.form, action.form.type.bits
    name = "cas" if action.operation == "compare_and_swap" else form["O"]
    if not is_native(name, form["T"]):
        through_python(b, action)
        return
    locations = [b.source(source, bits) for source in action.sources]
    b.materialise([b.resized(location, bits) for location in locations])
    slots = [b.in_memory(location, bits) for location in locations]
    lanes = _active(b, action)
    assert action.address is not None
    space, key = space_of(action), guard_key(b, action)
    pattern, base = address_of(b, action, action.address, is_narrow(action), lanes, key)
    result = b.scratch.take(bits) if action.dests else None
    act = f"{RUNTIME_PREFIX}{name}_{form['T']}"
    b.f.module.declare(act, "void", ["ptr"] * 5)
    registers = [b.pointer(result) if result is not None else NULL]
    registers += [b.pointer(slot) for slot in slots]
    registers += [NULL] * (3 - len(registers))
    site = b.f.offset(C, b.context.areas.site(action.number))
    arguments = (C, site, pattern, base, Value("ptr", f"@{act}"), *registers)
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"atomic_{space}_{bits}"), "void", *arguments)
    sanitizer_calls.after(b, action, pattern, base)
    if result is not None:
        b.put(action, [result])


# Warps


def _shuffle(b: BlockWriter, action: Action) -> None:
    b.make_room()
    f = b.f
    locations = [b.source(source, 32) for source in action.sources[:3]]
    slots = [b.in_memory(location, 32) for location in locations]
    lanes = _active(b, action)
    sanitizer_calls.members(b, action, lanes)
    undefined.shuffled(b, action, lanes, slots)
    result = b.scratch.take(32)
    inside = f.runtime(
        f"shuffle_{action.form['M']}", "i32", b.pointer(result), *(b.pointer(s) for s in slots)
    )
    b.put(action, [result, Lanes(inside)])


def _same_member_mask(b: BlockWriter, action: Action) -> Value | None:
    """The membership mask if it is the same in all lanes."""
    location = b.source(action.sources[-1], 32)
    return location.value if isinstance(location, Scalar) else None


def _vote(b: BlockWriter, action: Action) -> None:
    f = b.f
    members = _same_member_mask(b, action)
    if members is None:
        through_python(b, action)
        return
    lanes = _active(b, action)
    sanitizer_calls.members(b, action, lanes)
    undefined.gathered(b, action)
    voters = f.and_(lanes, members)
    set_lanes = f.and_(b.lanes(b.source(action.sources[0], 1)), voters)
    if action.operation == "ballot":
        b.put(action, [Scalar(set_lanes)])
        return
    some, every = f.compare("ne", set_lanes, 0), f.compare("eq", set_lanes, voters)
    result = {"any": some, "all": every}.get(action.form["M"])
    if result is None:
        result = f.or_(every, f.not_(some))
    b.put(action, [Scalar(result)])


def _active_mask(b: BlockWriter, action: Action) -> None:
    b.put(action, [Scalar(_active(b, action))])


def _multiply_matrices(b: BlockWriter, action: Action) -> None:
    b.make_room()
    sources = zip(action.sources, source_widths(action), strict=True)
    slots = [b.in_memory(b.source(source, bits), bits) for source, bits in sources]
    sanitizer_calls.whole_warp(b, action, _active(b, action))
    results = [b.scratch.take(bits) for bits in result_widths(action)]
    try:
        function = function_of(action.form, b.context.analysis.flow.kernel.capability)
    except UnsupportedInstruction as refused:
        raise unsupported(action.instruction, str(refused)) from None
    b.f.runtime(function, "void", *(b.pointer(each) for each in (*results, *slots)))
    undefined.multiplied(b, action)
    b.put(action, results)


def _multiply_fragments(b: BlockWriter, action: Action) -> None:
    b.make_room()
    matrix_effects.multiply(b, action, _active(b, action))


def _transpose_matrix(b: BlockWriter, action: Action) -> None:
    b.make_room()
    matrix_effects.transpose(b, action, _active(b, action))


def _multiply_warpgroup(b: BlockWriter, action: Action) -> None:
    b.make_room()
    warpgroup_effects.multiply(b, action, _active(b, action))


def _synchronize_warpgroup(b: BlockWriter, action: Action) -> None:
    warpgroup_effects.synchronize(b, action, _active(b, action))


def _is_space(b: BlockWriter, action: Action) -> None:
    _active(b, action)
    space = action.form["S"]
    own = space == "shared" and "::cluster" not in action.form.opcode

    first = literal("i64", 0)
    if own and b.context.shows_ranks:
        first = own_window(b.f, 64)

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        size = OFFSET_MASK + 1 if own else WINDOW_BYTES
        inside = {
            name: f.compare("ult", f.sub(f.sub(s[0], start), s[1]), size)
            for name, start in WINDOWS.items()
        }
        return (inside.get(space) or f.not_(f.or_(*inside.values())),)

    address = b.source(action.sources[0], 64)
    b.put(action, b.node(emit, [(address, 64), (Scalar(first), 64)], [1]))


def _create_policy(b: BlockWriter, action: Action) -> None:
    """A cache policy is opaque and changes no result: all are zero."""
    _active(b, action)
    b.put(action, [Scalar(literal("i64", 0))])


def _nothing(b: BlockWriter, action: Action) -> None:
    sanitizer_calls.nothing(b, action, _active(b, action))


def _set_registers(b: BlockWriter, action: Action) -> None:
    """It changes no result; the sanitizers follow how many registers each warp has."""
    lanes = _active(b, action)
    sanitizer_calls.whole_warp(b, action, lanes)
    sanitizer_calls.tell_python(b, action, lanes)


def _map_address(b: BlockWriter, action: Action) -> None:
    """`mapa`; Python refuses a rank that the cluster does not have."""
    lanes = _active(b, action)
    b.make_room()
    f, widths = b.f, source_widths(action)
    address, rank = (
        b.source(each, bits) for each, bits in zip(action.sources, widths, strict=True)
    )
    blocks = Scalar(f.resize(f.load("i64", C, WORKER["cluster_blocks"]), 32))
    beyond = b.node(lambda f, s: (f.compare("uge", s[0], s[1]),), [(rank, 32), (blocks, 32)], [1])[
        0
    ]
    refused = f.and_(b.lanes(beyond), lanes)
    operands = [
        _to_scratch(b, each, bits) for each, bits in zip((address, rank), widths, strict=True)
    ]
    b.context.outside[action.number] = (tuple(operands), ())
    with f.when(f.compare("ne", refused, 0)):
        f.runtime("operate_asynchronous", "void", C, W, literal("i32", action.number), lanes)
    # It costs as much as in Python, so that warps take the same turns.
    cost = f.select(f.compare("ne", lanes, 0), literal("i64", ASYNCHRONOUS_COST), 0)
    f.store(f.sub(f.load("i64", C, WORKER["fuel"]), cost), C, WORKER["fuel"])
    b.put(action, [mapped(b, address, rank, widths[0])])


def _arrive_in_cluster(b: BlockWriter, action: Action) -> None:
    sanitizer_calls.aligned(b, action)
    through_python(b, action)


def _barrier_arrive(b: BlockWriter, action: Action) -> None:
    f = b.f
    lanes = _active(b, action)
    number, threads = (first_lane(b, b.source(each, 32), lanes) for each in action.sources)
    with f.when(f.compare("ne", lanes, 0)):
        sanitizer_calls.barrier(b, action, lanes, (number, threads))
        f.runtime(b.context.access("arrive"), "void", C, number, f.lshr(threads, 5))


def first_lane(b: BlockWriter, location: Location, lanes: Value) -> Value:
    """The value in the lowest active lane (in lane 0 if none is active)."""
    if isinstance(location, Scalar):
        return location.value
    f = b.f
    slot = b.in_memory(location, 32)
    lowest = f.and_(f.lowest_bit(f.or_(lanes, 1 << 31)), 31)
    return f.load("i32", f.offset(b.pointer(slot), f.shl(f.resize(lowest, 64), 2)))


# Instructions that Python executes


def through_python(b: BlockWriter, action: Action) -> None:
    """Have Python execute an instruction."""
    lanes = _active(b, action)
    if action.form.opcode_class == "warp":
        sanitizer_calls.members(b, action, lanes)
        undefined.gathered(b, action)
    values = executed_by_python(b, action, lanes)
    b.put(action, values, signed=extends_sign(action))


def _arrive_after_copies(b: BlockWriter, action: Action) -> None:
    """`cp.async.mbarrier.arrive`: the thread's earlier cp.async copies arrive first."""
    sanitizer_calls.copies_arrive(b, b.active(action.guard))
    through_python(b, action)


def executed_by_python(
    b: BlockWriter, action: Action, lanes: Value, block: int = -1
) -> list[Location]:
    """Operands to scratch, a call, results from scratch; `block` is that of a `try_wait`."""
    b.make_room()
    f = b.f
    operands: list[tuple[int, int]] = []
    for source, bits in zip(action.sources, source_widths(action), strict=True):
        operands.append(_to_scratch(b, b.source(source, bits), bits))
    operands += [_address_to_scratch(b, address) for address in action.addresses]
    results = [(b.scratch.take(max(bits, 32)).offset, bits) for bits in result_widths(action)]
    b.context.outside[action.number] = (tuple(operands), tuple(results))
    if is_asynchronous([action]):
        asynchronous_calls.call(b, action, lanes, operands, results, block)
    else:
        f.runtime("operate", "void", C, W, literal("i32", action.number), lanes)
    return [
        Lanes(f.load("i32", T, offset)) if bits == 1 else Slot("t", offset, bits)
        for offset, bits in results
    ]


def _to_scratch(b: BlockWriter, location: Location, bits: int) -> tuple[int, int]:
    if bits == 1:
        slot = b.scratch.take(32)
        b.f.store(b.lanes(location), T, slot.offset)
        return slot.offset, 1
    slot = b.in_memory(location, bits)
    if slot.area == "w":
        copy = b.node(lambda _, s: s[:1], [(slot, bits)], [bits])[0]
        slot = b.in_memory(copy, bits)
    return slot.offset, bits


def _address_to_scratch(b: BlockWriter, address: Address) -> tuple[int, int]:
    # Any operand may be in shared memory; other addresses are left as they are.
    base = base_of(b, address, 64, peers=True)

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.add(s[0], address.offset),)

    moved = b.node(emit, [(base, 64)], [64])[0]
    return _to_scratch(b, moved, 64)


_WRITERS: Mapping[str, Callable[[BlockWriter, Action], None]] = {
    "load": _load,
    "store": _store,
    "copy_async": _copy_async,
    "atomic": _atomic,
    "reduction": _atomic,
    "compare_and_swap": _atomic,
    "shuffle": _shuffle,
    "vote": _vote,
    "ballot": _vote,
    "active_mask": _active_mask,
    "is_space": _is_space,
    "create_policy": _create_policy,
    "barrier_arrive": _barrier_arrive,
    "set_registers": _set_registers,
    "map_address": _map_address,
    "cluster_rank": through_python,
    "barrier_cluster_arrive": _arrive_in_cluster,
    **dict.fromkeys(("no_operation", "copy_async_commit", "copy_async_wait"), _nothing),
    **dict.fromkeys(("match_any", "match_all", "reduce_warp", "elect", "call"), through_python),
    **dict.fromkeys(
        (
            *("mbarrier_init", "mbarrier_invalidate", "mbarrier_arrive", "mbarrier_transact"),
            *("bulk_copy", "bulk_commit", "bulk_wait", "bulk_store"),
            *("bulk_tensor", "bulk_acquire_map", "bulk_release_map"),
        ),
        through_python,
    ),
    "mbarrier_arrive_copies": _arrive_after_copies,
    "multiply_matrices": _multiply_matrices,
    "multiply_fragments": _multiply_fragments,
    "transpose_matrix": _transpose_matrix,
    "wgmma_multiply": _multiply_warpgroup,
    **dict.fromkeys(("wgmma_fence", "wgmma_commit", "wgmma_wait"), _synchronize_warpgroup),
}
