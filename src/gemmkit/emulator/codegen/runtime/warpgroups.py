"""`wgmma.mma_async`: a warp's 16 rows of the product, eight columns at a time.

A and B are read as `descriptors` says; then each eight columns are what an `mma.sync` of 16 rows
computes, by the numerics of `wgmma`.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Function, Module, Value, literal
from gemmkit.emulator.codegen.runtime import descriptors
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.fused_sums import FusedSum
from gemmkit.emulator.codegen.runtime.matrices import Tile, multiply_columns, unpack_left
from gemmkit.emulator.isa.matrices import LANES, MatrixProduct
from gemmkit.emulator.isa.warpgroup_forms import COLUMNS, ROWS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.numerics.rules import SIZES, Capability, Kind, Rules, generation_of, rules_of

PREFIX = "warpgroup_"
_REGISTER_BYTES = 4 * LANES
_MOST_GROUPS = 32
_A_REGISTERS = 4
_WHOLE = f"<{LANES} x i32>"
# The groups of eight rows of a warp.
_OWN = ROWS // COLUMNS
# Bits of the flags: D starts from C, not from zero; the product is negated; A, and B, are adjacent
# along their rows and columns; A is in registers.
ACCUMULATES, NEGATES, TURNS_A, TURNS_B, IN_REGISTERS = (1 << bit for bit in range(5))


def function_of(kind: Kind, capability: Capability) -> str:
    """The name of the function for a kind of product on an architecture, such as
    `warpgroup_16_f16_f16_f32_wrap_90`.

    Raises:
        UnsupportedInstruction: the architecture has no such instruction.
    """
    rules_of(kind, capability)
    major, minor = generation_of(capability).first
    overflow = "clamp" if kind.saturates else "wrap"
    words = (kind.depth, kind.a, kind.b, kind.result, overflow, f"{major}{minor}")
    return PREFIX + "_".join(map(str, words))


def flags_of(product: WarpgroupProduct) -> int:
    """The flags of a product, but for ACCUMULATES."""
    turns_a, turns_b = product.transposed
    chosen = (
        (product.negates, NEGATES),
        (turns_a, TURNS_A),
        (turns_b, TURNS_B),
        (product.in_registers, IN_REGISTERS),
    )
    return sum(flag for holds, flag in chosen if holds)


def _read(function: str) -> tuple[Kind, Rules]:
    depth, a, b, result, overflow, at = function.removeprefix(PREFIX).split("_")
    kind = Kind("wgmma", a, b, result, int(depth), overflow == "clamp")
    return kind, rules_of(kind, (int(at[:-1]), int(at[-1])))


def modules_of(function: str) -> list[str]:
    """The modules that a function needs, the last one its own."""
    kind, rules = _read(function)
    sums = [FusedSum.of(rules, kind.result).name] if rules.method == "fused" else []
    return [*sums, descriptors.MODULE, function]


def define(module: Module, function: str) -> None:
    """Add one function:

    warpgroup_…(worker, D, C, A, descriptor of B, rank, groups, flags) -> whether all that it reads
    is in shared memory. D, and C, are the addresses of their registers; A is likewise, or the
    descriptor of A; `rank` is that of the warp in its warpgroup, `groups` the number of columns
    over eight.
    """
    kind, rules = _read(function)
    product = MatrixProduct(kind, ROWS)
    d, c = Value("ptr", "%d"), Value("ptr", "%from")
    a, b, rank, groups, flags = (
        Value("i64", f"%{name}") for name in ("a", "b", "rank", "groups", "flags")
    )
    parameters = (C, d, c, a, b, rank, groups, flags)
    with module.function(RUNTIME_PREFIX + function, "i1", parameters) as f:
        left = _left(f, product, a, rank, flags)
        columns = f.area(_MOST_GROUPS * descriptors.GROUP_BYTES)
        _gather(f, columns, b, literal("i64", 0), groups, _has(f, flags, TURNS_B))
        tile = Tile.allocated(f, kind.depth)
        unpack_left(f, product, rules, left, tile)
        zeros = f.area(_REGISTER_BYTES)
        f.clear(zeros, _REGISTER_BYTES)
        accumulates = _has(f, flags, ACCUMULATES)
        count = product.counts[0]
        with f.loop(groups) as group:
            at = f.binary("mul", group, 8 * count)
            to = [f.load("ptr", f.offset(d, at), 8 * index) for index in range(count)]
            held = [f.load("ptr", f.offset(c, at), 8 * index) for index in range(count)]
            held = [f.select(accumulates, each, zeros) for each in held]
            here = f.offset(columns, f.binary("mul", group, descriptors.GROUP_BYTES))
            words = [f.offset(here, _REGISTER_BYTES * word) for word in range(product.words)]
            multiply_columns(f, product, rules, tile, to, words, held)
        f.ret(literal("i1", 1))


def _left(f: Function, product: MatrixProduct, a: Value, rank: Value, flags: Value) -> list[Value]:
    """The registers of A."""
    area = f.area(_A_REGISTERS * _REGISTER_BYTES)
    registers = [
        f.offset(area, descriptors.GROUP_BYTES * lower + _REGISTER_BYTES * word)
        for word in range(product.words)
        for lower in range(_OWN)
    ]
    given = _has(f, flags, IN_REGISTERS)
    with f.when(given):
        table = f.pointer(a)
        for index, register in enumerate(registers):
            f.store(f.load(_WHOLE, f.load("ptr", table, 8 * index), align=32), register, align=32)
    with f.when(f.not_(given)):
        first = f.shl(rank, 1)
        _gather(f, area, a, first, literal("i64", _OWN), _has(f, flags, TURNS_A))
    with f.when(_has(f, flags, NEGATES)):
        bits = 8 * SIZES[product.kind.a]
        signs = sum(1 << at + bits - 1 for at in range(0, 32, bits))
        for register in registers:
            f.store(f.xor(f.load(_WHOLE, register, align=32), signs), register, align=32)
    return registers


def _gather(f: Function, to: Value, word: Value, first: Value, count: Value, turns: Value) -> None:
    """Read an operand from shared memory; the function returns false if that is out of bounds."""
    for transposed, name in descriptors.GATHER.items():
        with f.when(turns if transposed else f.not_(turns)):
            inside = f.runtime(name, "i1", C, to, word, first, count)
            with f.when(f.not_(inside)):
                f.ret(literal("i1", 0))


def _has(f: Function, flags: Value, flag: int) -> Value:
    return f.compare("ne", f.and_(flags, flag), 0)
