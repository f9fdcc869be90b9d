"""Ranks as GPUs of one host that write to each other's memory: by copy engines, without NCCL.

Each rank pushes what a peer needs straight from its own arrays into the peer's inbox, and sets a
flag there; the peer's streams wait for the flag, and clear it. An inbox has two halves, used by
calls in turn: a sender waits until the receiver has finished with what was sent to the same half
before, of which another flag tells it. Where it sends nothing it says so by a flag as well, for the
next call's data would otherwise come to a half that is still read. Flags are set and cleared, and
count nothing, so that a CUDA graph may hold calls and be replayed. Its calls have flags of arrivals
of their own: those of other calls are cleared on the stream of the copies, of which a replay knows
nothing. No kernel waits but one that multiplies all shares, for flags that copy engines set, and
NVLink multicast is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmkit.distributed.communicator import Outgoing
from gemmkit.distributed.fused import equal_shares
from gemmkit.distributed.mapped_memory import (
    MappedMemory,
    WatchedCalls,
    before_larger,
    read_apart,
)
from gemmkit.distributed.process_group import GroupCommunicator
from gemmkit.distributed.schedule import Schedule, Transfer
from gemmkit.distributed.stream_operations import copy, wait_for_flag, write_flag
from gemmkit.distributed.watchdog import who_is_late
from gemmkit.errors import UnsupportedProblem
from gemmkit.ops.allgather import GatheredRows

# Bytes of an inbox: flags of arrivals, those of CUDA graphs' calls last, finished calls by rank,
# flags of halves that are free by rank, then data. There are two halves of arrivals' flags and of
# data, so that a rank may be a call ahead. Flags of arrivals are those of transfers, and by rank
# those of peers that send nothing.
MOST_TRANSFERS = 1 << 12
_MOST_RANKS = 1 << 11
_ARRIVALS = 4 * (MOST_TRANSFERS + _MOST_RANKS)
_FINISHED = 2 * 2 * _ARRIVALS
_FREE = _FINISHED + 4 * _MOST_RANKS
_DATA = _FREE + 2 * 4 * _MOST_RANKS

# Inboxes grow in steps of this many bytes, so that similar calls share one.
_STEP = 32 << 20


class _Inbox:
    """Memory of this GPU to which all ranks write, and the peers' as this process sees it."""

    def __init__(self, group: Any, device: Any, half: int) -> None:
        self.half = half
        mapped = MappedMemory(group, device, _DATA + 2 * half)
        self.mapped, self.memory, self.addresses = mapped, mapped.memory, mapped.addresses
        clear_flags(self.memory)
        mapped.ready(group, device)
        self.calls = self.captured_calls = 0
        self.views: dict[Any, Any] = {}


def clear_flags(memory: Any) -> None:
    """Flags as before the first call: nothing has arrived, and all halves are free."""
    memory[:_DATA].zero_()
    memory[_FREE:_DATA].view(torch.int32).fill_(1)


