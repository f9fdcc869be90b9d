"""Emits instructions with effects that do not end a block: what each operation is emitted by, and
those of warps and clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen import (
    matrix_effects,
    memory_effects,
    sanitizer_calls,
    undefined,
    warpgroup_effects,
)
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.counting import active_lanes
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import WINDOW_BYTES, WINDOWS, WORKER
from gemmkit.emulator.codegen.operands import (
    Action,
    result_widths,
    source_widths,
    unsupported,
)
from gemmkit.emulator.codegen.python_calls import (
    arrive_after_copies,
    through_python,
    to_scratch,
)
from gemmkit.emulator.codegen.ranks import mapped, own_window
from gemmkit.emulator.codegen.runtime.blocks import ASYNCHRONOUS_COST
from gemmkit.emulator.codegen.runtime.matrices import function_of
from gemmkit.emulator.codegen.values import Lanes, Location, Scalar
from gemmkit.emulator.isa.cluster import OFFSET_MASK
from gemmkit.errors import UnsupportedInstruction

NULL = Value("ptr", "null")


def write(b: BlockWriter, action: Action) -> None:
    """Emit an instruction with effects that does not end a block."""
    _WRITERS[action.operation](b, action)


def _shuffle(b: BlockWriter, action: Action) -> None:
    b.make_room()
    f = b.f
    locations = [b.source(source, 32) for source in action.sources[:3]]
    slots = [b.in_memory(location, 32) for location in locations]
    lanes = active_lanes(b, action)
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
    lanes = active_lanes(b, action)
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
    b.put(action, [Scalar(active_lanes(b, action))])


def _multiply_matrices(b: BlockWriter, action: Action) -> None:
    b.make_room()
    sources = zip(action.sources, source_widths(action), strict=True)
    slots = [b.in_memory(b.source(source, bits), bits) for source, bits in sources]
    sanitizer_calls.whole_warp(b, action, active_lanes(b, action))
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
    matrix_effects.multiply(b, action, active_lanes(b, action))


def _transpose_matrix(b: BlockWriter, action: Action) -> None:
    b.make_room()
    matrix_effects.transpose(b, action, active_lanes(b, action))


def _multiply_warpgroup(b: BlockWriter, action: Action) -> None:
    b.make_room()
    warpgroup_effects.multiply(b, action, active_lanes(b, action))


def _synchronize_warpgroup(b: BlockWriter, action: Action) -> None:
    warpgroup_effects.synchronize(b, action, active_lanes(b, action))


def _is_space(b: BlockWriter, action: Action) -> None:
    active_lanes(b, action)
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
    active_lanes(b, action)
    b.put(action, [Scalar(literal("i64", 0))])


def _nothing(b: BlockWriter, action: Action) -> None:
    sanitizer_calls.nothing(b, action, active_lanes(b, action))


def _set_registers(b: BlockWriter, action: Action) -> None:
    """It changes no result; the sanitizers follow how many registers each warp has."""
    lanes = active_lanes(b, action)
    sanitizer_calls.whole_warp(b, action, lanes)
    sanitizer_calls.tell_python(b, action, lanes)


def _map_address(b: BlockWriter, action: Action) -> None:
    """`mapa`; Python refuses a rank that the cluster does not have."""
    lanes = active_lanes(b, action)
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
        to_scratch(b, each, bits) for each, bits in zip((address, rank), widths, strict=True)
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
    lanes = active_lanes(b, action)
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


_WRITERS: Mapping[str, Callable[[BlockWriter, Action], None]] = {
    "load": memory_effects.load,
    "store": memory_effects.store,
    "copy_async": memory_effects.copy_async,
    "atomic": memory_effects.atomic,
    "reduction": memory_effects.atomic,
    "compare_and_swap": memory_effects.atomic,
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
    "mbarrier_arrive_copies": arrive_after_copies,
    "multiply_matrices": _multiply_matrices,
    "multiply_fragments": _multiply_fragments,
    "transpose_matrix": _transpose_matrix,
    "wgmma_multiply": _multiply_warpgroup,
    **dict.fromkeys(("wgmma_fence", "wgmma_commit", "wgmma_wait"), _synchronize_warpgroup),
}
