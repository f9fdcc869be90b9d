"""Explains a deadlock: which warps wait where and, for each mbarrier that they wait for, how many
phases it has completed and who has arrived at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from gemmkit.emulator.codegen.layout import (
    AT_BARRIER,
    AT_PHASE,
    AT_PRODUCTS,
    DONE,
    LANES,
    RUNNING,
)
from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER
from gemmkit.emulator.machine.errors import barrier_text, cluster_waits, span, waits_text
from gemmkit.emulator.machine.polled import Poll, Polled
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.barrier_order import BarrierOrder
from gemmkit.emulator.sanitizer.granules import instruction_of, thread_of
from gemmkit.emulator.sanitizer.mbarrier_findings import surplus_text
from gemmkit.emulator.sanitizer.parties import listed
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.synccheck import finding, place_text
from gemmkit.findings import Finding

# What warps wait for in a deadlock, or poll for.
_WAITING = (AT_BARRIER, AT_PHASE, AT_PRODUCTS, RUNNING)
# More mbarriers, and lines that arrive at one, would not be read.
_MOST_BARRIERS = 4
_MOST_LINES = 3


def deadlock(names: Names, worker: Worker) -> Finding:
    """All warps of a block wait for others."""
    found = _blocked(names, worker)
    more = "".join(_histories(names, worker))
    return replace(found, message=found.message + more)


def _blocked(names: Names, worker: Worker) -> Finding:
    polls = _first_poll(worker)
    if polls is not None:
        each, poll = polls
        status, first = each.warp_fields("status"), poll.number
    else:
        for each in worker.peers:
            status, at = each.warp_fields("status"), each.warp_fields("instruction")
            waiting = [warp for warp in range(each.warps) if status[warp] in _WAITING]
            if waiting:
                break
        first = int(at[waiting[0]])
    memory = names.memory
    if worker.cluster is not None:
        places = cluster_waits(worker, lambda number: place_text(names, number), memory)
        more = f" and {len(places) - 12} more" * (len(places) > 12)
        rest = f"in the cluster of block {{block}}, blocked: {'; '.join(places[:12])}{more}"
    elif worker.phases is not None or np.isin(status, (AT_PRODUCTS, RUNNING)).any():
        places = waits_text(worker, lambda number: place_text(names, number), memory)
        rest = _in_block(places, 8)
    else:
        places = [
            f"warp {warp} at {names.site(int(at[warp]), None)}{barrier_text(worker, warp)}"
            for warp in waiting
        ]
        rest = _in_block(places, 4)
    found = finding(names, each, "deadlock", first, None, rest)
    if polls is None:
        return found
    array, offset = poll.variable(each, memory)
    return replace(found, array=array, offset=offset or 0)


def _first_poll(worker: Worker) -> tuple[Worker, Poll] | None:
    """The first thing that a warp of a block or its cluster polls for ever, and the block."""
    for each in worker.peers:
        for warp in np.flatnonzero(each.warp_fields("status") == RUNNING).tolist():
            for poll in Polled(each.kernel).by(each, warp):
                return each, poll
    return None


def _in_block(places: list[str], most: int) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return f"in block {{block}}, blocked: {'; '.join(places[:most])}{more}"


def _histories(names: Names, worker: Worker) -> Iterator[str]:
    """A sentence for each of the awaited mbarriers."""
    told = 0
    for each in worker.peers:
        order = each.observer
        if each.phases is None or not isinstance(order, BarrierOrder):
            continue
        awaited: dict[int, list[int]] = {}
        for warp in range(each.warps):
            for wait in each.phases.waits(warp):
                for address in wait.awaited:
                    awaited.setdefault(address, []).append(warp)
        awaited.pop(CLUSTER_BARRIER, None)
        for address, warps in awaited.items():
            told += 1
            if told <= _MOST_BARRIERS:
                yield from _history(names, each, order, address, warps)


def _history(
    names: Names, worker: Worker, order: BarrierOrder, address: int, warps: Sequence[int]
) -> Iterator[str]:
    """What became of an mbarrier for which these warps wait."""
    past = order.past(address)
    if past is None:
        return
    array, offset, _ = order.parties.place(address)
    of = f" of rank {worker.rank}" if worker.cluster is not None else ""
    phases = "no phase" if not past.phases else f"{past.phases:,} phase{'s' * (past.phases > 1)}"
    text = f". The mbarrier at byte {offset} of '{array}'{of} has completed {phases}"
    # Who waits for every phase, with the right parity, has observed all of them.
    missed = {warp: past.observed[warp] for warp in warps if warp in past.observed}
    missed = {warp: seen for warp, seen in missed.items() if seen < past.phases}
    if missed:
        seen = max(missed.values())
        text += f", of which warp{'s' * (len(missed) > 1)} {span([*missed])} waited for {seen}"
    if not past.arrivals:
        # Its log may be too short for what came long ago.
        yield text if past.phases else f"{text}, and nobody has arrived at it"
        return
    lines: dict[str, dict[tuple[int, int], None]] = {}
    for who in past.arrivals:
        line = place_text(names, instruction_of(who))
        warp = thread_of(who) // LANES
        lines.setdefault(line, {})[divmod(warp, worker.warps)] = None
    said = [_arrivers(worker, line, [*warps]) for line, warps in [*lines.items()][:_MOST_LINES]]
    yield f"{text}; arrivals so far: {listed(said)}"
    if past.surplus is not None:
        yield f". {surplus_text(*past.surplus)}"
    # Where phases have completed, what arrives each time was enough.
    alone = set() if past.phases else _arrivals_for_none(names, past.current)
    if alone:
        yield (
            f". The cp.async.mbarrier.arrive at {names.site(min(alone), None)} has no .noinc: it "
            "adds a pending arrival before it arrives, and so is none of those that the phase "
            "expects"
        )


def _arrivers(worker: Worker, line: str, warps: list[tuple[int, int]]) -> str:
    """Warps, each with the rank of its block, that arrived at a line, and what they do now."""
    by_state: dict[tuple[int, str], list[int]] = {}
    for rank, warp in sorted(warps):
        status = int(worker.peers[rank].warp_fields("status")[warp])
        state = "exited" if status == DONE else "blocked"
        by_state.setdefault((rank, state), []).append(warp)
    parts = []
    for (rank, state), numbers in by_state.items():
        of = f" of rank {rank}" if worker.cluster is not None else ""
        parts.append(f"warp{'s' * (len(numbers) > 1)} {span(numbers)}{of}, now {state},")
    return f"{listed(parts)} at {line}"


def _arrivals_for_none(names: Names, arrivals: Sequence[int]) -> set[int]:
    """The instructions that arrive for copies without .noinc, in warps that do not arrive in any
    other way in this phase, as those of a `cuda::pipeline` do."""
    found: dict[int, set[int]] = {}
    others = set()
    for who in arrivals:
        number, warp = instruction_of(who), thread_of(who) // LANES
        action = names.actions[number]
        if action.operation == "mbarrier_arrive_copies" and action.form.modifiers["K"] != "noinc":
            found.setdefault(warp, set()).add(number)
        else:
            others.add(warp)
    return {number for warp, numbers in found.items() if warp not in others for number in numbers}
