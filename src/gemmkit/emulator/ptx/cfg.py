"""Basic blocks and immediate post-dominators: where lanes diverge and where they reconverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.table import decode
from gemmkit.emulator.ptx.module import Instruction, Kernel, Symbol
from gemmkit.errors import UnsupportedInstruction

# The warp waits for others, and executes the instruction again once they have come.
RETRIED = frozenset(["mbarrier_try", "barrier_cluster_wait", "wgmma_wait"])
# A block ends after these: control leaves, or the warp waits.
_ENDS = frozenset(["branch", "exit", "trap", "barrier", "mbarrier_test", *RETRIED])
# These begin a block, since a warp that has waited executes them again.
_BEGINS = RETRIED
# Where a schedule can stop a warp: instructions that synchronize, or begin or await what is
# asynchronous.
_STOPS = ("barrier", "mbarrier_", "bulk_", "wgmma_", "copy_async")
_FENCES = ("fence", "membar")


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions `start` to `end` (exclusive), entered only at the top.

    `successors` are block numbers; the taken one of a guarded branch is first. The exit of the
    kernel has the number of blocks.
    """

    start: int
    end: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ControlFlow:
    """A kernel's decoded instructions, its blocks, and each block's immediate post-dominator.

    Equal to itself only, so that what is derived from it can be looked up by it.

    `reconvergence[b]` is the block where the lanes that diverge at the end of block b reconverge:
    its immediate post-dominator, or the number of blocks (the exit). `stops` are the instructions
    before and after which a warp can stop; blocks then begin there.
    """

    kernel: Kernel
    forms: tuple[Form, ...]
    blocks: tuple[BasicBlock, ...]
    reconvergence: tuple[int, ...]
    stops: frozenset[int] = frozenset()

    @classmethod
    def of(cls, kernel: Kernel, *, stops: bool = False) -> ControlFlow:
        """Decode a kernel and divide it into basic blocks; with `stops` also where a schedule can
        stop a warp.

        Raises:
            UnsupportedInstruction: an instruction is not in the table.
        """
        forms = tuple(decode(instruction) for instruction in kernel.body)
        where = frozenset(number for number, form in enumerate(forms) if stops and _stops(form))
        blocks = _basic_blocks(kernel, forms, where)
        return cls(kernel, forms, blocks, _post_dominators(blocks), where)

    def block_of(self, number: int) -> int:
        """The block that has an instruction."""
        return next(at for at, each in enumerate(self.blocks) if each.start <= number < each.end)


def _target(kernel: Kernel, instruction: Instruction) -> int:
    label = instruction.operands[0]
    if not isinstance(label, Symbol) or label.name not in kernel.labels:
        raise UnsupportedInstruction(
            f"'{instruction.text}' at {instruction.where} has no such target"
        )
    return kernel.labels[label.name]


def _stops(form: Form) -> bool:
    fence = form.operation == "no_operation" and form.opcode.startswith(_FENCES)
    return fence or form.operation.startswith(_STOPS)


def _basic_blocks(
    kernel: Kernel, forms: Sequence[Form], stops: frozenset[int]
) -> tuple[BasicBlock, ...]:
    count = len(kernel.body)
    leaders = {0, *stops, *(number + 1 for number in stops)}
    for index, form in enumerate(forms):
        if form.operation in _ENDS:
            leaders.add(index + 1)
        if form.operation in _BEGINS:
            leaders.add(index)
        if form.operation == "branch":
            leaders.add(_target(kernel, kernel.body[index]))
    starts = sorted(leader for leader in leaders if leader < count)
    number = {start: block for block, start in enumerate(starts)} | {count: len(starts)}
    blocks = []
    for block, start in enumerate(starts):
        end = starts[block + 1] if block + 1 < len(starts) else count
        last, form = kernel.body[end - 1], forms[end - 1]
        following = (block + 1,)
        successors: tuple[int, ...]
        if form.operation == "branch":
            target = (number[_target(kernel, last)],)
            successors = target if last.guard is None else target + following
        elif form.operation == "trap":
            # It ends the launch: other lanes reconverge as if no lane came here.
            successors = () if last.guard is None else following
        elif form.operation == "exit" and last.guard is None:
            successors = (len(starts),)
        elif form.operation == "exit":
            successors = (len(starts), *following)
        else:
            successors = following
        blocks.append(BasicBlock(start, end, successors))
    return tuple(blocks)


def _post_dominators(blocks: Sequence[BasicBlock]) -> tuple[int, ...]:
    """Cooper, Harvey and Kennedy's iteration ("A Simple, Fast Dominance Algorithm"), reversed."""
    exit_block = len(blocks)
    predecessors: list[list[int]] = [[] for _ in range(exit_block + 1)]
    for block, each in enumerate(blocks):
        for successor in each.successors:
            predecessors[successor].append(block)
    order = _postorder_from(exit_block, predecessors)
    rank = {block: index for index, block in enumerate(order)}
    immediate: dict[int, int] = {exit_block: exit_block}
    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            candidates = [each for each in blocks[block].successors if each in immediate]
            reconvergence = candidates[0]
            for other in candidates[1:]:
                while reconvergence != other:
                    if rank[reconvergence] < rank[other]:
                        reconvergence = immediate[reconvergence]
                    else:
                        other = immediate[other]
            if immediate.get(block) != reconvergence:
                immediate[block] = reconvergence
                changed = True
    # Lanes do not reconverge after a block from which the exit cannot be reached (an endless loop).
    return tuple(immediate.get(block, exit_block) for block in range(exit_block))


def _postorder_from(root: int, edges: Sequence[Sequence[int]]) -> list[int]:
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(edges[root]))]
    while stack:
        node, following = stack[-1]
        unseen = next((each for each in following if each not in seen), None)
        if unseen is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(unseen)
            stack.append((unseen, iter(edges[unseen])))
    return order
