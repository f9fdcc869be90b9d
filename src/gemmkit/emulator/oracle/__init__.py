"""The oracle: a second executor of PTX, short rather than fast, against which the engine is tested.

It runs many warps in lockstep on NumPy arrays, one basic block at a time, with the definitions of
`isa.semantics` and `counters.rules`. Results and tallies must equal the engine's.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from gemmkit.emulator.codegen.operands import actions_of, addresses_parameters
from gemmkit.emulator.codegen.polls import Polls
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.cluster import shows_ranks
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Watcher
from gemmkit.emulator.oracle.definedness import Definedness
from gemmkit.emulator.oracle.lockstep import COPIES, Lockstep, is_ordered
from gemmkit.emulator.oracle.needed_values import of_data_alone
from gemmkit.emulator.oracle.repeats import Repeats
from gemmkit.emulator.oracle.steps import steps_of
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.schedule import Schedule, scheduled_blocks

__all__ = ["run"]

_LANES_TOGETHER = 1 << 14


def _chunks(request: LaunchRequest, wanted: range, together: int) -> Iterator[Sequence[int]]:
    """The numbers of the blocks that run together: those of a cluster or, where clusters have one
    block, so many. Of the wanted blocks, the clusters run as a whole."""
    size = request.cluster_blocks
    if size == 1:
        for first in range(wanted.start, wanted.stop, together):
            yield range(first, min(wanted.stop, first + together))
        return
    for number in range(math.prod(request.grid) // size):
        members = request.cluster_members(number)
        if not set(members).isdisjoint(wanted):
            yield members


def _held(memory: DeviceMemory) -> bytes:
    """A digest of all memory."""
    digest = hashlib.blake2b()
    for held, _ in memory.snapshot():
        digest.update(held.data)
    return digest.digest()


def run(
    flow: ControlFlow,
    request: LaunchRequest,
    memory: DeviceMemory,
    symbols: Mapping[str, int] | None = None,
    *,
    only: range | None = None,
    watch: Watcher | None = None,
    track: bool = False,
    schedule: Schedule | None = None,
) -> Execution:
    """Run a kernel.

    If a kernel depends on the order of execution (atomics, flags, printf), a warp runs until it
    waits, ends or polls in vain, and warps and blocks run in order. Otherwise many blocks run
    together.

    Args:
        flow: the kernel.
        request: grid, block, parameters.
        memory: global memory, read and written.
        symbols: addresses of the module's global and constant variables.
        only: the numbers of the blocks to run, x fastest; by default the whole grid.
        watch: is told of memory requests and barriers. Where it reads no data, results may be left
            out.
        track: track undefined bits; uses of them are among the `findings`.
        schedule: what the warps and copies of one block, or its cluster, do first, and in which
            order.
    """
    if schedule is not None:
        flow = ControlFlow.of(flow.kernel, stops=True)
    started = time.perf_counter()
    found = Collection()
    steps, tally = steps_of(flow), Tally.zeros(len(flow.forms))
    left_out = of_data_alone(steps) if watch is not None and not watch.reads_data else frozenset()
    printed: list[str] = []
    actions = actions_of(flow)
    request = request.in_clusters(flow.kernel.cluster, flow.kernel.source_name)
    scheduled = scheduled_blocks(schedule, request) if schedule is not None else []
    blocks = math.prod(request.grid)
    threads = request.block[0] * request.block[1] * request.block[2]
    polls = Polls(flow, actions)
    alone = is_ordered(flow) or bool(polls.asks.any()) or schedule is not None
    together = 1 if alone else max(1, _LANES_TOGETHER // (-(-threads // WARP) * WARP))
    copies = any(each.operation in COPIES for each in actions)
    if schedule is None and polls.asks_others.any() and not copies and request.cluster_blocks == 1:
        # A block may wait for a later one; only those without copies know which block they are of.
        together = max(1, request.at_once)
    wanted = range(blocks) if only is None else only
    addressed = addresses_parameters(actions, flow.kernel)
    ranked = shows_ranks(flow.kernel, flow.forms)
    with request.resident(memory, addressed=addressed) as request:
        names = Names(flow, actions, request, memory) if track else None
        for some in _chunks(request, wanted, together):
            chunk = Chunk(
                flow.kernel,
                len(flow.blocks),
                request,
                memory,
                symbols or {},
                some,
                watch,
                shows_ranks=ranked,
            )
            defined = Definedness(chunk, names, memory, found) if names is not None else None
            steps_of_block = schedule if list(some) == scheduled else None
            repeats = None
            if polls.asks.any() and schedule is None:
                more = max(some) + 1 < blocks
                repeats = Repeats(polls, chunk, partial(_held, memory), more=more)
            Lockstep(
                flow,
                steps,
                chunk,
                tally,
                printed,
                defined,
                steps_of_block,
                left_out,
                repeats,
                ordered=alone,
            ).run()
    seconds = time.perf_counter() - started
    lines = tuple("".join(printed).splitlines())
    return Execution(tally, seconds, lines, found.findings())
