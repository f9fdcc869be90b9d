"""The time of one warp of a kernel alone: its chain of dependent instructions, and barriers.

The PTX of each loop is scheduled as a compiler would do it. Between two barriers, an instruction
starts as soon as its operands are available, with branches around single accesses turned into
predicates; nothing moves across a barrier or the end of a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from gemmkit.analysis.access_costs import AccessCost
from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.code_regions import (
    Region,
    adds_of,
    barriers_in,
    loads_from_shared,
    loop_around,
    multiply_adds_in,
    regions_of,
)
from gemmkit.analysis.machine import Machine
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.matrix_access import is_matrix, pieces
from gemmkit.emulator.ptx.module import Immediate, Register, Symbol
from gemmkit.jit.ffma import Loop
from gemmkit.jit.issue_order import Latencies, LoadStall, barriers, load_stall, turn_cycles

# The state of a software pipeline repeats after a few iterations of its loop.
_TURNS = 6

# What an instruction waits for; the results of all but loads come soon.
Cause = Literal["global loads", "cp.async", "shared loads", "barrier", "dependent instructions"]
_OTHER: Cause = "dependent instructions"
_LOADS: dict[str, Cause] = {"global": "global loads", "shared": "shared loads"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of code between two barriers, or between a barrier and a loop's end.

    `latency` is the cycles that one warp alone needs for it, `instructions` are its instructions.
    `head` is the first of them: a warp executes the segment as often as that instruction.
    """

    head: int
    latency: float
    instructions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Issued:
    """An instruction in the walk of a piece, with cycles from the start of the piece.

    `time` is when it issues: its operands are there, and those before it have had their issue
    slots, `slots` of which are its own. `latency` is the time until its result is there. `cause` is
    what it waited for if it waited. `age` is how many turns of the loop ago the values were loaded
    from global memory that it depends on; None if there are none.
    """

    number: int
    time: float
    slots: float
    latency: float
    cause: Cause
    age: int | None


@dataclass(slots=True)
class _Walk:
    """State of the dataflow walk: when each register is ready, the start of the last store to
    global memory, and copies in flight; for each register, what its value waited for and the turn
    in which it was loaded from global memory."""

    ready: defaultdict[Register, float] = field(default_factory=lambda: defaultdict(float))
    stored: float = 0.0
    copies: list[float] = field(default_factory=list)
    pending: float = 0.0
    causes: dict[Register, Cause] = field(default_factory=dict)
    loaded: dict[Register, int] = field(default_factory=dict)
    turn: int = 0


def segments(profile: BlockProfile, machine: Machine, memory_latency: float) -> list[Segment]:
    """All segments that the warps of a kernel execute, with innermost loops separate.

    Args:
        profile: of the kernel.
        machine: the latencies.
        memory_latency: cycles of a load that misses in the L1.
    """
    regions = regions_of(profile)
    walked = [_walked(profile, machine, memory_latency, region) for region in regions]
    whole = _machine_turns(profile, machine, memory_latency, regions, walked)
    found: list[Segment] = []
    looping: list[Segment] = []
    for place, (region, latencies) in enumerate(zip(regions, walked, strict=True)):
        slower = max(1.0, whole.get(place, 0.0) / max(sum(latencies), 1.0))
        those = [
            Segment(piece[0], slower * latency, tuple(piece))
            for latency, piece in zip(latencies, region.pieces, strict=True)
        ]
        (looping if region.loops else found).extend(those)
    return [*found, *_in_turns(profile, looping)]


def _in_turns(profile: BlockProfile, looping: Sequence[Segment]) -> list[Segment]:
    """The segments of loops in which barriers make warps multiply in turns.

    A warp waits while the others multiply, and does its other work in that time.
    """
    more = profile.turns_of_warps - 1
    multiplies = [loads_from_shared(profile, each.instructions) for each in looping]
    if more <= 0 or not any(multiplies):
        return list(looping)
    total = {True: 0.0, False: 0.0}
    for each, multiplying in zip(looping, multiplies, strict=True):
        total[multiplying] += each.latency * float(profile.executed_at[1][each.head])
    left = max(total[False] - more * total[True], 0.0) / max(total[False], 1.0)
    return [
        replace(each, latency=each.latency * (1 + more if multiplying else left))
        for each, multiplying in zip(looping, multiplies, strict=True)
    ]


