"""Explains faults of threads that wait: barriers, traps, kernels that do not end."""

from __future__ import annotations

from msgspec.structs import replace

from gemmkit.emulator.codegen.layout import AT_BARRIER, BARRIERS, LANES, RUNNING
from gemmkit.emulator.codegen.shadow_layout import (
    BARRIER_COUNT,
    BARRIER_DIFFERS,
    BARRIER_DIVERGENT,
    BARRIER_NUMBER,
    BARRIER_SITES,
)
from gemmkit.emulator.machine.errors import (
    blocks_text,
    cluster_waits,
    lanes_text,
    span,
    waits_text,
)
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.sites import Names, at
from gemmkit.findings import Check, Finding, Triple


def finding(
    names: Names,
    worker: Worker,
    kind: str,
    number: int,
    thread: Triple | None,
    what: str,
    check: Check = "synccheck",
) -> Finding:
    """A finding at an instruction; `what` may use {here}, {line} and {block}."""
    block = names.block(worker.number)
    here = names.site(number, thread)
    named = f"{block} (rank {worker.rank})" if worker.cluster is not None else block
    message = f"{kind}: {what.format(here=at(here), line=here, block=named)}"
    return Finding(check=check, kind=kind, message=message, block=block, here=here)


def _lanes(mask: int) -> list[int]:
    return [lane for lane in range(LANES) if mask >> lane & 1]


def barrier(names: Names, worker: Worker, what: int, number: int, more: int) -> Finding:
    """An invalid use of a barrier."""
    warp = worker.warp_number(worker.field("running"))
    if what == BARRIER_NUMBER:
        rest = f"{{here}} of block {{block}} waits at barrier {more}; there are {BARRIERS}"
        return finding(names, worker, "invalid barrier", number, names.lane(warp, 0), rest)
    if what == BARRIER_COUNT:
        rest = (
            f"{{here}} of block {{block}} waits for {more} threads; the count must be a multiple "
            f"of {LANES} and at most the block's {worker.warps * LANES}"
        )
        return finding(names, worker, "invalid thread count", number, names.lane(warp, 0), rest)
    if what == BARRIER_DIFFERS:
        mine, others = more >> 32, more & 0xFFFFFFFF
        rest = (
            f"{{here}} of block {{block}} gives a count of {mine:,} threads at a barrier for which "
            f"other warps, which have arrived, give {others:,}; all must give the same"
        )
        return finding(names, worker, "different thread counts", number, names.lane(warp, 0), rest)
    if what == BARRIER_DIVERGENT:
        living = int(worker.warp_fields("initial")[warp]) & ~int(worker.warp_fields("exited")[warp])
        absent = _lanes(living & ~more)
        first = _lanes(more & 0xFFFFFFFF)[0]
        rest = (
            f"{{here}} of block {{block}} reaches the barrier without lanes {span(absent)} of "
            f"its warp {warp}"
        )
        return finding(names, worker, "divergent barrier", number, names.lane(warp, first), rest)
    assert what == BARRIER_SITES
    status, places = worker.warp_fields("status"), worker.warp_fields("instruction")
    first, second = (
        next(w for w in range(worker.warps) if status[w] == AT_BARRIER and places[w] == index)
        for index in (number, more)
    )
    rest = (
        f"warp {first} of block {{block}} waits at {{line}} while warp {second} waits at "
        f"{names.site(more, None)}; all threads of a block must reach the same barrier"
    )
    return finding(names, worker, "divergent barrier", number, names.lane(first, 0), rest)


def copies(names: Names, number: int, other: int) -> bool:
    """Whether two instructions are copies of one statement in an unrolled loop: they have the same
    source line, and one follows the other."""
    body = names.flow.kernel.body
    here, there = body[number].source, body[other].source
    if here is None or there is None:
        return False
    if (here, here.called_from) != (there, there.called_from):
        return False
    return names.missing_barriers.leads_to(number, other) or names.missing_barriers.leads_to(
        other, number
    )


def is_named(names: Names, number: int) -> bool:
    """Whether an instruction waits at a barrier other than that of `__syncthreads()`.

    Warps with different roles may arrive there from different lines.
    """
    source = names.actions[number].sources[0]
    return isinstance(source, Immediate) and source.value != 0


def absent_members(
    names: Names, worker: Worker, number: int, lanes: int, members: int, warp: int
) -> Finding:
    """A warp-wide instruction whose mask does not match the participating lanes."""
    living = int(worker.warp_fields("initial")[warp]) & ~int(worker.warp_fields("exited")[warp])
    absent, unnamed = _lanes(members & living & ~lanes), _lanes(lanes & ~members)
    who = names.lane(warp, _lanes(lanes)[0])
    if absent:
        rest = f"names lanes {span(absent)} of its warp {warp}, which do not participate"
    else:
        rest = f"participates while lanes {span(unnamed)} of its warp {warp} are not in the mask"
    mask = f"{members & 0xFFFFFFFF:#010x}"
    return finding(
        names,
        worker,
        "divergent warp instruction",
        number,
        who,
        f"{{here}} of block {{block}}, with the mask {mask}, {rest}",
    )


def place_text(names: Names, number: int) -> str:
    """A source position, with that of the call if the function was inlined."""
    site = names.site(number, None)
    return f"{site} (called at {site.called_from[0]})" if site.called_from else str(site)


def refused(names: Names, worker: Worker, refusal: Refusal) -> Finding:
    """An asynchronous instruction that is not valid."""
    thread = names.thread(refusal.thread)
    rest = f"{{here}} of block {{block}} {refusal.what}"
    check: Check = "memcheck" if refusal.kind in ("out of bounds", "misaligned") else "synccheck"
    found = finding(names, worker, refusal.kind, refusal.number, thread, rest, check)
    return replace(found, array=refusal.array, offset=refusal.offset)


def trap(names: Names, worker: Worker) -> Finding:
    """The kernel stopped itself."""
    warp = worker.warp_number(worker.field("running"))
    number = int(worker.warp_fields("instruction")[warp])
    rest = f"warp {warp} of block {{block}} stops the kernel at {{line}}"
    return finding(names, worker, "trap", number, None, rest, "memcheck")


def endless(names: Names, worker: Worker, limit: int | None) -> Finding:
    """A block ran for longer than the limit, or is seen to repeat what it does."""

    def place(index: int) -> str:
        return place_text(names, index)

    status, at_ = worker.warp_fields("status"), worker.warp_fields("instruction")
    running = [warp for warp in range(worker.warps) if status[warp] == RUNNING]
    number = int(at_[running[0]]) if running else 0
    if limit is None:
        places = cluster_waits(worker, place, names.memory)
        rest = f"block {{block}} does not end: {'; '.join(places[:8])}"
    else:
        rest = f"block {{block}} did not end within {limit:,} steps; it is at {{line}}"
        if worker.phases is not None:
            places = waits_text(worker, place)
            rest += f"; {'; '.join(places[:8])}" * bool(places)
    rest += f"{lanes_text(worker, place)}{blocks_text(worker)}"
    return finding(names, worker, "endless", number, None, rest)
