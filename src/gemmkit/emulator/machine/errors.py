"""Errors of a kernel as one sentence with the source position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gemmkit.emulator.clusters import MOST_BLOCKS
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    AT_BARRIER,
    AT_PRODUCTS,
    DONE,
    LANES,
    RUNNING,
    WINDOW_BYTES,
    WINDOWS,
)
from gemmkit.emulator.codegen.operands import Action, access_bytes
from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER, RANK_SHIFT, divided, reaches_peers
from gemmkit.emulator.isa.table import stop_of
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.errors import DeviceError

if TYPE_CHECKING:
    from gemmkit.emulator.machine.asynchronous import Wait, Waiting
    from gemmkit.emulator.machine.refusals import Refusal

# Names of accesses in messages.
ACCESS_KINDS = {
    "load": "load",
    "store": "store",
    "copy_async": "cp.async",
    "atomic": "atomic operation",
    "compare_and_swap": "atomic operation",
    "reduction": "atomic operation",
}


def access_error(worker: Worker, memory: DeviceMemory) -> DeviceError:
    """The access that native code refused."""
    number = worker.site_number(worker.field("fault_site"))
    address = worker.field("fault_address") % (1 << 64)
    warp = worker.warp_number(worker.field("running"))
    return outside_error(worker, memory, number, warp * LANES + worker.field("fault_lane"), address)


def outside_error(
    worker: Worker, memory: DeviceMemory, number: int, thread: int, address: int
) -> DeviceError:
    """One thread's access that is out of bounds or misaligned."""
    action = worker.kernel.actions[number]
    size = access_bytes(action)
    kind = ACCESS_KINDS[action.operation]
    if address % size:
        what = f"misaligned {kind} of {size} bytes"
    else:
        what = f"{kind} of {size} bytes out of bounds"
    error = DeviceError(
        f"{_kernel(worker)}: {what}{_where(worker, memory, action, address)}, by "
        f"'{action.form.opcode}' at {action.instruction.where}, {thread_text(worker, thread)}"
    )
    source = action.instruction.named
    error.place = (source.file, source.line) if source is not None else None
    return error


def _where(worker: Worker, memory: DeviceMemory, action: Action, address: int) -> str:
    """The nearest array, or the address and the space that does not have it."""
    space = action.form.modifiers.get("S", "").removesuffix("::cta")
    if action.operation == "copy_async" and address < WINDOW_BYTES:
        space = "shared"
    if worker.cluster is not None and reaches_peers(action.form):
        in_cluster = address if address < WINDOW_BYTES else address - WINDOWS["shared"]
        if 1 <= in_cluster >> RANK_SHIFT <= MOST_BLOCKS:
            rank, within = divided(in_cluster, worker.rank)
            return (
                f" at byte {within:,} of the shared memory of rank {rank}, in a cluster of "
                f"{len(worker.peers)} blocks with {worker.shared_bytes:,} bytes each"
            )
    if space == "shared":
        base = worker.shared_base
        if address < base:
            return f" at {address:#x}, {reserved_memory(base)}"
        begins = f" that begin at {base:#x}" if base else ""
        return f" at {address:#x} in {worker.shared_bytes} bytes of shared memory{begins}"
    if space == "local":
        return f" at {address:#x} in {worker.flow.kernel.local_bytes} bytes of local memory"
    nearest = memory.nearest(address)
    if nearest is None:
        return f" at {address:#x}, where no memory is allocated"
    name = f"'{nearest.name}'" if nearest.name else "the allocation"
    offset = address - nearest.address
    if 0 <= offset < nearest.nbytes:
        return f", byte {offset} of {name} ({nearest.nbytes} bytes)"
    if offset >= nearest.nbytes:
        beyond = f"{offset - nearest.nbytes} bytes past the end of"
    else:
        beyond = f"{-offset} bytes before"
    return f", {beyond} {name} ({nearest.nbytes} bytes)"


def _kernel(worker: Worker) -> str:
    return f"kernel '{worker.flow.kernel.source_name}'"


def reserved_memory(base: int) -> str:
    """The addresses below a block's own shared memory, in words."""
    return (
        f"in the {base:,} bytes that the system reserves: a block's own memory begins at {base:#x}"
    )