def _walked(
    profile: BlockProfile, machine: Machine, memory_latency: float, region: Region
) -> list[float]:
    """Cycles of each piece of a region according to its PTX, in the steady state of a loop."""
    copies = copies_of(profile, region)
    walked = issued_in(profile, machine, memory_latency, region)
    return [latency / copies for latency, _ in walked]


def copies_of(profile: BlockProfile, region: Region) -> int:
    """How many turns of a loop ptxas unrolls into one, which meet latency together."""
    return profile.unroll if region.loops and len(region.pieces) == 1 else 1


def issued_in(
    profile: BlockProfile, machine: Machine, memory_latency: float, region: Region
) -> list[tuple[float, list[Issued]]]:
    """Cycles and instructions of each piece of a region according to its PTX.

    It is the steady state of a loop, with `copies_of` turns as one.
    """
    copies = copies_of(profile, region)
    memory_latency = _arrival(profile, machine, memory_latency, region)
    walk, clock = _Walk(), 0.0
    walked: list[tuple[float, list[Issued]]] = []
    turns = _TURNS if region.loops else 1
    for turn in range(turns):
        walk.turn, walked = turn, []
        for piece in region.pieces:
            seen: list[Issued] | None = [] if turn == turns - 1 else None
            end = _run(profile, machine, memory_latency, piece * copies, walk, clock, seen)
            walked.append((end - clock, seen or []))
            clock = end
    return walked


def _arrival(
    profile: BlockProfile, machine: Machine, memory_latency: float, region: Region
) -> float:
    """Latency of a region's loads: that of a tile if a barrier waits for it."""
    return memory_latency * (machine.tile_spread if barriers_in(profile, region) else 1.0)


def _machine_turns(
    profile: BlockProfile,
    machine: Machine,
    memory_latency: float,
    regions: Sequence[Region],
    walked: Sequence[Sequence[float]],
) -> dict[int, float]:
    """Cycles per iteration of regions according to their machine code, which issues in order."""
    code = profile.main_loop
    if code is None:
        return {}
    found: dict[int, float] = {}
    for place, loop in _machine_loops(profile, regions).items():
        region = regions[place]
        around, pieces, spent = loop_around(regions, region), region.pieces, 0.0
        far = _arrival(profile, machine, memory_latency, region)
        if around is not None and barriers(loop.words) and not barriers_in(profile, region):
            # ptxas has fully unrolled this loop: its machine code is that of the enclosing loop.
            pieces = [*pieces, *regions[around].pieces]
            spent = sum(walked[around])
            far = _arrival(profile, machine, memory_latency, regions[around])
        latencies = _memory(profile, machine, far, pieces)(np.mean)
        turn = turn_cycles(loop.words, latencies) + loop.waits - spent
        found[place] = turn * multiply_adds_in(profile, region) / loop.count
    main = max(found, key=lambda place: adds_of(profile, regions[place]), default=None)
    around = None if main is None else loop_around(regions, regions[main])
    if around is not None and code.around:
        # With loads of several tiles, the next step waits for the last.
        far = _arrival(profile, machine, memory_latency, regions[around])
        seen = _memory(profile, machine, far, regions[around].pieces)
        found[around] = turn_cycles(code.around, seen(np.max))
    return found


def machine_load_stall(
    profile: BlockProfile, machine: Machine, memory_latency: float, region: Region
) -> LoadStall:
    """How long a turn of an innermost loop waits for global loads where ptxas has placed them.

    Its cycles are 0 if the machine code is unknown, or has fewer turns than the PTX.
    """
    regions = regions_of(profile)
    place = next(at for at, each in enumerate(regions) if each.blocks == region.blocks)
    loop = _machine_loops(profile, regions).get(place)
    if loop is None or loop.count != multiply_adds_in(profile, region):
        return LoadStall(0.0, 0.0)
    far = _arrival(profile, machine, memory_latency, region)
    return load_stall(loop.words, _memory(profile, machine, far, region.pieces)(np.mean))