class SymmetricCommunicator:
    """A process group whose GPUs reach each other's memory.

    Raises:
        UnsupportedProblem: they do not, or this PyTorch has no symmetric memory.
    """

    def __init__(self, communicator: GroupCommunicator, device: Any) -> None:
        self.group, self.device = communicator.group, device
        self.rank, self.size = communicator.rank, communicator.size
        self._communicator = communicator
        self._inbox: _Inbox | None = None
        # Those that CUDA graphs write to and read, which are kept with them.
        self._captured: list[_Inbox] = []
        self._ready, self._sent = torch.cuda.Event(), torch.cuda.Event()
        self._read = torch.cuda.Event()
        self._calls = WatchedCalls(self.group, device, self._late)

    def start(
        self,
        schedule: Schedule,
        like: Any,  # noqa: ARG002
        dtype: str,
        width: int,
    ) -> SymmetricTransfers:
        """As `Communicator.start`.

        Raises:
            UnsupportedProblem: too many transfers or ranks, or a CUDA graph is being captured and
                there is no memory yet for so much.
        """
        kind = getattr(torch, dtype)
        capturing = torch.cuda.is_current_stream_capturing()
        if self.size > _MOST_RANKS:
            raise UnsupportedProblem(f"{self.size} ranks, where {_MOST_RANKS} have flags")
        if schedule.receives > MOST_TRANSFERS:
            raise UnsupportedProblem(
                f"{schedule.receives} transfers in one call, where {MOST_TRANSFERS} have flags: "
                "take fewer parts"
            )
        nbytes = schedule.lines * width * kind.itemsize
        if capturing and (self._inbox is None or self._inbox.half < nbytes):
            raise UnsupportedProblem(
                "the memory for copies between GPUs is made in a first call of this size, which a "
                "CUDA graph cannot capture: make one before"
            )
        inbox = self.reserve(nbytes)
        if capturing and inbox not in self._captured:
            self._captured.append(inbox)
        # Calls outside of graphs take halves in turn, whatever is captured between them; those that
        # send lines of no elements take none.
        if capturing:
            inbox.captured_calls += width > 0
        else:
            inbox.calls += width > 0
        half = (inbox.captured_calls if capturing else inbox.calls) & 1
        key = half, kind, width, schedule.lines
        view = inbox.views.get(key)
        if view is None:
            first = _DATA + half * inbox.half
            # What is made in inference mode may not be written to after it.
            with torch.inference_mode(False):
                view = inbox.memory[first : first + nbytes].view(kind).view(schedule.lines, width)
            inbox.views[key] = view
        return SymmetricTransfers(self, schedule, inbox, view, half, captured=capturing)

    def reserve(self, nbytes: int) -> _Inbox:
        """The inbox, made larger where a half has less; all ranks come to it with as much."""
        if self._inbox is None or self._inbox.half < nbytes:
            half = -(-nbytes // _STEP) * _STEP
            if self._inbox is not None:
                before_larger(self.group, self.device)
                self._inbox = None
            self._inbox = _Inbox(self.group, self.device, half)
        return self._inbox

    def agree(self, facts: str) -> Sequence[str]:
        """As `Communicator.agree`."""
        return self._communicator.agree(facts)

    def ended_on(self, stream: Any) -> None:
        """A call ends with what is on a stream now."""
        self._calls.ended_on(stream)

    def _late(self) -> str:
        """Which ranks have not finished the last call."""
        inbox = self._inbox
        if inbox is None:
            return "it had not begun"
        flags = inbox.memory[_FINISHED : _FINISHED + 4 * self.size].view(torch.int32)
        told = enumerate(read_apart(flags, self.device))
        return who_is_late(self.rank, [rank for rank, calls in told if calls < inbox.calls])

    @property
    def stream(self) -> Any:
        """The stream on which copies go out."""
        return self._communicator.stream(self.device)

    @property
    def events(self) -> tuple[Any, Any, Any]:
        """Events for "may be sent", "has been sent", and "has been read"."""
        return self._ready, self._sent, self._read


class SymmetricTransfers:
    """The transfers of one call, by copy engines."""

    def __init__(
        self,
        communicator: SymmetricCommunicator,
        schedule: Schedule,
        inbox: _Inbox,
        view: Any,
        half: int,
        *,
        captured: bool,
    ) -> None:
        self._captured = captured
        self._communicator, self._schedule = communicator, schedule
        self._inbox, self._view = inbox, view
        self._rank, self._call = communicator.rank, inbox.calls
        self._ready, self._sent, self._read = communicator.events
        self._stream = communicator.stream
        self._side = self._stream.cuda_stream
        self._compute = torch.cuda.current_stream(communicator.device)
        self._current = self._compute.cuda_stream
        self._own = inbox.addresses[communicator.rank]
        self._line = view.shape[1] * view.element_size()
        self._begin = _DATA + half * inbox.half
        self._flags = (2 * captured + half) * _ARRIVALS
        self._free = _FREE + 4 * half * _MOST_RANKS
        self._open: set[int] = set()
        self._heard: set[int] = set()
        self._arrived: list[int] = []
        self._operand_ready = False
        self._kept: list[Any] = []
        self._pending: list[_SymmetricArrival] = []

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer]
    ) -> Sequence[_SymmetricArrival]:
        """As `Transfers.exchange`."""
        if sends and self._line:
            self._push(sends)
        made = [_SymmetricArrival(self, each) for each in receives]
        self._pending += made
        return made

    def _push(self, sends: Sequence[Outgoing]) -> None:
        going = [(each.array.contiguous(), each.transfer) for each in sends]
        # An operand is there from the beginning of the call, sums from their product on.
        if not self._operand_ready:
            self._follow()
            self._operand_ready = self._schedule.form == "gather"
        for array, transfer in going:
            peer = self._inbox.addresses[transfer.peer]
            self._claim(transfer.peer)
            target = peer + self._begin + transfer.offset * self._line
            copy(target, array.data_ptr(), array.numel() * array.element_size(), self._side)
            write_flag(peer + self._flags + 4 * transfer.number, 1, self._side)
            self._kept.append(array)

    def _follow(self) -> None:
        """Have the copies' stream wait for what is on that of the products."""
        self._ready.record(self._compute)
        self._stream.wait_event(self._ready)

    def _claim(self, peer: int) -> None:
        """Have the copies' stream wait until a peer has read what an earlier call left there."""
        if peer not in self._open:
            self._open.add(peer)
            free = self._own + self._free + 4 * peer
            wait_for_flag(free, 1, self._side)
            write_flag(free, 0, self._side)

    def _tell_others(self, peers: Sequence[int]) -> None:
        """Tell those peers to which this call has sent nothing that nothing comes."""
        others = [each for each in peers if each not in self._open]
        if others:
            self._follow()
        for peer in others:
            self._claim(peer)
            silent = self._flags + 4 * (MOST_TRANSFERS + self._rank)
            write_flag(self._inbox.addresses[peer] + silent, 1, self._side)

    def _hear_others(self, peers: Sequence[int], after: int) -> None:
        """Have a stream wait until those peers from which nothing came have told this rank."""
        for peer in peers:
            if peer not in self._heard:
                flag = self._own + self._flags + 4 * (MOST_TRANSFERS + peer)
                wait_for_flag(flag, 1, after)
                self._arrived.append(flag)
                self._heard.add(peer)

    def _peers_to_tell(self) -> list[int]:
        """Peers that expect a flag from this rank even if it sends them no data.

        Sums that are scattered go from one rank to the next. No peer needs to be told of more if
        each has a share: none ends such a call before all have begun it, and so ended the one
        before. But where there are graphs, calls of the same half may follow each other.
        """
        spans, form = self._schedule.spans, self._schedule.form
        in_turn = not self._inbox.captured_calls and all(each.size for each in spans)
        if not self._line or (form == "scatter" and in_turn):
            return []
        return [peer for peer in range(self._communicator.size) if peer != self._rank]

    def arrived(self, transfer: Transfer, *, waits: bool = True) -> Any:
        """The lines of a transfer; the current stream waits for them, unless a kernel has."""
        if self._line:
            flag = self._own + self._flags + 4 * transfer.number
            if waits:
                wait_for_flag(flag, 1, self._current)
            self._arrived.append(flag)
            self._heard.add(transfer.peer)
        return self._view[transfer.offset : transfer.offset + transfer.piece.span.size]

    def gathered(self, own: Any) -> Any:
        """As `Transfers.gathered`."""
        span = self._schedule.own
        self._view[span.start : span.stop] = own
        for each in self._pending:
            each.take()
        return self._view

    def arriving(self, own: Any) -> GatheredRows | None:
        """As `Transfers.arriving`."""
        shares = equal_shares(self._schedule)
        if shares is None or not self._line:
            return None
        return GatheredRows(self._view, own, self._own + self._flags, shares)

    def waited(self) -> None:
        """As `Transfers.waited`."""
        for each in self._pending:
            each.take(waits=False)

    def finish(self) -> None:
        """As `Transfers.finish`."""
        for each in self._pending:
            # Zeros that nobody reads, say: their senders wait for an answer as others do.
            each.take()
        peers = self._peers_to_tell()
        self._tell_others(peers)
        if self._open or not self._captured:
            # Also where nothing has been sent: the call before has cleared its flags then, and the
            # next one, which takes the same half, finds none of them set.
            self._sent.record(self._stream)
            self._compute.wait_event(self._sent)
            self._kept.clear()
        after = self._after_all()
        self._hear_others(peers, after)
        # Cleared for the next call that uses this half; its sender waits for the "free" flag.
        for flag in self._arrived:
            write_flag(flag, 0, after)
        for peer in self._heard:
            address = self._inbox.addresses[peer]
            write_flag(address + self._free + 4 * self._rank, 1, after)
        if self._captured:
            # Replays are not watched: an event of a graph cannot be asked.
            return
        for peer, address in enumerate(self._inbox.addresses):
            if peer != self._rank:
                write_flag(address + _FINISHED + 4 * self._rank, self._call, after)
        self._communicator.ended_on(self._compute)

    def _after_all(self) -> int:
        """The stream on which flags are written when everything has been read: that of the copies,
        so that the next call's products need not wait for writes to other GPUs. A CUDA graph ends
        with the stream of the products."""
        if self._captured:
            return int(self._current)
        self._read.record(self._compute)
        self._stream.wait_event(self._read)
        return int(self._side)


class _SymmetricArrival:
    def __init__(self, transfers: SymmetricTransfers, transfer: Transfer) -> None:
        self._transfers, self._transfer = transfers, transfer
        self._lines: Any = None

    def take(self, *, waits: bool = True) -> Any:
        if self._lines is None:
            self._lines = self._transfers.arrived(self._transfer, waits=waits)
        return self._lines
