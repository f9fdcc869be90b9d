"""Finds the registers that may hold undefined bits, which a run that reports their use must track.

Each such register has a second one, its shadow, with a 1 for each defined bit. Memory of zeros thus
represents registers that were never written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gemmkit.emulator.codegen.operands import Action, register_of
from gemmkit.emulator.isa.matrix_access import is_matrix, registers_of
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import Register

# Operations whose results hold what operands hold, so that undefined bits propagate. Results of
# other instructions with effects are defined: an undefined operand of theirs counts as used.
_PASSES_ON = frozenset(
    [
        *("shuffle", "vote", "ballot", "match_any", "match_all", "reduce_warp"),
        *("multiply_matrices", "multiply_fragments", "transpose_matrix"),
        "wgmma_multiply",
    ]
)
# Operands that are not propagated: undefined bits in them count as used.
_USED_FROM = {
    "shuffle": 1,
    "vote": 1,
    "ballot": 1,
    "match_any": 1,
    "match_all": 1,
    "reduce_warp": 1,
    "copy_async": 1,
    **dict.fromkeys(
        (
            *("atomic", "reduction", "compare_and_swap", "barrier", "barrier_arrive", "elect"),
            *("call", "no_operation", "map_address", "cluster_rank"),
            *("mbarrier_init", "mbarrier_arrive", "mbarrier_transact"),
            *("mbarrier_test", "mbarrier_try", "bulk_copy", "bulk_store", "bulk_tensor"),
        ),
        0,
    ),
}


def shadow_of(register: Register) -> Register:
    """The register that says which bits of another are defined."""
    bits = TYPES[register.type].bits
    return Register(f"{register.name} defined", "pred" if bits == 1 else f"b{bits}")


def used_from(action: Action) -> int:
    """The index of the first source whose bits an instruction uses and does not propagate."""
    if is_matrix(action.form):  # a stride comes after the registers that are stored
        return 0 if action.operation == "load" else registers_of(action.form)
    if action.operation == "wgmma_multiply":  # it propagates those of its accumulators only
        return len(action.dests)
    return _USED_FROM.get(action.operation, len(action.sources))


def reads_memory(action: Action) -> bool:
    """Whether an instruction loads memory that may never have been written."""
    return action.operation == "load" and action.form.modifiers.get("S") != "const"


def overwrites(actions: Sequence[Action]) -> frozenset[int]:
    """The numbers of exchanges whose results are not used: they write memory and read nothing.

    A result is used if an instruction with effects reads it, or one whose own result is used.
    """
    exchanges = [
        each for each in actions if each.operation == "atomic" and each.form["O"] == "exch"
    ]
    if not exchanges:
        return frozenset()
    used: set[Register] = set()
    changed = True
    while changed:
        before = len(used)
        for action in actions:
            if not action.pure or not used.isdisjoint(each for each in action.dests if each):
                used.update(action.registers_read())
        changed = len(used) > before
    return frozenset(
        action.number
        for action in exchanges
        if used.isdisjoint(each for each in action.dests if each is not None)
    )


def shadows(actions: Sequence[Action], unset: Collection[Register]) -> Mapping[Register, Register]:
    """The shadows of all registers that may hold undefined bits.

    Args:
        actions: the kernel's instructions.
        unset: registers that may be read before they are written.
    """
    found = dict.fromkeys(unset)
    for action in actions:
        if reads_memory(action) or action.operation == "shuffle":
            found |= dict.fromkeys(each for each in action.dests if each is not None)
    passing = [
        (action, _passed_on(action))
        for action in actions
        if action.pure or action.operation in _PASSES_ON or action.guard is not None
    ]
    changed = True
    while changed:
        changed = False
        for action, passed_on in passing:
            if not any(each in found for each in passed_on):
                continue
            new = [each for each in action.dests if each is not None and each not in found]
            changed = changed or bool(new)
            found |= dict.fromkeys(new)
    return {register: shadow_of(register) for register in found}


def _passed_on(action: Action) -> list[Register]:
    """Registers that determine whether an action's results are defined."""
    if action.pure:
        return action.registers_read()
    guard = [action.guard.register] if action.guard is not None else []
    if action.operation not in _PASSES_ON:
        return guard
    values = (register_of(each) for each in action.sources[: used_from(action)])
    return guard + [each for each in values if each is not None]