def _machine_loops(profile: BlockProfile, regions: Sequence[Region]) -> dict[int, Loop]:
    """The machine code of innermost loops with multiply-adds, by their index among the regions.

    If PTX and machine code have equally many, they correspond in order; otherwise the largest
    corresponds to the one with the most multiply-adds.
    """
    code = profile.main_loop
    multiplying = [
        place
        for place, region in enumerate(regions)
        if region.loops and region.innermost and multiply_adds_in(profile, region)
    ]
    if code is None or not code.loops or not multiplying:
        return {}
    multiplying.sort(key=lambda place: profile.flow.blocks[regions[place].blocks[0]].start)
    if len(multiplying) == len(code.loops):
        return dict(zip(multiplying, code.loops, strict=True))
    main = max(multiplying, key=lambda place: adds_of(profile, regions[place]))
    return {main: max(code.loops, key=lambda loop: loop.count)}


def _memory(
    profile: BlockProfile,
    machine: Machine,
    memory_latency: float,
    pieces: Sequence[Sequence[int]],
) -> Callable[[Callable[[list[float]], float]], Latencies]:
    """The latencies in a loop, with the mean or maximum over its loads."""
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


def issue_cost(profile: BlockProfile, number: int, machine: Machine) -> float:
    """Issue slots of a PTX instruction in machine code, by these rules.

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
    if is_matrix(form):
        return float(len(pieces(form)))
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
    seen: list[Issued] | None,
) -> float:
    """The end of a piece that starts at `start`, with its instructions added to `seen`."""
    end, slots = start, 0.0
    for number in piece:
        action = profile.actions[number]
        begin, cause, loaded = start, _OTHER, -1
        for register in action.registers_read():
            loaded = max(loaded, walk.loaded.get(register, -1))
            if walk.ready[register] > begin:
                begin, cause = walk.ready[register], walk.causes[register]
        copied = _waits(action, walk)
        if copied > begin:
            begin, cause = copied, "cp.async"
        cost = profile.costs.get(number)
        if cost is not None and (cost.space, cost.kind) == ("global", "load"):
            # No compiler moves a load before a store that might alias.
            if ".nc" not in action.instruction.opcode:
                begin = max(begin, walk.stored)
        elif cost is not None and (cost.space, cost.kind) == ("global", "store"):
            walk.stored = max(walk.stored, begin)
        latency = _latency(action, cost, machine, memory_latency)
        done = begin + latency
        own = _LOADS.get(cost.space) if cost is not None and cost.kind == "load" else None
        if own is not None:
            loaded = walk.turn if own == "global loads" else -1
        for target in action.dests:
            if target is not None:
                walk.ready[target] = done
                walk.causes[target] = own or cause
                walk.loaded[target] = loaded
        if action.operation == "copy_async":
            walk.pending = max(walk.pending, done)
        elif action.operation == "copy_async_commit":
            walk.copies.append(walk.pending)
            walk.pending = 0.0
        taken = issue_cost(profile, number, machine)
        if seen is not None:
            age = walk.turn - loaded if loaded >= 0 else None
            time = max(begin, start + slots) - start
            seen.append(Issued(number, time, taken, latency, cause, age))
        slots += taken
        end = max(end, begin + 1)
        if action.operation == "barrier":
            end += machine.barrier_latency
    return max(end, start + slots)


def _waits(action: Action, walk: _Walk) -> float:
    """When the copies complete that an instruction waits for."""
    if action.operation != "copy_async_wait":
        return 0.0
    left = next((each.value for each in action.sources if isinstance(each, Immediate)), 0)
    arrived = walk.copies[: len(walk.copies) - left] if left else [*walk.copies, walk.pending]
    return max(arrived, default=0.0)


def _latency(
    action: Action, cost: AccessCost | None, machine: Machine, memory_latency: float
) -> float:
    if action.operation in ("multiply_matrices", "multiply_fragments", "wgmma_multiply"):
        return machine.tensor_latency
    if cost is None:
        return machine.alu_latency
    if cost.space == "shared":
        return machine.shared_latency + cost.data_cycles - 1
    hit = machine.l1_latency + max(cost.data_cycles, cost.tag_cycles)
    if action.operation == "copy_async":
        return hit + memory_latency
    if cost.written:
        memory_latency = machine.dram_latency
    return hit + cost.first_touch * (memory_latency - machine.l1_latency)
