"""`flag_waits`: loops in which a thread waits for a flag or a counter, found in a kernel's code.

Such a loop loads a value, compares it, and branches back unless it is what the thread waits for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.ptx.cfg import BasicBlock, ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Register

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
_READS = ("load", "atomic", "compare_and_swap")


@dataclass(frozen=True, slots=True)
class FlagWait:
    """What a loop waits for: that the value compares so with `operand`, or does not (`leaves`); if
    `swapped`, the operand comes first. Both are numbers of so many `bits`."""

    compare: str
    operand: Register | int
    swapped: bool
    leaves: bool
    bits: int
    signed: bool

    def satisfied(self, value: int, operand: int) -> bool:
        """Whether a value lets the thread go on."""
        both = self._number(value), self._number(operand)
        return _COMPARE[self.compare](*(reversed(both) if self.swapped else both)) == self.leaves

    def _number(self, value: int) -> int:
        value &= (1 << self.bits) - 1
        return value - (value >> self.bits - 1 << self.bits) if self.signed else value


def flag_waits(flow: ControlFlow, actions: Sequence[Action]) -> dict[int, FlagWait]:
    """The loads of flags by which threads wait, by the number of the instruction."""
    found: dict[int, FlagWait] = {}
    # A loop that is rotated looks once before it begins: such loads come second.
    for first_looks in (False, True):
        loops = dict(found)
        for number, block in enumerate(flow.blocks):
            for read, wait, successor in _candidates(actions, block):
                end, passed = _chain(flow, successor)
                if end == number:
                    again = not _changes(flow, actions, wait.operand, (number, *passed))
                else:
                    inside = (
                        range(flow.blocks[end].start, flow.blocks[end].end) if first_looks else ()
                    )
                    again = any(loops.get(each) == wait for each in inside) and not _changes(
                        flow, actions, wait.operand, (*passed, end)
                    )
                if again:
                    found[read] = wait
    return found


def _candidates(
    actions: Sequence[Action], block: BasicBlock
) -> Iterator[tuple[int, FlagWait, int]]:
    """Loads in a block whose value decides where it leads: the instruction, what it would wait for,
    and the successor from which it would look again."""
    last = actions[block.end - 1]
    if last.operation != "branch" or last.guard is None or len(block.successors) != 2:
        return
    by_name = {each.name: number for number, each in _dests(actions, block)}
    compares = by_name.get(last.guard.register.name)
    if compares is None:
        return
    compare = actions[compares]
    name = compare.form.modifiers.get("C", "")
    if not compare.form.opcode.startswith("setp.") or "B" in compare.form.modifiers:
        return
    if name not in _COMPARE or compare.guard is not None or len(compare.sources) != 2:
        return
    kind = compare.form.type
    for place, source in enumerate(compare.sources):
        read = by_name.get(source.name) if isinstance(source, Register) else None
        if read is None or not block.start <= read < compares:
            continue
        action, other = actions[read], compare.sources[1 - place]
        if action.operation not in _READS or not Ordering.of(action).strong:
            continue
        operand = other.value if isinstance(other, Immediate) else other
        if not isinstance(operand, int | Register) or action.form.type.bits != kind.bits:
            continue
        # The taken successor comes first.
        for taken, successor in zip((True, False), block.successors, strict=True):
            leaves = taken == last.guard.negated
            signed = kind.is_signed
            yield read, FlagWait(name, operand, place == 1, leaves, kind.bits, signed), successor


def _dests(actions: Sequence[Action], block: BasicBlock) -> Iterator[tuple[int, Register]]:
    for number in range(block.start, block.end):
        for each in actions[number].dests:
            if each is not None:
                yield number, each


def _chain(flow: ControlFlow, block: int) -> tuple[int, list[int]]:
    """The first block with a choice, or without a successor, that a block leads to; and those
    before it."""
    passed: list[int] = []
    while block < len(flow.blocks) and len(flow.blocks[block].successors) == 1:
        if block in passed:
            break
        passed.append(block)
        block = flow.blocks[block].successors[0]
    return (block, passed) if block < len(flow.blocks) else (block - 1, passed)


def _changes(
    flow: ControlFlow, actions: Sequence[Action], operand: Register | int, blocks: Sequence[int]
) -> bool:
    """Whether blocks write a register."""
    return isinstance(operand, Register) and any(
        each.name == operand.name
        for block in blocks
        for _, each in _dests(actions, flow.blocks[block])
    )
