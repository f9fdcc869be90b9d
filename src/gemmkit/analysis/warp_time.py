"""How long one warp of a kernel takes alone: its chain of dependent instructions, and barriers.

The PTX of each loop is laid out as a compiler would schedule it. Between two barriers, an
instruction starts as soon as what it reads is there, branches around single accesses being
turned into predicates; nothing moves over a barrier or around a loop's end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.access_costs import AccessCost
from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.machine import Machine
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Register, Symbol
from gemmkit.jit.ffma import Loop
from gemmkit.jit.issue_order import Latencies, turn_cycles

# The state of a software pipeline repeats after a few turns of its loop.
_TURNS = 6


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of code between two barriers, or between a barrier and a loop's end.

    `latency` is the cycles that one warp alone needs for it, `instructions` are those in it.
    `head` is the first of them: a warp runs through the segment as often as it executes that one.
    """

    head: int
    latency: float
    instructions: tuple[int, ...]


@dataclass(slots=True)
class _Walk:
    """State of the dataflow walk: when each register is ready, and copies under way."""

    ready: defaultdict[Register, float] = field(default_factory=lambda: defaultdict(float))
    copies: list[float] = field(default_factory=list)
    pending: float = 0.0


def segments(profile: BlockProfile, machine: Machine, memory_latency: float) -> list[Segment]:
    """All segments of a kernel that its warps run through, innermost loops apart.

    Args:
        profile: of the kernel.
        machine: the latencies.
        memory_latency: cycles until a sector is there that the SM does not hold yet.
    """
    executed = profile.executed_at[1]
    found: list[Segment] = []
    regions = _regions(profile.flow, executed)
    main = max(
        (blocks for blocks, loops in regions if loops),
        key=lambda blocks: _adds(profile, blocks),
        default=[],
    )
    machine_code = _machine_loops(profile, regions, main)
    for place_of_region, (blocks, loops) in enumerate(regions):
        pieces = _pieces(profile, blocks)
        copies = profile.unroll if loops and len(pieces) == 1 else 1
        walk, clock = _Walk(), 0.0
        latencies = [0.0] * len(pieces)
        for _ in range(_TURNS if loops else 1):
            for place, piece in enumerate(pieces):
                end = _run(profile, machine, memory_latency, piece * copies, walk, clock)
                latencies[place] = (end - clock) / copies
                clock = end
        slower, code = 1.0, profile.main_loop
        if loops and code is not None:
            seen = _memory(profile, machine, memory_latency, pieces)
            loop = machine_code.get(place_of_region)
            if loop is not None:
                adds = sum(_is_fma(profile, number) for piece in pieces for number in piece)
                turn = turn_cycles(loop.words, seen(np.mean)) + loop.waits
                slower = turn * adds / loop.count / sum(latencies)
            elif code.around and len(pieces) > 1:
                # Of several tiles' loads, the next step waits for the last.
                slower = turn_cycles(code.around, seen(np.max)) / sum(latencies)
        slower = max(1.0, slower)
        for latency, piece in zip(latencies, pieces, strict=True):
            found.append(Segment(piece[0], slower * latency, tuple(piece)))
    return found


def _machine_loops(
    profile: BlockProfile, regions: Sequence[tuple[list[int], bool]], main: Sequence[int]
) -> dict[int, Loop]:
    """The machine code of loops that multiply and add, by their places among the regions.

    One stands for each where both codes have as many, in their order; else the main one for the
    main one.
    """
    code = profile.main_loop
    if code is None or not code.loops:
        return {}
    multiplying = [
        place for place, (blocks, loops) in enumerate(regions) if loops and _adds(profile, blocks)
    ]
    multiplying.sort(key=lambda place: profile.flow.blocks[regions[place][0][0]].start)
    if len(multiplying) == len(code.loops):
        return dict(zip(multiplying, code.loops, strict=True))
    largest = max(code.loops, key=lambda loop: loop.count)
    return {place: largest for place in multiplying if regions[place][0] == main}


