"""Emits `wgmma`: products of a warpgroup, of which each warp computes its own rows at once."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen import undefined_matrices
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, T, W
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import ALL_LANES, GROUPS_KEPT, WARP, WORKER, vector_bytes
from gemmkit.emulator.codegen.operands import Action, source_widths, unsupported
from gemmkit.emulator.codegen.runtime import product_groups
from gemmkit.emulator.codegen.runtime.descriptors import SAME
from gemmkit.emulator.codegen.runtime.logged_products import MULTIPLIES, ORDERS
from gemmkit.emulator.codegen.runtime.register_tables import ADDRESSES, place
from gemmkit.emulator.codegen.runtime.warpgroups import ACCUMULATES, flags_of, function_of
from gemmkit.emulator.codegen.values import Location, Scalar, Slot
from gemmkit.emulator.codegen.warpgroup_operands import immediates_of, warpgroup_product
from gemmkit.emulator.isa.warpgroup_forms import COLUMNS, WARPS
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.errors import UnsupportedInstruction


def multiply(b: BlockWriter, action: Action, lanes: Value) -> None:
    """`wgmma.mma_async`: native code unless it is not valid, which Python explains.

    With sanitizers each is entered into their log before it runs, or Python is told of it.
    """
    f, count = b.f, len(action.dests)
    product = warpgroup_product(action)
    try:
        function = function_of(product.kind, b.context.analysis.flow.kernel.capability)
    except UnsupportedInstruction as refused:
        raise unsupported(action.instruction, str(refused)) from None
    widths = source_widths(action)
    sums = [b.in_memory(b.source(each, 32), 32) for each in action.sources[:count]]
    factors = action.sources[count : -1 - immediates_of(action)]
    locations = [b.source(each, bits) for each, bits in zip(factors, widths[count:], strict=False)]
    *left, right = [_kept(b, each) for each in locations]
    scale = b.lanes(b.source(action.sources[count + len(factors)], 1))
    operands = [right] if product.in_registers else [*left, right]
    _tell_python(b, action, operands, scale)
    results = [b.scratch.take(32) for _ in range(count)]
    uniform = f.or_(f.compare("eq", scale, 0), f.compare("eq", scale, -1))
    valid = f.and_(uniform, f.compare("eq", lanes, ALL_LANES))
    rank, whole = _place(f)
    valid = f.and_(valid, whole)
    for each in operands:
        if isinstance(each, Slot):
            valid = f.and_(valid, f.runtime(SAME, "i1", b.pointer(each)))
    number = literal("i32", action.number)
    compute, after = f.name("compute"), f.name("after")
    explain = f.name("explain")
    idle = f.compare("eq", lanes, 0)
    if b.context.sanitize:
        first = literal("i64", 0) if product.in_registers else _scalar(b, left[0])
        given = (valid, first, _scalar(b, right), rank)
        logged = f.runtime(MULTIPLIES, "i1", C, W, number, *given)
        with f.when(f.not_(logged)):
            f.runtime("operate_asynchronous", "void", C, W, number, lanes)
    f.branch_if(idle, after, f"{compute}some")
    f.label(f"{compute}some")
    f.runtime(product_groups.ISSUE, "void", C, W)
    f.branch_if(valid, compute, explain)
    f.label(compute)
    if product.in_registers:
        a = f.integer(_table(b, [each for each in left if isinstance(each, Slot)]))
    else:
        a = _scalar(b, left[0])
    adds = f.select(f.compare("ne", scale, 0), literal("i64", ACCUMULATES), 0)
    flags = f.or_(adds, flags_of(product))
    groups = literal("i64", product.columns // COLUMNS)
    to, held = _table(b, results), _table(b, sums)
    done = f.runtime(
        function, "i1", C, to, held, a, _scalar(b, right), f.resize(rank, 64), groups, flags
    )
    f.branch_if(done, after, explain)
    f.label(explain)
    if not b.context.sanitize:
        f.runtime("operate_asynchronous", "void", C, W, number, lanes)
    f.branch(after)
    f.label(after)
    _pass_on(b, action, scale)
    b.put(action, results)


def synchronize(b: BlockWriter, action: Action, lanes: Value) -> None:
    """`commit_group`, and `wait_group` of a warp that goes on; where a `wgmma.fence` is missing the
    sanitizers find in the code alone."""
    f = b.f
    if action.operation == "wgmma_fence":
        return
    if action.operation == "wgmma_commit":
        with f.when(f.compare("eq", lanes, ALL_LANES)):
            f.runtime(product_groups.COMMIT, "void", W)
    if not b.context.sanitize:
        return
    # Where it is not valid, Python is told of it.
    b.context.outside[action.number] = ((), ())
    number, groups = literal("i32", action.number), literal("i64", _left_going(action))
    f.runtime(ORDERS, "void", C, W, number, lanes, groups)


def stops(b: BlockWriter, action: Action) -> Value:
    """Whether a warp at a `wait_group` waits for other warps of its warpgroup."""
    # A wait for older groups than are kept, which the hardware has no instruction for, is one for
    # the oldest kept.
    going = literal("i32", min(_left_going(action), GROUPS_KEPT - 1))
    return b.f.runtime(product_groups.AWAIT, "i1", C, W, b.active(action.guard), going)


def _left_going(action: Action) -> int:
    """How many groups a wait leaves in flight; −1 for a commit."""
    going = action.sources[0] if action.sources else Immediate(-1)
    assert isinstance(going, Immediate)
    return going.value


def _kept(b: BlockWriter, location: Location) -> Scalar | Slot:
    """A descriptor, or a register of A: in memory unless it is one value."""
    if isinstance(location, Scalar) and location.bits == 64:
        return location
    return b.in_memory(location, location.bits)


def _scalar(b: BlockWriter, descriptor: Scalar | Slot) -> Value:
    if isinstance(descriptor, Scalar):
        return descriptor.value
    return b.f.load("i64", b.pointer(descriptor))


def _place(f: Function) -> tuple[Value, Value]:
    """The rank of the warp in its warpgroup, and whether the block has all warps of that."""
    index = f.load("i32", W, WARP["index"])
    last = f.resize(f.or_(index, WARPS - 1), 64)
    return f.and_(index, WARPS - 1), f.compare("ult", last, f.load("i64", C, WORKER["warp_count"]))


def _table(b: BlockWriter, slots: list[Slot]) -> Value:
    """The addresses of registers, in scratch."""
    f = b.f
    table = b.pointer(b.scratch.take_row(-(-8 * len(slots) // vector_bytes(32)))[0])
    places = f.module.constant([place(slot) for slot in slots])
    f.runtime(ADDRESSES, "void", table, places, literal("i64", len(slots)), W, T)
    return table


def _tell_python(
    b: BlockWriter, action: Action, operands: list[Scalar | Slot], scale: Value
) -> None:
    """Where Python finds the descriptors and `scale-d`."""
    places: list[tuple[int, int]] = []
    for operand in operands:
        copy = b.node(lambda _, s: s[:1], [(operand, 64)], [64])[0]
        places.append((b.in_memory(copy, 64).offset, 64))
    slot = b.scratch.take(32)
    b.f.store(scale, b.pointer(slot))
    b.context.outside[action.number] = ((*places, (slot.offset, 1)), ())


def _pass_on(b: BlockWriter, action: Action, scale: Value) -> None:
    """An element of D is defined if its addend is or there is none; undefined operands were
    reported."""
    if not any(register in b.context.shadows for register in action.dests):
        return
    held = undefined_matrices.held(b, action, 32, len(action.dests))
    assert held is not None
    fresh = b.f.compare("eq", scale, 0)

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.or_(s[0], s[1]),)

    every = Scalar(b.f.resize(fresh, 32, signed=True))
    found = [b.node(emit, [(each, 32), (every, 32)], [32])[0] for each in held]
    undefined_matrices.assign(b, action, found)
