"""Which instructions compute no more than data: neither an address nor a path depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gemmkit.emulator.isa.semantics import OPERATIONS, reads_carry, writes_carry
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.ptx.module import CARRY, Address, Negated, Register

# Their results depend on registers alone, and nothing but registers on them.
_COMPUTES = OPERATIONS.keys() | {"move", "multiply_matrices", "multiply_fragments"}
_READS_MEMORY = frozenset(["load", "atomic", "compare_and_swap", "wgmma_multiply"])


def of_data_alone(steps: Sequence[Step]) -> frozenset[int]:
    """The numbers of the instructions that may be left out of a run of which only the requests to
    memory matter: what they compute is used for the values of stores, if at all.

    Where a register that matters is loaded from memory, so may every value that is stored; and
    where tensors are copied, as a thread may have stored their maps.
    """
    operations = {step.form.operation for step in steps}
    if "call" in operations:
        # `printf` reads what its arguments point to.
        return frozenset()
    needed = _needed(steps, stored="bulk_tensor" in operations)
    if any(not needed.isdisjoint(_written(step)) for step in steps if _reads_memory(step)):
        needed = _needed(steps, stored=True)
    return frozenset(
        step.number
        for step in steps
        if step.form.operation in _COMPUTES and needed.isdisjoint(_written(step))
    )


def _reads_memory(step: Step) -> bool:
    """Whether it reads what a thread may have stored."""
    operation = step.form.operation
    return operation in _READS_MEMORY and not (operation == "load" and step.form["S"] == "param")


def _needed(steps: Sequence[Step], *, stored: bool) -> set[Register]:
    """The registers that matter; with `stored`, those whose values are stored do too."""
    needed: set[Register] = set()
    waiting: list[Step] = []
    for step in steps:
        if step.form.operation in _COMPUTES:
            waiting.append(step)
        elif step.form.operation == "store" and not stored:
            needed.update(_of_access(step))
        else:
            needed.update(_read(step))
    # From the end, as most values are used after they are computed: few rounds suffice.
    waiting.reverse()
    before = -1
    while len(needed) != before:
        before = len(needed)
        for step in waiting:
            if not needed.isdisjoint(_written(step)):
                needed.update(_read(step))
    return needed


def _written(step: Step) -> list[Register]:
    found = [register for register, _ in step.dests if register is not None]
    return [*found, CARRY] if writes_carry(step.form) else found


def _read(step: Step) -> Iterator[Register]:
    yield from _registers(source for source, _ in step.sources)
    yield from _of_access(step)
    if reads_carry(step.form):
        yield CARRY


def _of_access(step: Step) -> Iterator[Register]:
    """The registers of addresses, and the guard's."""
    yield from _registers(step.addresses)
    if step.instruction.guard is not None:
        yield step.instruction.guard.register


def _registers(operands: Iterable[object]) -> Iterator[Register]:
    for operand in operands:
        if isinstance(operand, Register):
            yield operand
        elif isinstance(operand, Negated):
            yield operand.register
        elif isinstance(operand, Address):
            yield from _registers([operand.base])
