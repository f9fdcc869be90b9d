"""Ranks as processes of PyTorch's: transfers by its process groups, over gloo or NCCL.

On a GPU, transfers run on a stream of their own, under products on the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    ReduceScatterOptions,
)

from gemmkit.distributed.communicator import Outgoing
from gemmkit.distributed.schedule import Schedule, Transfer
from gemmkit.errors import DistributedError


class GroupCommunicator:
    """A process group of PyTorch's, as this process sees it."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # What `isend` and `irecv` count by.
        self.peers = [dist.get_global_rank(group, rank) for rank in range(self.size)]
        self._streams: dict[Any, Any] = {}
        # The methods themselves: what torch.distributed puts around them takes the host about as
        # long again. Older versions of PyTorch have other names for them.
        named = hasattr(group, "all_gather_single")
        self._gather = group.all_gather_single if named else group._allgather_base
        self._scatter = group.reduce_scatter_single if named else group._reduce_scatter_base
        self._reduce = group.allreduce
        self._gather_many = (
            getattr(group, "all_gather_single_coalesced", None)
            or group.allgather_into_tensor_coalesced
        )
        self._options = AllgatherOptions(), ReduceScatterOptions(), AllreduceOptions()
        for each in self._options:
            # On the current stream, with no stream of its own and no events; older versions of
            # PyTorch do not ask.
            if hasattr(each, "asyncOp"):
                each.asyncOp = False

    def gather_into(self, made: Any, own: Any) -> None:
        """Write the lines of all ranks, of which each has as many, by one operation of the group.

        Raises:
            DistributedError: a rank failed.
        """
        try:
            work = self._gather(made, own, self._options[0])
            if work is not None:
                work.wait()
        except (RuntimeError, ValueError) as error:
            raise failure("gathering an operand", error) from error

    def gatherer(self, dtype: Any) -> Callable[[Any, Any], None]:
        """`gather_into` for arrays of a type: of those that groups do not send, their bits."""
        return self._gather_bits if _sent_as_bits(dtype) else self.gather_into

    def gather_many_into(self, made: Sequence[Any], own: Sequence[Any]) -> None:
        """`gather_into` of several arrays, of any types, by one operation of the group, which with
        NCCL is one launch and copies nothing.

        Raises:
            DistributedError: a rank failed.
        """
        # Groups take arrays of one type.
        bytes_made, bytes_own = [], []
        for whole, part in zip(made, own, strict=True):
            if part.stride(-1) != 1:
                # Of one column, which has any stride.
                whole, part = whole.view(-1), part.view(-1)
            bytes_made.append(whole.view(torch.uint8))
            bytes_own.append(part.view(torch.uint8))
        try:
            work = self._gather_many(bytes_made, bytes_own, self._options[0])
            if work is not None:
                work.wait()
        except (RuntimeError, ValueError) as error:
            raise failure("gathering an operand and its scales", error) from error

    def _gather_bits(self, made: Any, own: Any) -> None:
        self.gather_into(made.view(torch.uint8), own.view(torch.uint8))

    def scatter_into(self, made: Any, sums: Any) -> None:
        """Write this rank's lines of the sum of all ranks' arrays, of which each gets as many.

        Raises:
            DistributedError: a rank failed.
        """
        try:
            work = self._scatter(made, sums, self._options[1])
            if work is not None:
                work.wait()
        except (RuntimeError, ValueError) as error:
            raise failure("adding up the sums of all ranks", error) from error

    def reduce(self, sums: Any) -> None:
        """Make an array the sum of those of all ranks, in place.

        Raises:
            DistributedError: a rank failed.
        """
        try:
            work = self._reduce([sums], self._options[2])
            if work is not None:
                work.wait()
        except (RuntimeError, ValueError) as error:
            raise failure("adding up the sums of all ranks", error) from error

    def start(self, schedule: Schedule, like: Any, dtype: str, width: int) -> GroupTransfers:
        """As `Communicator.start`."""
        kind = getattr(torch, dtype)
        inbox = torch.empty((schedule.lines, width), dtype=kind, device=like.device)
        stream = self.stream(like.device) if like.is_cuda else None
        return GroupTransfers(self, schedule, inbox, stream)

    def stream(self, device: Any) -> Any:
        """The stream for transfers of a GPU."""
        found = self._streams.get(device)
        if found is None:
            found = self._streams[device] = torch.cuda.Stream(device, priority=-1)
        return found

    def agree(self, facts: str) -> Sequence[str]:
        """As `Communicator.agree`."""
        said: list[Any] = [None] * self.size
        with failures("asking all ranks what they multiply"):
            dist.all_gather_object(said, facts, group=self.group)
        return said


