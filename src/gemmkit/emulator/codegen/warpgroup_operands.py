"""What a `wgmma.mma_async` multiplies, as an action."""

from __future__ import annotations

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.ptx.module import Immediate


def immediates_of(action: Action) -> int:
    """How many immediate operands an instruction takes; they are its last sources."""
    return sum(spec.role == "immediate" for spec in action.form.operands)


def warpgroup_product(action: Action) -> WarpgroupProduct:
    """The product of an instruction."""
    last = action.sources[len(action.sources) - immediates_of(action) :]
    numbers = [each.value for each in last if isinstance(each, Immediate)]
    return WarpgroupProduct.of(action.form, numbers)