def _memory(
    profile: BlockProfile,
    machine: Machine,
    memory_latency: float,
    pieces: Sequence[Sequence[int]],
) -> Callable[[Callable[[list[float]], float]], Latencies]:
    """The latencies that a loop sees, of its loads' latencies their mean or maximum."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for number in (each for piece in pieces for each in piece):
        cost = profile.costs.get(number)
        if cost is not None and cost.kind == "load":
            action = profile.actions[number]
            seen[cost.space].append(_latency(action, cost, machine, memory_latency))

    def of(one: Callable[[list[float]], float]) -> Latencies:
        return Latencies(
            float(one(seen["shared"] or [machine.shared_latency])),
            float(one(seen["global"] or [memory_latency])),
            machine.barrier_latency,
        )

    return of


def _is_fma(profile: BlockProfile, number: int) -> bool:
    return profile.actions[number].form.opcode_class == "fma"


def _adds(profile: BlockProfile, blocks: Sequence[int]) -> float:
    """Multiply-adds that these basic blocks execute."""
    executed = profile.executed_at[1]
    return sum(
        float(executed[number])
        for block in blocks
        for number in range(profile.flow.blocks[block].start, profile.flow.blocks[block].end)
        if _is_fma(profile, number)
    )


def issue_cost(profile: BlockProfile, number: int, machine: Machine) -> float:
    """Issue slots that a PTX instruction takes as machine code, by this conversion.

    A multiply-add takes `Machine.ffma_issue`. Accesses that are part of another, address
    conversions, and branches forward, which become predicates, take none. Moves between registers
    are renamed away; constants cost one. 64-bit integer arithmetic takes two. All else takes one.
    """
    action = profile.actions[number]
    operation, form = action.operation, action.form
    if form.opcode_class == "fma":
        return machine.ffma_issue
    if operation in ("convert_address", "load_parameter", "no_operation"):
        return 0.0
    if number in profile.merged_away or (operation == "branch" and _is_forward(profile, number)):
        return 0.0
    if operation == "move":
        return 1.0 if any(isinstance(each, Immediate) for each in action.sources) else 0.0
    if operation == "logic" and form["T"] == "pred":
        return 0.0
    if operation == "load" and form["S"].startswith("shared"):
        return profile.shared_load_share
    wide = form.modifiers.get("T", "").endswith("64")
    if form.opcode_class in ("integer", "bits") and wide:
        return 2.0
    return 1.0


def _is_forward(profile: BlockProfile, number: int) -> bool:
    label = profile.actions[number].instruction.operands[0]
    return isinstance(label, Symbol) and profile.flow.kernel.labels.get(label.name, 0) > number


def _run(
    profile: BlockProfile,
    machine: Machine,
    memory_latency: float,
    piece: Sequence[int],
    walk: _Walk,
    start: float,
) -> float:
    """The end of a piece that begins at `start`."""
    end, slots = start, 0.0
    for number in piece:
        action = profile.actions[number]
        begin = start
        for register in action.registers_read():
            begin = max(begin, walk.ready[register])
        begin = max(begin, _waits(action, walk))
        done = begin + _latency(action, profile.costs.get(number), machine, memory_latency)
        for target in action.dests:
            if target is not None:
                walk.ready[target] = done
        if action.operation == "copy_async":
            walk.pending = max(walk.pending, done)
        elif action.operation == "copy_async_commit":
            walk.copies.append(walk.pending)
            walk.pending = 0.0
        slots += issue_cost(profile, number, machine)
        end = max(end, begin + 1)
        if action.operation == "barrier":
            end += machine.barrier_latency
    return max(end, start + slots)


def _waits(action: Action, walk: _Walk) -> float:
    """When the copies are there that an instruction waits for."""
    if action.operation != "copy_async_wait":
        return 0.0
    left = next((each.value for each in action.sources if isinstance(each, Immediate)), 0)
    arrived = walk.copies[: len(walk.copies) - left] if left else [*walk.copies, walk.pending]
    return max(arrived, default=0.0)


def _latency(
    action: Action, cost: AccessCost | None, machine: Machine, memory_latency: float
) -> float:
    if cost is None:
        return machine.alu_latency
    if cost.space == "shared":
        return machine.shared_latency + cost.data_cycles - 1
    hit = machine.l1_latency + max(cost.data_cycles, cost.tag_cycles)
    if action.operation == "copy_async":
        return hit + memory_latency
    return hit + cost.first_touch * (memory_latency - machine.l1_latency)


def _pieces(profile: BlockProfile, blocks: Sequence[int]) -> list[list[int]]:
    """The instructions of these basic blocks, cut after each barrier."""
    pieces: list[list[int]] = [[]]
    for block in blocks:
        for number in range(profile.flow.blocks[block].start, profile.flow.blocks[block].end):
            pieces[-1].append(number)
            if profile.actions[number].operation == "barrier":
                pieces.append([])
    return [piece for piece in pieces if piece]


# --- loops -----------------------------------------------------------------------------------


def _regions(flow: ControlFlow, executed: NDArray[np.float64]) -> list[tuple[list[int], bool]]:
    """Basic blocks that run, grouped by innermost loop, in their order; and whether it is one."""
    order = _reverse_postorder(flow)
    bodies = _loops(flow, order)
    groups: defaultdict[int | None, list[int]] = defaultdict(list)
    for block in order:
        if executed[flow.blocks[block].start] > 0:
            around = [head for head, body in bodies.items() if block in body]
            groups[min(around, key=lambda head: len(bodies[head]), default=None)].append(block)
    return [(blocks, head is not None) for head, blocks in groups.items()]


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