class GroupTransfers:
    """The transfers of one call over a process group."""

    def __init__(
        self, communicator: GroupCommunicator, schedule: Schedule, inbox: Any, stream: Any
    ) -> None:
        self._communicator, self._schedule = communicator, schedule
        self._inbox, self._stream = inbox, stream
        self._pending: list[_GroupArrival] = []
        # What goes out, and the sends that are under way on the host.
        self._sent: list[Any] = []
        self._going: list[Any] = []

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer]
    ) -> Sequence[_GroupArrival]:
        """As `Transfers.exchange`."""
        lines = [self._inbox[each.offset : each.offset + each.piece.span.size] for each in receives]
        if not self._inbox.shape[1]:
            return [_GroupArrival(each, (), None) for each in lines]
        going = [each._replace(array=_bits(each.array.contiguous())) for each in sends]
        start = self._on_host if self._stream is None else self._on_gpu
        with failures("sending parts of a product to other ranks"):
            made = start(going, receives, lines)
        self._pending += made
        self._sent += [each.array for each in going]
        return made

    def _on_host(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer], lines: Sequence[Any]
    ) -> list[_GroupArrival]:
        peers, group = self._communicator.peers, self._communicator.group
        made = [
            _GroupArrival(
                into, [dist.irecv(_bits(into), peers[each.peer], group, tag=each.number)], None
            )
            for each, into in zip(receives, lines, strict=True)
        ]
        self._going += [
            dist.isend(array, peers[each.peer], group, tag=each.number) for array, each in sends
        ]
        return made

    def _on_gpu(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer], lines: Sequence[Any]
    ) -> list[_GroupArrival]:
        peers, group = self._communicator.peers, self._communicator.group
        operations = [
            dist.P2POp(dist.isend, array, peers[each.peer], group) for array, each in sends
        ] + [
            dist.P2POp(dist.irecv, _bits(into), peers[each.peer], group)
            for each, into in zip(receives, lines, strict=True)
        ]
        # What is sent was written on the current stream, and so was what the memory held before.
        self._stream.wait_stream(torch.cuda.current_stream(self._inbox.device))
        with torch.cuda.stream(self._stream):
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            done = self._stream.record_event()
        return [_GroupArrival(into, (), done) for into in lines]

    def gathered(self, own: Any) -> Any:
        """As `Transfers.gathered`."""
        span = self._schedule.own
        self._inbox[span.start : span.stop] = own
        for each in self._pending:
            each.take()
        return self._inbox

    def arriving(self, own: Any) -> None:
        """As `Transfers.arriving`: the group sets no flags."""

    def waited(self) -> None:
        """As `Transfers.waited`."""

    def finish(self) -> None:
        """As `Transfers.finish`."""
        if self._stream is not None:
            torch.cuda.current_stream(self._inbox.device).wait_stream(self._stream)
        for each in self._pending:
            each.take()
        with failures("sending parts of a product to other ranks"):
            for work in self._going:
                work.wait()
        self._sent.clear()


class _GroupArrival:
    """Lines that fill."""

    def __init__(self, lines: Any, works: Sequence[Any], done: Any) -> None:
        self._lines, self._works, self._done = lines, works, done

    def take(self) -> Any:
        if self._works:
            works, self._works = self._works, ()
            with failures("waiting for parts of a product from other ranks"):
                for work in works:
                    work.wait()
        if self._done is not None:
            torch.cuda.current_stream(self._lines.device).wait_event(self._done)
            self._done = None
        return self._lines


