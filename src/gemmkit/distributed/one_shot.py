"""Lines of few bytes that ranks send each other, or add up, by one launch of a kernel on each rank.

A collective operation of the process group takes the host longer than that, and the GPU several
steps. A rank's mailbox is memory that all others map: see `one_shot.cu`. A launch waits for those
of the other ranks, as NCCL's kernels do, and holds up to 64 multiprocessors meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch

from gemmkit.devices.context import context_of
from gemmkit.devices.launcher import PreparedLaunch
from gemmkit.distributed.mapped_memory import (
    MappedMemory,
    WatchedCalls,
    before_larger,
    read_apart,
)
from gemmkit.distributed.process_group import GroupCommunicator
from gemmkit.distributed.splits import shares
from gemmkit.distributed.watchdog import who_is_late
from gemmkit.errors import UnsupportedProblem
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels import one_shot
from gemmkit.kernels.one_shot import (
    ADDED,
    HEADER_BYTES,
    adding,
    gathering,
    in_two_steps,
    unit_bytes,
)
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.ops.libraries.torch import current_stream
from gemmkit.ops.operands import known_dtype

# What a mailbox has room for grows in such steps, so that similar calls share one.
_STEP = 8 << 20

# Exchanges that are kept.
_MOST_KEPT = 1024


class OneShot:
    """Exchanges of a group of ranks whose GPUs map each other's memory, one at a time.

    Raises:
        UnsupportedProblem: there are more ranks than have flags.
    """

    def __init__(self, communicator: GroupCommunicator, device: Any) -> None:
        if communicator.size > one_shot.MOST_RANKS:
            raise UnsupportedProblem(
                f"{communicator.size} ranks, where {one_shot.MOST_RANKS} have flags"
            )
        self.group, self.device = communicator.group, device
        self.rank, self.size = communicator.rank, communicator.size
        self._context = context_of(device.index)
        self.mailbox = self._made(_STEP)
        self._exchanges: WeakSet[Gathering | Addition] = WeakSet()
        # What CUDA graphs write to and read, which is kept with them.
        self._captured: set[tuple[Mailbox, Any]] = set()
        # Of the last call, and the number by which the driver knows it.
        self._stream, self._number = torch.cuda.current_stream(device), -1
        self._lock = Lock()
        self._calls = WatchedCalls(self.group, device, self._late)

    def _made(self, room: int) -> Mailbox:
        mapped = MappedMemory(self.group, self.device, HEADER_BYTES + room)
        mapped.ready(self.group, self.device)
        return Mailbox(mapped, room, self.device)

    def reserve(self, nbytes: int, exchange: Gathering | Addition) -> None:
        """Have room for the lines of an exchange, so many bytes; all ranks come to it with as many.

        Raises:
            DistributedError: a rank does not come.
        """
        if self.mailbox.room < nbytes:
            before_larger(self.group, self.device)
            for each in self._exchanges:
                each.forget()
            self.mailbox = self._made(-(-nbytes // _STEP) * _STEP)
        self._exchanges.add(exchange)

    def launch(self, plan: LaunchPlan, **tables: int) -> PreparedLaunch:
        """A plan of `one_shot`, for this rank's mailbox; `tables` are addresses."""
        binary = compile_plan(plan, self._context.spec.arch)
        arguments = {"workspace": self.mailbox.table.data_ptr(), **tables}
        places = {"A": ("a", 0), "C": ("out", 0)}
        return PreparedLaunch(self._context, plan, binary, arguments, places)

    def run(self, launch: PreparedLaunch, own: int, out: int = 0, reads: Any = None) -> None:
        """Put a launch on the current stream, after the last call on whichever stream that was.
        `reads` is what a CUDA graph has to keep for it."""
        number = current_stream(self.device.index)
        if torch.cuda.is_current_stream_capturing():
            self._captured.add((self.mailbox, reads))
        elif number != self._number:
            self._stream = torch.cuda.current_stream(self.device)
            if self._number != -1:
                self._calls.wait_on(self._stream)
            self._number = number
        with self._lock:
            launch.run((own, 0, out), number)

    def ended(self) -> None:
        """A call is over with what is on the current stream now: what was gathered has been
        read."""
        # Replays of graphs are not watched: their events cannot be asked.
        if not torch.cuda.is_current_stream_capturing():
            self._calls.ended_on(self._stream)

    def _late(self) -> str:
        blocks = one_shot.MOST_BLOCKS
        header = read_apart(self.mailbox.header, self.device)
        # Of the first block, which all launches have: launches that it has ended, and how many of
        # the others' have sent.
        own, sent = header[0], header[blocks * (1 + one_shot.MOST_RANKS) :: blocks]
        return who_is_late(self.rank, [rank for rank in range(self.size) if sent[rank] <= own])


class Mailbox:
    """A rank's: `room` bytes of lines after a header, and a table of all ranks' addresses."""

    def __init__(self, mapped: MappedMemory, room: int, device: Any) -> None:
        self.mapped, self.room = mapped, room
        self.header = mapped.memory[:HEADER_BYTES].view(torch.int32)
        self.lines = mapped.memory[HEADER_BYTES:]
        self.table = torch.tensor(mapped.addresses, dtype=torch.int64, device=device)


