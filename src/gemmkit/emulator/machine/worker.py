"""`Worker`: the memory in which one host thread runs blocks, and its counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import (
    BARRIER_BYTES,
    BARRIERS,
    COUNTER_BYTES,
    FAILED_OPERATION,
    LANES,
    RUNNING,
    SITE,
    SITE_BYTES,
    STACK,
    STACK_ENTRY,
    TRANSFER_BYTES,
    WARP,
    WARP_REGISTERS,
    WORKER,
    WORKER_BARRIERS,
    WORKER_COUNTERS,
)
from gemmkit.emulator.codegen.native import runtime
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.machine.grid import SharedGrid
from gemmkit.emulator.machine.memory import Bytes, aligned_bytes
from gemmkit.emulator.machine.warp_headers import FIRST_REGISTER, write_headers

if TYPE_CHECKING:
    from gemmkit.emulator.counters.tally import Tally
    from gemmkit.emulator.isa.cluster import ClusterBarrier
    from gemmkit.emulator.machine.asynchronous import Observer, Scheduled, Waiting
    from gemmkit.emulator.ptx.cfg import ControlFlow

# (warp's address, instruction number, active lanes) -> 0, or 1 if it failed
Operation = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32)
_Run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Together(Protocol):
    """The blocks of a cluster that run together (see `machine.cluster`)."""

    @property
    def workers(self) -> Sequence[Worker]:
        """One per block, by rank."""

    @property
    def blocks(self) -> Sequence[int]:
        """The numbers of the blocks in the grid, by rank."""

    @property
    def barrier(self) -> ClusterBarrier:
        """The barrier of the cluster that runs."""

    def leave(self) -> None:
        """Abandon the cluster."""


class Worker:
    """Runs blocks of one shape, for one launch after another, with a limited amount of fuel at a
    time."""

    def __init__(self, kernel: LoadedKernel, request: LaunchRequest) -> None:
        self.kernel = kernel
        # An exception of Python code that ran for the kernel.
        self.failure: BaseException | None = None
        # What the warps of the running block wait for, once one has used an mbarrier; and whether a
        # finding ended the block.
        self.phases: Waiting | None = None
        self.abandoned = False
        # How many blocks were left before their end.
        self.left = 0
        # The sanitizers, as far as they look at asynchronous instructions.
        self.observer: Observer | None = None
        # The schedule that a block follows.
        self.replay: Scheduled | None = None
        # The cluster whose block it runs, if that has several blocks.
        self.cluster: Together | None = None
        self.rank = 0
        # The fuel that was left when the block ended its turn by itself.
        self.pause: int | None = None
        # Whether the running block was seen to ask for something in vain, again and again.
        self.polls = self.polls_peers = False
        # The warps, with their blocks, whose turn is next: they ask for what the block has written.
        self.next_turns: list[tuple[int, int]] = []
        # The fuel that was left then.
        self.unspent = 0
        self.threads = request.block[0] * request.block[1] * request.block[2]
        self.warps = -(-self.threads // LANES)
        compiled = kernel.compiled
        self.shared_base = compiled.shared_base
        self.shared_bytes = compiled.shared_bytes + request.shared_bytes
        self.shared_end = self.shared_base + self.shared_bytes
        self._local_stride = -(-compiled.local_bytes // 16) * 16
        self._buffer = aligned_bytes(compiled.worker_bytes)
        self.shared = aligned_bytes(self.shared_end, 256)
        self.announced = aligned_bytes(self.shared_end // 8 * 8 + 8).view(np.int64)
        self.local = aligned_bytes(self.warps * LANES * self._local_stride)
        self.scratch = aligned_bytes(compiled.scratch_bytes)
        self._warp_order = np.zeros(self.warps, np.int64)
        self._warp_bytes = compiled.warp_bytes
        self.warp_memory = aligned_bytes(self.warps * self._warp_bytes)
        self._warps_at = self.warp_memory.ctypes.data
        headers = self.warp_memory.reshape(self.warps, -1)[:, :WARP_REGISTERS]
        self._headers: NDArray[np.int32] = headers.view(np.int32)
        self._run = _Run(runtime().addresses[kernel.run])
        self._address = self._buffer.ctypes.data
        self.fields = self._buffer[: 8 * len(WORKER)].view(np.int64)
        self._set_block(request)
        self._sites()[:, SITE["counts_as"] // 8] = compiled.counts_as
        write_headers(self.warp_memory.reshape(self.warps, -1), request)

    def begin(self, grid: SharedGrid, operate: Callable[[Worker, int, int, int], int]) -> None:
        """Prepare for a launch; its blocks must have the shape of the previous ones."""
        self.grid = grid
        self.phases = self.observer = self.replay = self.cluster = None
        self._operation = Operation(lambda *arguments: operate(self, *arguments))
        self._set({
            "operation": ctypes.cast(self._operation, ctypes.c_void_p).value or 0,
            "parameters": grid.parameters_at,
            "globals": grid.globals_at,
            "regions": grid.regions.ctypes.data,
            "region_count": len(grid.regions),
            "next_block": grid.next_block.ctypes.data,
            "block_limit": grid.blocks,
            "block": -1,
            "order_seed": grid.warp_seed,
            "through_python": grid.through_python,
            "scheduled_block": -1,
            # A cluster of one block; `Cluster` sets those of several.
            **dict.fromkeys(("peers", "cluster_rank"), 0),
            **dict.fromkeys(("cluster_blocks", "cluster_x", "cluster_y", "cluster_z"), 1),
            "explicit_cluster": grid.request.cluster is not None,
            **dict(zip(("grid_x", "grid_y", "grid_z"), grid.request.grid, strict=True)),
        })  # fmt: skip
        # Memory that instructions were allowed to access before may have been freed.
        self._sites()[:, :_KNOWN_REGION] = 0

    def _set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self.fields[WORKER[name] // 8] = value

    def _set_block(self, request: LaunchRequest) -> None:
        compiled = self.kernel.compiled
        cleared = self._warp_bytes - FIRST_REGISTER if compiled.clears_registers else 0
        self._set({
            "warp_function": self.kernel.warp_function,
            "scratch": self.scratch.ctypes.data,
            "shared": self.shared.ctypes.data,
            "announced": self.announced.ctypes.data,
            "shared_base": self.shared_base,
            "shared_bytes": self.shared_bytes,
            "static_shared_bytes": compiled.shared_bytes,
            "local": self.local.ctypes.data,
            "local_bytes": compiled.local_bytes,
            "local_stride": self._local_stride,
            "warps": self.warp_memory.ctypes.data,
            "warp_count": self.warps,
            "warp_bytes": self._warp_bytes,
            "exit_block": compiled.exit_block,
            "cleared_bytes": cleared,
            # The most instructions that a warp executes before it reaches a loop's end again.
            "turn_cost": compiled.turn_cost,
            "warp_order": self._warp_order.ctypes.data,
            **dict(zip(("threads_x", "threads_y", "threads_z"), request.block, strict=True)),
        })  # fmt: skip

    @property
    def flow(self) -> ControlFlow:
        """The kernel's instructions."""
        return self.kernel.flow

    def field(self, name: str) -> int:
        """The value of a field."""
        return int(self.fields[WORKER[name] // 8])

    def set_field(self, name: str, value: int) -> None:
        """Change a field."""
        self.fields[WORKER[name] // 8] = value

    def run(self, fuel: int, share: int | None = None) -> int:
        """Run for about `fuel` warp instructions, the rest of a share; returns why it stopped."""
        self.fields[WORKER["fuel"] // 8] = fuel
        self.fields[WORKER["share"] // 8] = fuel if share is None else share
        return int(self._run(self._address))

    def unblock(self) -> bool:
        """Where a copy in flight or the expiry of a wait may let a warp of the block go on, let it
        take effect; False if there is none that has not been tried in vain."""
        return self.phases is not None and self.phases.expire()

    def fail(self, error: BaseException) -> None:
        """Stop soon, because of an exception of Python code that ran for the kernel."""
        self.failure = error
        self.fields[WORKER["fuel"] // 8] = -1
        self.fields[WORKER["fault"] // 8] = FAILED_OPERATION

    @property
    def running(self) -> Worker:
        """The worker that ran last: itself."""
        return self

    @property
    def peers(self) -> Sequence[Worker]:
        """The workers of all blocks of the cluster, by rank."""
        return [self] if self.cluster is None else self.cluster.workers

    @property
    def number(self) -> int:
        """The number of the block that it runs; in a cluster also of one that has ended."""
        return self.field("block") if self.cluster is None else self.cluster.blocks[self.rank]

    def leave_block(self) -> None:
        """Abandon the current block, with its cluster, and continue with another."""
        if self.cluster is not None:
            self.cluster.leave()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Abandon the current block."""
        self.abandoned = False
        self.left += 1
        self.fields[WORKER["in_flight"] // 8] = 0
        self.fields[WORKER["block"] // 8] = -1

    def end_turn(self, *, polls: bool = False) -> None:
        """Let the other blocks of the cluster run once the running warp has stopped, and a copy in
        flight land if it polls memory in vain."""
        if self.cluster is not None:
            self.polls_peers = polls
            self.pause = self.field("fuel")
            self._give_way()

    def end_turn_of_warp(self) -> None:
        """Let the other warps of the block run, as if this one's turn had lasted a whole share."""
        if self.replay is None:
            self._give_way()

    def end_poll(self) -> None:
        """The running block polls in vain: let others run soon."""
        self.polls = True
        self._give_way()

    def hand_over(self, warps: list[tuple[int, int]]) -> None:
        """Let warps, each with its block, run as soon as the running one can be interrupted."""
        if self.replay is None:
            self.unspent = max(self.unspent, self.field("fuel"))
            self.next_turns += warps
            self._give_way()

    def _give_way(self) -> None:
        """End the running warp's turn, and the share, as soon as it can be interrupted."""
        self.fields[WORKER["fuel"] // 8] = -1
        self.fields[WORKER["spent_in_turn"] // 8] = self.field("share")

    def take_turns(self, warps: list[tuple[int, int]]) -> bool:
        """Let those of these warps that are of this block run next; returns whether one is."""
        own = [warp for block, warp in warps if block == self.number]
        if own and self._headers[own[-1], WARP["status"] // 4] == RUNNING:
            self.set_field("turn", int(np.flatnonzero(self._warp_order == own[-1])[0]))
            self.set_field("spent_in_turn", 0)
        return bool(own)

    def forgive(self) -> None:
        """Continue after an access that was refused and skipped."""
        self.fields[WORKER["fault"] // 8] = 0

    def release(self) -> None:
        """Release the callback, which refers to this object."""
        self._operation = Operation()

    def warp_number(self, address: int) -> int:
        """The number of the warp at an address."""
        return (address - self._warps_at) // self._warp_bytes

    def warp_fields(self, name: str) -> NDArray[np.int32]:
        """One header field of every warp."""
        return self._headers[:, WARP[name] // 4]

    def header(self, warp: int) -> NDArray[np.uint32]:
        """The header fields of one warp, to read and write."""
        start = warp * self._warp_bytes
        return self.warp_memory[start : start + STACK].view(np.uint32)

    def stack(self, warp: int) -> NDArray[np.uint32]:
        """The stack of one warp, one row per entry, to read and write."""
        start = warp * self._warp_bytes
        found = self.warp_memory[start + STACK : start + WARP_REGISTERS].view(np.uint32)
        return found.reshape(-1, STACK_ENTRY // 4)

    def waiting_lanes(self, warp: int) -> list[tuple[int, int]]:
        """The lanes of a warp that wait for their turn or for others, from the first to wait on:
        the basic block where they continue, and their mask."""
        depth = int(self.warp_fields("depth")[warp])
        return [(int(entry[0]), int(entry[2])) for entry in self.stack(warp)[:depth]]

    @property
    def block(self) -> tuple[int, int, int]:
        """The block that is running."""
        x, y, z = (self.field(f"block_{axis}") for axis in "xyz")
        return x, y, z

    def warps_expected(self, barrier: int) -> int:
        """For how many warps a barrier of the block waits, or last did; 0 stands for all."""
        return self.barrier_counts(barrier)[1]

    def barrier_counts(self, barrier: int) -> tuple[int, int]:
        """How many warps have arrived at a barrier of the block, and `warps_expected`."""
        at = WORKER_BARRIERS + barrier % BARRIERS * BARRIER_BYTES
        arrived, expected = self._buffer[at : at + 16].view(np.int64).tolist()
        return arrived, expected

    @property
    def barriers(self) -> Bytes:
        """The state of the block's barriers."""
        return self._buffer[WORKER_BARRIERS : WORKER_BARRIERS + BARRIERS * BARRIER_BYTES]

    def executed(self) -> NDArray[np.int64]:
        """How often warps have executed each basic block, in all blocks so far."""
        end = WORKER_COUNTERS + COUNTER_BYTES * len(self.flow.blocks)
        counters = self._buffer[WORKER_COUNTERS:end].view(np.int64)
        return counters.reshape(-1, COUNTER_BYTES // 8)[:, 0].copy()

    def local_memory(self, thread: int) -> Bytes:
        """One thread's local memory."""
        start = thread * self._local_stride
        return self.local[start : start + self.kernel.compiled.local_bytes]

    def site_number(self, address: int) -> int:
        """The instruction that a memory record belongs to."""
        return self.site_at(address - self._address)

    def site_at(self, distance: int) -> int:
        """The instruction whose memory record is `distance` bytes from the start."""
        index = (distance - self.kernel.compiled.sites_start) // SITE_BYTES
        return self.kernel.areas.numbers[index]

    def holds(self, address: int) -> bool:
        """Whether an address is in this worker's buffer."""
        return 0 <= address - self._address < len(self._buffer)

    def add_to_site(self, number: int, name: str, amount: int) -> None:
        """Add to a count of a memory instruction."""
        at = self.kernel.areas.site(number) + SITE[name]
        self._buffer[at : at + 8].view(np.int64)[0] += amount

    def count_transfer(self, number: int, requests: int, sectors: int) -> None:
        """Add to the counts of a bulk copy, `st.async` or `red.async`."""
        at = self.kernel.areas.transfer(number)
        counts = self._buffer[at : at + TRANSFER_BYTES].view(np.int64)
        counts[0] += requests
        counts[1] += sectors

    def limit_shared(self, number: int, start: int, size: int) -> None:
        """Restrict a memory instruction to a range of shared memory; sizes in bytes."""
        row = self.kernel.areas.sites[number]
        for name, value in (("shared_start", start), ("shared_size", size)):
            self._sites()[row, SITE[name] // 8] = value

    def regions(self) -> dict[int, int]:
        """The start of the allocation in global memory that each instruction accessed last."""
        # The records are in the order of `sites`.
        addresses = self._sites()[:, SITE["region"] // 8].tolist()
        found = zip(self.kernel.areas.sites, addresses, strict=True)
        return {number: address for number, address in found if address}

    def _sites(self) -> NDArray[np.int64]:
        start, sites = self.kernel.compiled.sites_start, len(self.kernel.compiled.counts_as)
        found = self._buffer[start : start + SITE_BYTES * sites].view(np.int64)
        return found.reshape(sites, SITE_BYTES // 8)

    def tally(self) -> Tally:
        """The counts so far."""
        from gemmkit.emulator.machine.tallies import tally_of

        return tally_of(self._buffer, self.kernel)


# The fields of a record for the region accessed last.
_KNOWN_REGION = SITE["region_bytes"] // 8 + 1