def _sent_as_bits(dtype: Any) -> bool:
    """Whether groups may not send a type: those of 8 bits are none of theirs."""
    return bool(dtype.is_floating_point and dtype.itemsize == 1)


def _bits(tensor: Any) -> Any:
    """A tensor as groups send it."""
    return tensor.view(torch.uint8) if _sent_as_bits(tensor.dtype) else tensor


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Turn what PyTorch raises of a group within into a `DistributedError`."""
    try:
        yield
    except DistributedError:
        raise
    except (RuntimeError, ValueError) as error:
        raise failure(doing, error) from error


def failure(doing: str, error: Exception) -> DistributedError:
    """What users are told of an error of a group.

    PyTorch's errors of a lost or late rank are plain `RuntimeError`s, with what NCCL or gloo saw.
    """
    said = str(error).strip().splitlines() or [type(error).__name__]
    return DistributedError(
        f"{doing} failed: a rank has ended, is too late, or makes other calls ({said[0]})"
    )


def gather_collectively(communicator: GroupCommunicator, own: Any, sizes: Sequence[int]) -> Any:
    """The lines of all ranks, by one collective operation of the group."""
    return LinesGatherer(communicator, own.dtype, sizes)(own)


class LinesGatherer:
    """`gather_collectively` for arrays of a type and shares of given sizes, prepared."""

    def __init__(self, communicator: GroupCommunicator, dtype: Any, sizes: Sequence[int]) -> None:
        self._gather, self._close = communicator.gatherer(dtype), without_gaps(sizes)
        self._sizes, self._most, self._total = sizes, max(sizes), sum(sizes)
        self._everything = communicator.size * max(sizes)

    def __call__(self, own: Any) -> Any:
        """The lines of all ranks, from those of this one."""
        made, sent = self.ends(own)
        self._gather(made, sent)
        return self.complete(made)

    def ends(self, own: Any) -> tuple[Any, Any]:
        """Where what all ranks send goes, and what this one does: all of them send as much."""
        lines, width = own.shape
        if lines < self._most:
            padded = own.new_zeros((self._most, width))
            padded[:lines] = own
            own = padded
        return own.new_empty(self._everything, width), own.contiguous()

    def complete(self, made: Any) -> Any:
        """The lines, of what has been sent."""
        if self._close:
            return made[: self._total] if self._total < self._everything else made
        most = self._most
        return torch.cat(
            [made[rank * most : rank * most + size] for rank, size in enumerate(self._sizes)], dim=0
        )


def gather_together(
    communicator: GroupCommunicator, gatherers: Sequence[LinesGatherer], own: Sequence[Any]
) -> list[Any]:
    """What each gatherer makes of its array, by one collective operation of the group."""
    ends = [gather.ends(each) for gather, each in zip(gatherers, own, strict=True)]
    communicator.gather_many_into(*zip(*ends, strict=True))
    return [gather.complete(made) for gather, (made, _) in zip(gatherers, ends, strict=True)]


def without_gaps(sizes: Sequence[int]) -> bool:
    """Whether shares lie as in the matrix if each takes as many lines as the longest: all but the
    last one that is not empty are as long, as those of `torch.chunk`."""
    most, left = max(sizes), sum(sizes)
    for size in sizes:
        if size != min(most, left):
            return False
        left -= size
    return True


def scatter_collectively(communicator: GroupCommunicator, sums: Any, sizes: Sequence[int]) -> Any:
    """This rank's lines of the sum of all ranks' arrays, by one collective operation."""
    own, most = sizes[communicator.rank], max(sizes)
    if len(set(sizes)) > 1:
        padded = sums.new_zeros((len(sizes), most, sums.shape[1]))
        start = 0
        for rank, size in enumerate(sizes):
            padded[rank, :size] = sums[start : start + size]
            start += size
        sums = padded.flatten(0, 1)
    made = sums.new_empty((most, sums.shape[1]))
    communicator.scatter_into(made, sums.contiguous())
    return made[:own]


def reduce_collectively(communicator: GroupCommunicator, sums: Any) -> Any:
    """The sum of all ranks' arrays, in place, by one collective operation."""
    communicator.reduce(sums)
    return sums
