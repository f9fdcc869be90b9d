"""The addresses of a product's registers, made at run time from a table of where they are.

A `wgmma` has up to 256 registers: code that stores the address of each would be most of what a
kernel with a few of them is compiled from.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Module, Value
from gemmkit.emulator.codegen.values import Slot

ADDRESSES = "register_addresses"
# Offsets are multiples of four; this bit tells scratch from the warp's registers.
_IN_SCRATCH = 1


def place(slot: Slot) -> int:
    """Where a register is, as the table has it."""
    return slot.offset | _IN_SCRATCH * (slot.area == "t")


def define(module: Module) -> None:
    """Add `register_addresses(to, places, count, registers, scratch)`."""
    to, places, registers, scratch = (
        Value("ptr", f"%{each}") for each in ("to", "places", "registers", "scratch")
    )
    count = Value("i64", "%count")
    parameters = (to, places, count, registers, scratch)
    with module.function(RUNTIME_PREFIX + ADDRESSES, "void", parameters) as f:
        with f.loop(count) as index:
            word = f.load("i32", f.element(places, index, 32))
            inside = f.compare("ne", f.and_(word, _IN_SCRATCH), 0)
            area = f.select(inside, scratch, registers)
            offset = f.cast("zext", f.and_(word, ~_IN_SCRATCH), "i64")
            f.store(f.integer(f.offset(area, offset)), f.element(to, index, 64))
        f.ret()
