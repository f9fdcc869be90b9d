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
from gemmkit.emulator.isa.matrices import LANES
from gemmkit.emulator.isa.warpgroup_forms import COLUMNS, ROWS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.numerics.rules import Capability, Kind, Rules, generation_of, rules_of

PREFIX = "warpgroup_"
_REGISTER_BYTES = 4 * LANES
_MOST_GROUPS = 32
_A_REGISTERS = 4
# The groups of eight rows of a warp.
_OWN = ROWS // COLUMNS
# Bits of the flags: D starts from C, not from zero.
ACCUMULATES = 1


def function_of(product: WarpgroupProduct, capability: Capability) -> str:
    """The name of the function for a product on an architecture, such as
    `warpgroup_16_f16_f16_f32_wrap_shared_plus_0_1_90`.

    Raises:
        UnsupportedInstruction: the architecture has no such instruction.
    """
    kind = product.kind
    rules_of(kind, capability)
    major, minor = generation_of(capability).first
    words = (
        *(kind.depth, kind.a, kind.b, kind.result, "clamp" if kind.saturates else "wrap"),
        *(
            "registers" if product.in_registers else "shared",
            "minus" if product.negates else "plus",
        ),
        *map(int, product.transposed),
        f"{major}{minor}",
    )
    return PREFIX + "_".join(map(str, words))


def _read(function: str) -> tuple[WarpgroupProduct, Rules]:
    depth, a, b, result, overflow, where, sign, of_a, of_b, at = function.removeprefix(
        PREFIX
    ).split("_")
    kind = Kind("wgmma", a, b, result, int(depth), overflow == "clamp")
    transposed = of_a == "1", of_b == "1"
    product = WarpgroupProduct(kind, 0, where == "registers", sign == "minus", transposed)
    return product, rules_of(kind, (int(at[:-1]), int(at[-1])))


def modules_of(function: str) -> list[str]:
    """The modules that a function needs, the last one its own."""
    product, rules = _read(function)
    sums = [FusedSum.of(rules, product.kind.result).name] if rules.method == "fused" else []
    return [*sums, descriptors.MODULE, function]


def define(module: Module, function: str) -> None:
    """Add one function:

    warpgroup_…(worker, D, C, A, descriptor of B, rank, groups, flags) -> whether all that it reads
    is in shared memory. D, and C, are the addresses of their registers; A is likewise, or the
    descriptor of A; `rank` is that of the warp in its warpgroup, `groups` the number of columns
    over eight.
    """
    product, rules = _read(function)
    tile_product = product.tile
    d, c, b = Value("ptr", "%d"), Value("ptr", "%from"), Value("i64", "%b")
    a = Value("ptr" if product.in_registers else "i64", "%a")
    rank, groups, flags = (Value("i64", f"%{name}") for name in ("rank", "groups", "flags"))
    parameters = (C, d, c, a, b, rank, groups, flags)
    with module.function(RUNTIME_PREFIX + function, "i1", parameters) as f:
        left = _left(f, product, a, rank)
        columns = f.area(_MOST_GROUPS * descriptors.GROUP_BYTES)
        gather = descriptors.GATHER[product.transposed[1]]
        _or_fail(f, f.runtime(gather, "i1", C, columns, b, literal("i64", 0), groups))
        tile = Tile.allocated(f, product.kind.depth)
        unpack_left(f, tile_product, rules, left, tile)
        zeros = f.area(_REGISTER_BYTES)
        f.clear(zeros, _REGISTER_BYTES)
        starts = f.compare("eq", f.and_(flags, ACCUMULATES), 0)
        count = tile_product.counts[0]
        with f.loop(groups) as group:
            at = f.binary("mul", group, 8 * count)
            to = [f.load("ptr", f.offset(d, at), 8 * index) for index in range(count)]
            held = [f.load("ptr", f.offset(c, at), 8 * index) for index in range(count)]
            held = [f.select(starts, zeros, each) for each in held]
            here = f.offset(columns, f.binary("mul", group, descriptors.GROUP_BYTES))
            words = [f.offset(here, _REGISTER_BYTES * word) for word in range(tile_product.words)]
            multiply_columns(f, tile_product, rules, tile, to, words, held)
        f.ret(literal("i1", 1))


def _left(f: Function, product: WarpgroupProduct, a: Value, rank: Value) -> list[Value]:
    """The registers of A."""
    if product.in_registers:
        registers = [f.load("ptr", a, 8 * index) for index in range(_A_REGISTERS)]
    else:
        rows = f.area(_OWN * descriptors.GROUP_BYTES)
        gather = descriptors.GATHER[product.transposed[0]]
        first = f.shl(rank, 1)
        _or_fail(f, f.runtime(gather, "i1", C, rows, a, first, literal("i64", _OWN)))
        registers = [
            f.offset(rows, descriptors.GROUP_BYTES * lower + _REGISTER_BYTES * word)
            for word in range(product.tile.words)
            for lower in range(_OWN)
        ]
    if not product.negates:
        return registers
    signs = product.sign_bit
    for bits in (8, 16):
        signs |= signs << bits if product.sign_bit < 1 << bits else 0
    negated = f.area(_A_REGISTERS * _REGISTER_BYTES)
    for index, register in enumerate(registers):
        words = f.load(f"<{LANES} x i32>", register, align=16)
        f.store(f.xor(words, signs), negated, _REGISTER_BYTES * index, align=32)
    return [f.offset(negated, _REGISTER_BYTES * index) for index in range(_A_REGISTERS)]


def _or_fail(f: Function, inside: Value) -> None:
    with f.when(f.not_(inside)):
        f.ret(literal("i1", 0))
