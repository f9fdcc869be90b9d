"""The executed code of a kernel, grouped by loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.emulator.ptx.cfg import ControlFlow


@dataclass(frozen=True, slots=True)
class Region:
    """Executed basic blocks with the same innermost loop, or none.

    `pieces` are their instructions, split after each barrier; `body` all blocks of the loop,
    including nested loops; `innermost` says whether no nested loop is executed.
    """

    blocks: tuple[int, ...]
    pieces: list[list[int]]
    body: frozenset[int]
    innermost: bool

    @property
    def loops(self) -> bool:
        """Whether it is a loop."""
        return bool(self.body)


def regions_of(profile: BlockProfile) -> list[Region]:
    """The executed regions, by innermost loop, in program order."""
    flow, executed = profile.flow, profile.executed_at[1]
    order = _reverse_postorder(flow)
    bodies = _loops(flow, order)
    groups: defaultdict[int | None, list[int]] = defaultdict(list)
    for block in order:
        if executed[flow.blocks[block].start] > 0:
            around = [head for head, body in bodies.items() if block in body]
            groups[min(around, key=lambda head: len(bodies[head]), default=None)].append(block)
    return [
        Region(
            blocks=tuple(blocks),
            pieces=_pieces(profile, blocks),
            body=frozenset(bodies[head]) if head is not None else frozenset(),
            innermost=not any(
                other in (bodies[head] if head is not None else ())
                for other in groups
                if other != head
            ),
        )
        for head, blocks in groups.items()
    ]


def loop_around(regions: Sequence[Region], inner: Region) -> int | None:
    """The index of the smallest enclosing loop; None if there is none."""
    outside = [
        place
        for place, region in enumerate(regions)
        if region.loops and region is not inner and inner.body <= region.body
    ]
    return min(outside, key=lambda place: len(regions[place].body), default=None)


def is_fma(profile: BlockProfile, number: int) -> bool:
    """Whether an instruction multiplies and adds."""
    return profile.actions[number].form.opcode_class == "fma"


def multiply_adds_in(profile: BlockProfile, region: Region) -> int:
    """Multiply-adds in the PTX of a region."""
    return sum(is_fma(profile, number) for piece in region.pieces for number in piece)


def adds_of(profile: BlockProfile, region: Region) -> float:
    """Multiply-adds that a region executes."""
    executed = profile.executed_at[1]
    numbers = (number for piece in region.pieces for number in piece)
    return sum(float(executed[number]) for number in numbers if is_fma(profile, number))


def barriers_in(profile: BlockProfile, region: Region) -> int:
    """Barriers in the PTX of a region."""
    numbers = (number for piece in region.pieces for number in piece)
    return sum(profile.actions[number].operation == "barrier" for number in numbers)


def loads_from_shared(profile: BlockProfile, numbers: Sequence[int]) -> bool:
    """Whether any of these instructions loads from shared memory."""
    costs = (profile.costs.get(number) for number in numbers)
    return any(cost and (cost.space, cost.kind) == ("shared", "load") for cost in costs)


def _pieces(profile: BlockProfile, blocks: Sequence[int]) -> list[list[int]]:
    """The instructions of these basic blocks, split after each barrier."""
    pieces: list[list[int]] = [[]]
    for block in blocks:
        for number in range(profile.flow.blocks[block].start, profile.flow.blocks[block].end):
            pieces[-1].append(number)
            if profile.actions[number].operation == "barrier":
                pieces.append([])
    return [piece for piece in pieces if piece]


def _loops(flow: ControlFlow, order: Sequence[int]) -> Mapping[int, set[int]]:
    """Natural loops: the block at the top of each, and all of its blocks."""
    rank = {block: place for place, block in enumerate(order)}
    before: defaultdict[int, list[int]] = defaultdict(list)
    for block in order:
        for after in flow.blocks[block].successors:
            before[after].append(block)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for head in flow.blocks[block].successors:
            if head in rank and rank[head] <= rank[block]:
                body = bodies.setdefault(head, {head})
                open_blocks = [block]
                while open_blocks:
                    each = open_blocks.pop()
                    if each not in body:
                        body.add(each)
                        open_blocks += before[each]
    return bodies


def _reverse_postorder(flow: ControlFlow) -> list[int]:
    seen, order = {0}, list[int]()
    stack = [(0, iter(flow.blocks[0].successors))] if flow.blocks else []
    while stack:
        block, following = stack[-1]
        fresh = next(
            (each for each in following if each not in seen and each < len(flow.blocks)), None
        )
        if fresh is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(flow.blocks[fresh].successors)))
    return order[::-1]