class Gathering:
    """Brings the lines of all ranks to each of them.

    Args:
        by: the ranks' means.
        dtype: the type of the lines.
        sizes: how many each rank has.
        width: elements of each.

    Raises:
        DistributedError: a rank does not come.
    """

    def __init__(self, by: OneShot, dtype: Any, sizes: Sequence[int], width: int) -> None:
        self._by, self._dtype, self._width = by, dtype, width
        line = width * dtype.itemsize
        self._ends = [0, *(each * line for each in accumulate(sizes))]
        self._most, self._total = max(sizes) * line, sum(sizes)
        self._lines: Any = None
        self._launches: dict[int, PreparedLaunch] = {}
        by.reserve(self._ends[-1], self)

    def __call__(self, own: Any) -> Any:
        """The lines of all ranks, from those of this one, which are contiguous; they are valid
        until the next call of this group."""
        if self._lines is None:
            self._lines = self._gathered()
        address = own.data_ptr()
        launch = self._launches.get(address & 15)
        if launch is None:
            launch = self._launches[address & 15] = self._launch(address & 15)
        self._by.run(launch, address)
        return self._lines

    def forget(self) -> None:
        """There is another mailbox from now on."""
        self._lines, self._launches = None, {}

    def _gathered(self) -> Any:
        """The lines in the mailbox."""
        with torch.inference_mode(False):
            lines = self._by.mailbox.lines[: self._ends[-1]].view(self._dtype)
            return lines.view(self._total, self._width)

    def _launch(self, low: int) -> PreparedLaunch:
        """That for lines that begin so many bytes after a multiple of 16."""
        begin, end = self._ends[self._by.rank : self._by.rank + 2]
        unit = unit_bytes(low, begin, end)
        plan = gathering(self._by.rank, self._by.size, unit, begin, end - begin, self._most)
        return self._by.launch(plan)


class Addition:
    """Adds up the sums of all ranks, each rank those of its lines, in the order of ranks.

    Args:
        by: the ranks' means.
        dtype: the type of sums and result.
        sizes: how many lines each rank has of the result.
        width: elements of each.
        shared: whether each rank has all lines of the result.

    Raises:
        UnsupportedProblem: the type is none of those that are added up.
        DistributedError: a rank does not come.
    """

    def __init__(
        self, by: OneShot, dtype: Any, sizes: Sequence[int], width: int, *, shared: bool = False
    ) -> None:
        name = known_dtype(str(dtype).removeprefix("torch."), "the result")
        if name not in ADDED:
            raise UnsupportedProblem(
                f"strategy 'one-shot' adds up {', '.join(ADDED)}, and the result is {name}"
            )
        self._by, self._name, self._width = by, name, width
        line = width * dtype.itemsize
        self._lines = sizes[by.rank]
        starts = [0] * len(sizes) if shared else [0, *accumulate(sizes)][:-1]
        # No smaller than an element, if there is one.
        unit = max(unit_bytes(*(each * line for each in (*starts, *sizes))), dtype.itemsize)
        units = [
            (start * line // unit, size * line // unit)
            for start, size in zip(starts, sizes, strict=True)
        ]
        self._returned, room = shared and in_two_steps(sizes[0] * line, by.size), 0
        if self._returned:
            room = sizes[0] * line
            units = [(each.start, each.size) for each in shares(room // unit, by.size)]
        self._unit, self._most = unit, max(count for _, count in units) * unit
        self._shares = torch.tensor(units, dtype=torch.int64, device=by.device)
        self._launch: PreparedLaunch | None = None
        by.reserve(len(sizes) * self._most + room, self)

    def __call__(self, sums: Any) -> Any:
        """This rank's lines of the result, from its contiguous sums of all, which begin at a
        multiple of 16 bytes."""
        made = sums.new_empty(self._lines, self._width)
        launch = self._launch
        if launch is None:
            plan = adding(
                self._by.rank,
                self._by.size,
                self._name,
                self._unit,
                self._most,
                returned=self._returned,
            )
            launch = self._launch = self._by.launch(plan, offsets=self._shares.data_ptr())
        self._by.run(launch, sums.data_ptr(), made.data_ptr(), self._shares)
        return made

    def forget(self) -> None:
        """There is another mailbox from now on."""
        self._launch = None


class OneShotCollectives:
    """`Collectives` for calls that are not prepared, by gatherings and additions that are made once
    for each size: a CUDA graph cannot capture how."""

    def __init__(self, by: OneShot) -> None:
        self.by = by
        self._made: dict[tuple[Hashable, ...], Any] = {}

    def gather(self, own: Any, sizes: Sequence[int]) -> Any:
        """As `Collectives.gather`."""
        return self._of(Gathering, own.dtype, tuple(sizes), own.shape[1])(own)

    def scatter(self, sums: Any, sizes: Sequence[int]) -> Any:
        """As `Collectives.scatter`."""
        return self._of(Addition, sums.dtype, tuple(sizes), sums.shape[1])(sums)

    def reduce(self, sums: Any) -> Any:
        """As `Collectives.reduce`."""
        lines, width = sums.shape
        return self._of(Addition, sums.dtype, (lines,) * self.by.size, width, shared=True)(sums)

    def ended(self) -> None:
        """As `Collectives.ended`."""
        self.by.ended()

    def _of(self, kind: Callable[..., Any], *given: Hashable, **options: Hashable) -> Any:
        key = kind, *given, *options.items()
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            found = self._made[key] = kind(self.by, *given, **options)
        return found