def thread_text(worker: Worker, thread: int) -> str:
    """A thread of the running block, in words."""
    x, y, _ = worker.grid.request.block
    rank = f" (rank {worker.rank})" if worker.cluster is not None else ""
    place = (thread % x, thread // x % y, thread // (x * y))
    return f"thread {place} of block {worker.block}{rank}"


def refusal_error(worker: Worker, refusal: Refusal) -> DeviceError:
    """One thread's asynchronous instruction that is not valid."""
    action = worker.kernel.actions[refusal.number]
    return DeviceError(
        f"{_kernel(worker)}: {refusal.kind}: {thread_text(worker, refusal.thread)} {refusal.what}, "
        f"by '{action.form.opcode}' at {action.instruction.where}"
    )


def deadlock_error(worker: Worker, memory: DeviceMemory) -> DeviceError:
    """All warps of a block wait for others, or all those of a cluster."""
    body = worker.flow.kernel.body
    where = f"block {worker.block}"
    if worker.cluster is not None:
        where = f"the cluster of block {worker.peers[0].block}"
    waits = cluster_waits(worker, lambda number: body[number].where, memory)
    return DeviceError(f"{_kernel(worker)}: deadlock in {where}: {'; '.join(waits)}")


def cluster_waits(
    worker: Worker, place: Callable[[int], str], memory: DeviceMemory | None = None
) -> list[str]:
    """What the warps of a block wait for, as `waits_text` has it; in a cluster, those of each block
    that has not ended, with its rank."""
    if worker.cluster is None:
        return waits_text(worker, place, memory)
    found = []
    for each in worker.peers:
        if (each.warp_fields("status") != DONE).any():
            waits = waits_text(each, place, memory)
            found += [f"block {each.block} (rank {each.rank}): {waits[0]}", *waits[1:]]
        else:
            found.append(f"block {each.block} (rank {each.rank}) has ended")
    return found


def waits_text(
    worker: Worker, place: Callable[[int], str], memory: DeviceMemory | None = None
) -> list[str]:
    """Which warps wait, where and for what; then which have exited.

    `place` gives the source position of an instruction. With the memory, also what is known of the
    warps that poll it.
    """
    status, at = worker.warp_fields("status"), worker.warp_fields("instruction")
    phases = worker.phases
    # Warps that wait in the same way are named together.
    together: dict[tuple[str, str], list[int]] = {}
    apart: list[str] = []
    for warp in range(worker.warps):
        if status[warp] == AT_BARRIER:
            text = f"at {place(int(at[warp]))}{barrier_text(worker, warp)}"
            together.setdefault(("wait", text), []).append(warp)
        elif status[warp] == AT_PRODUCTS:
            text = f"at {place(int(at[warp]))}{products_text(worker, warp)}"
            together.setdefault(("wait", text), []).append(warp)
        elif phases is not None and status[warp] != DONE:
            living = int(~worker.warp_fields("exited")[warp] & worker.warp_fields("initial")[warp])
            for wait in phases.waits(warp):
                text = f"at {place(wait.number)} for {_awaited(phases, wait)}"
                does = "poll" if wait.polls else "wait"
                if wait.lanes == living & ALL_LANES:
                    together.setdefault((does, text), []).append(warp)
                else:
                    apart.append(_of_lanes(warp, wait.lanes, does, text))
        if memory is not None and status[warp] == RUNNING:
            living = int(~worker.warp_fields("exited")[warp] & worker.warp_fields("initial")[warp])
            lanes, text = polls_text(worker, warp, place, memory)
            if not lanes and not (phases is not None and phases.waits(warp)):
                lanes, text = living & ALL_LANES, f"at {place(int(at[warp]))}"
            if lanes == living & ALL_LANES:
                together.setdefault(("poll", text), []).append(warp)
            elif lanes:
                apart.append(_of_lanes(warp, lanes, "poll", text))
    found = [f"{_verb('warp', warps, does)} {text}" for (does, text), warps in together.items()]
    exited = [warp for warp in range(worker.warps) if status[warp] == DONE]
    if exited and (phases is not None or (status == AT_PRODUCTS).any()):
        apart.append(f"warp{'s' * (len(exited) > 1)} {span(exited)} exited")
    return found + apart


def _of_lanes(warp: int, lanes: int, does: str, text: str) -> str:
    """What lanes of a warp (a mask) do."""
    numbers = [lane for lane in range(LANES) if lanes >> lane & 1]
    return f"{_verb('lane', numbers, does, f' of warp {warp}')} {text}"


def polls_text(
    worker: Worker, warp: int, place: Callable[[int], str], memory: DeviceMemory
) -> tuple[int, str]:
    """The lanes of a warp that poll memory for ever, as a mask, and where and for what they do."""
    from gemmkit.emulator.machine.polled import Polled

    polls = Polled(worker.kernel).by(worker, warp)
    if not polls:
        return 0, ""
    each = [f"at {place(poll.number)} for {poll.text(worker, memory)}" for poll in polls[:2]]
    more = f" and {len(polls) - 2} more" * (len(polls) > 2)
    return polls[0].lanes, " and ".join(dict.fromkeys(each)) + more


def barrier_text(worker: Worker, warp: int) -> str:
    """The barrier of a block at which a warp waits, with its counts; empty for the one of
    `__syncthreads()`, at which all threads meet."""
    number = int(worker.warp_fields("barrier")[warp])
    arrived, expected = worker.barrier_counts(number)
    if not number and not expected:
        return ""
    arrived, expected = arrived * LANES, (expected or worker.warps) * LANES
    return f" for barrier {number} ({arrived:,} of {expected:,} threads)"


def products_text(worker: Worker, warp: int) -> str:
    """For which warps of its warpgroup a warp waits at a `wgmma.wait_group`."""
    first, issued = warp // WARPS * WARPS, worker.warp_fields("products")
    awaited = int(worker.warp_fields("products_awaited")[warp])
    absent = [each for each in range(first, first + WARPS) if issued[each] < awaited]
    several = len(absent) > 1
    has = "have" if several else "has"
    return f" for a wgmma that warp{'s' * several} {span(absent)} of its warpgroup {has} not issued"


def _verb(name: str, numbers: Sequence[int], does: str, more: str = "") -> str:
    """`lanes 1-3 of warp 0 wait`, or `warp 2 waits`."""
    several = len(numbers) > 1
    return f"{name}{'s' * several} {span(numbers)}{more} {does}{'s' * (not several)}"


def _awaited(phases: Waiting, wait: Wait) -> str:
    if CLUSTER_BARRIER in wait.awaited:
        return phases.text(CLUSTER_BARRIER)
    each = [f"the phase of parity {p} of {phases.text(a)}" for a, p in wait.awaited.items()]
    return " and ".join(each[:2]) + f" and {len(each) - 2} more" * (len(each) > 2)


def span(numbers: Sequence[int]) -> str:
    """Ascending numbers in words, with ranges abbreviated."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def trap_error(worker: Worker) -> DeviceError:
    """The kernel stopped itself."""
    warp = worker.warp_number(worker.field("running"))
    stop = worker.flow.kernel.body[worker.warp_fields("instruction")[warp]]
    return DeviceError(
        f"{_kernel(worker)}: {stop_of(stop)} at {stop.where}, warp {warp} of block {worker.block}"
    )


def endless_error(worker: Worker, limit: int | None, memory: DeviceMemory) -> DeviceError:
    """A block ran for longer than the limit, or is seen to repeat what it does."""
    status, at = worker.warp_fields("status"), worker.warp_fields("instruction")
    body = worker.flow.kernel.body

    def place(number: int) -> str:
        return body[number].where

    if limit is None:
        waits = "; ".join(cluster_waits(worker, place, memory))
        more = f"{lanes_text(worker, place)}{blocks_text(worker)}"
        return DeviceError(f"{_kernel(worker)}: block {worker.block} does not end: {waits}{more}")
    running = [
        f"warp {warp} at {body[at[warp]].where}"
        for warp in range(worker.warps)
        if status[warp] == RUNNING
    ]
    running = running[:4]
    if worker.phases is not None:
        running += cluster_waits(worker, place)
    error = DeviceError(
        f"{_kernel(worker)}: block {worker.block} did not end within {limit:,} "
        f"steps: {'; '.join(running)}{lanes_text(worker, place)}. If it is only slow, allow more "
        "steps (--max-steps)"
    )
    error.steps = limit
    return error


def lanes_text(worker: Worker, place: Callable[[int], str]) -> str:
    """That lanes of a warp that polls might go on if they ran; empty if there are none."""
    from gemmkit.emulator.machine.polled import Polled

    found = Polled(worker.kernel).kept_waiting(worker)
    if found is None:
        return ""
    warp, lanes, number = found
    numbers = [lane for lane in range(LANES) if lanes >> lane & 1]
    return (
        f"; {_verb('lane', numbers, 'wait', f' of warp {warp}')} for the lanes that poll, to go on "
        f"together at {place(number)}: gemmkit keeps the lanes of a warp together, so nothing that "
        "comes after the loop can end it. A GPU may do the same: what ends it must come before, or "
        "be done by another warp"
    )


def blocks_text(worker: Worker) -> str:
    """That blocks have not begun which may be waited for; empty if there are none."""
    left, at_once = worker.grid.left, worker.grid.request.at_once
    if left <= 0 or not worker.kernel.compiled.polls:
        return ""
    if at_once <= 1:
        return "; blocks run one after the other, and none waits for a later one"
    return (
        f"; {left:,} more have not begun, as at most {at_once:,} blocks run at a time, one per SM"
    )
