"""`Trace`: the course of one block or cluster, with what each of its events depends on.

An event is the execution of a synchronizing or asynchronous instruction by a warp, or its end.
Ordinary accesses belong to the segment that follows an event, or to segment −1 before the first
one. Warps are counted through the blocks of a cluster, and places in shared memory are addresses in
the window of the cluster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.isa.cluster import RANK_SHIFT, cluster_address, divided
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.ptx.module import Instruction
from gemmkit.emulator.ptx.places import place_of
from gemmkit.emulator.sanitizer.collection import Collection, Key
from gemmkit.findings import Finding


@dataclass(frozen=True, slots=True)
class Executed:
    """A warp has executed its event of this number, or waits in it."""

    warp: int
    index: int


@dataclass(frozen=True, slots=True)
class Passed:
    """A warp has executed its event of this number and waits no longer: the segment after it."""

    warp: int
    index: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A bulk copy, by its number in the trace, has taken effect."""

    copy: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A phase of an mbarrier, by its number in the trace, is complete."""

    phase: int


Node = Executed | Passed | Landed | Completed


END = -1


@dataclass(slots=True)
class Event:
    """An instruction in the course of a warp: the `times`-th at its source line.

    It follows `after`, and waits for `awaited`; `order` is its place in the trace. The number `END`
    stands for the end of the warp.
    """

    number: int
    times: int
    order: int
    after: set[Node] = field(default_factory=set)
    awaited: set[Node] = field(default_factory=set)


@dataclass(slots=True)
class Phase:
    """A complete phase of an mbarrier or of the cluster's barrier: what it took, and the events
    that observed it."""

    needs: set[Node]
    observed: list[Passed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IssuedCopy:
    """A bulk copy: the `times`-th of its thread, issued by an event of a block of this rank; the
    places to which and from which it goes, and its mbarrier's."""

    copy: Copy
    times: int
    event: Executed
    rank: int
    to: int
    start: int
    barrier: int | None


@dataclass(frozen=True, slots=True)
class Pair:
    """What a finding is about: `second` happens although nothing has ordered `first` before it.

    With `early`, the phases that were complete before it when recorded need not be; `also` has to
    come before. If no order of events shows it, `reason` says why.
    """

    second: Node | None = None
    first: Node | None = None
    reason: str = ""
    early: bool = False
    also: Node | None = None


@dataclass(frozen=True, slots=True)
class _Access:
    """The range of shared memory that an instruction of a warp accessed in a segment."""

    segment: int
    start: int
    end: int


class Trace:
    """The events of one block, or of a cluster of blocks with `warps` each, and the findings with
    their pairs."""

    def __init__(self, body: tuple[Instruction, ...], warps: int) -> None:
        self.body, self.warps = body, warps
        self.events: defaultdict[int, list[Event]] = defaultdict(list)
        self.copies: list[IssuedCopy] = []
        self.phases: list[Phase] = []
        self.notes: dict[Key, tuple[Finding, Pair]] = {}
        self.pending = Pair()
        # By mbarrier, what has arrived in the current phase, and the last complete one.
        self._arrived: defaultdict[int, set[Node]] = defaultdict(set)
        self._complete: dict[int, int] = {}
        self._barriers: defaultdict[tuple[int, int], set[Node]] = defaultdict(set)
        self._reached: Counter[tuple[int, tuple[str, int]]] = Counter()
        self._issued: Counter[tuple[int, int]] = Counter()
        # By warp: the events that issued wgmma, and how many of them when each group was committed.
        self._products: defaultdict[int, list[int]] = defaultdict(list)
        self._groups: defaultdict[int, list[int]] = defaultdict(list)
        self._asking: set[tuple[int, int, int]] = set()
        self._accesses: defaultdict[tuple[int, int], list[_Access]] = defaultdict(list)
        self._order = 0
        self.running = 0

    def last(self, warp: int) -> int:
        """The number of a warp's last event, which is that of its current segment."""
        return len(self.events[warp]) - 1

    def begin(self, warp: int, number: int, lanes: int) -> None:
        """A warp is about to execute an instruction at which a schedule could stop it."""
        self.running = warp
        if (warp, number, lanes) in self._asking:
            return
        place = place_of(self.body[number])
        self._reached[warp, place] += 1
        self._order += 1
        self.events[warp].append(Event(number, self._reached[warp, place], self._order))

    def end(self, warp: int) -> Executed:
        """A warp has ended; the event."""
        if not self.events[warp] or self.events[warp][-1].number != END:
            self._order += 1
            self.events[warp].append(Event(END, 1, self._order))
        return Executed(warp, self.last(warp))

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for a phase; until it is done, they ask again in the same event."""
        (self._asking.discard if done else self._asking.add)((warp, number, lanes))

    def accessed(self, warp: int, number: int, start: int, end: int) -> None:
        """A warp has accessed shared memory in its current segment, from `start` to `end`."""
        found, segment = self._accesses[warp, number], self.last(warp)
        if found and found[-1].segment == segment:
            start, end = min(start, found[-1].start), max(end, found.pop().end)
        found.append(_Access(segment, start, end))

    def segment_of(self, warp: int, number: int, address: int) -> int:
        """The last segment in which a warp's instruction accessed an address."""
        found = self._accesses[warp, number]
        for each in reversed(found):
            if each.start <= address < each.end:
                return each.segment
        return found[-1].segment if found else self.last(warp)

    def _current(self, warp: int) -> Event | None:
        return self.events[warp][-1] if self.events[warp] else None

    def event_of(self, warp: int, number: int) -> int | None:
        """The last event in which a warp executes an instruction."""
        found = (n for n, each in enumerate(self.events[warp]) if each.number == number)
        return max(found, default=None)

    def earlier_copy(self, copy: int) -> Node | None:
        """The effect of the copy before this one to the same place, for the same mbarrier."""
        given = self.copies[copy]
        if given.barrier is None:
            return None
        for at in range(copy - 1, -1, -1):
            each = self.copies[at]
            if each.barrier == given.barrier and each.to == given.to:
                return Landed(at)
        return None

    # Barriers

    def arrives(self, barrier: tuple[int, int], warp: int) -> None:
        """A warp arrives at a barrier, given by the rank of the block and its number."""
        self._barriers[barrier].add(Executed(warp, self.last(warp)))

    def opens(self, barrier: tuple[int, int], warps: Iterable[int], ended: Iterable[int]) -> None:
        """A barrier opens for these warps; those that have `ended` need not arrive."""
        self._barriers[barrier].update(self.end(warp) for warp in ended)
        for warp in warps:
            event = self._current(warp)
            if event is not None:
                event.awaited |= self._barriers[barrier]
        self._barriers[barrier] = set()

    # mbarriers, and the barrier of the cluster

    def arrived(self, warp: int, address: int) -> None:
        """A warp arrives at an mbarrier, or announces bytes."""
        node, event = Executed(warp, self.last(warp)), self._current(warp)
        self._arrived[address].add(node)
        if address in self._complete and event is not None:
            event.after.add(Completed(self._complete[address]))

    def delivered(self, copy: Copy) -> None:
        """The bytes of a copy are counted at its mbarrier."""
        number = self.number_of(copy)
        barrier = self.copies[number].barrier
        assert barrier is not None
        self._arrived[barrier].add(Landed(number))

    def completed(self, address: int, ended: Iterable[int] = ()) -> None:
        """A phase is complete; warps that have `ended` without an arrival count as arrived."""
        needs, before = self._arrived.pop(address, set()), self._complete.get(address)
        arrived = {node.warp for node in needs if isinstance(node, Executed)}
        needs |= {self.end(warp) for warp in ended if warp not in arrived}
        event = self._current(self.running)
        if event is not None and self._is_mbarrier(event):
            needs.add(Executed(self.running, self.last(self.running)))
        if before is not None:
            needs.add(Completed(before))
        self._complete[address] = len(self.phases)
        self.phases.append(Phase(needs))

    def _is_mbarrier(self, event: Event) -> bool:
        return event.number != END and self.body[event.number].opcode.startswith("mbarrier")

    def observed(self, warp: int, address: int) -> None:
        """A warp has observed that the last phase is complete."""
        event = self._current(warp)
        if event is not None and address in self._complete:
            phase = self._complete[address]
            event.awaited.add(Completed(phase))
            self.phases[phase].observed.append(Passed(warp, self.last(warp)))

    def complete_phase(self, address: int, before: int = 0) -> Completed | None:
        """The last complete phase of an mbarrier, or one so many `before` it."""
        number = self._complete.get(address)
        for _ in range(before):
            if number is None:
                break
            earlier = (each for each in self.phases[number].needs if isinstance(each, Completed))
            number = next((each.phase for each in earlier), None)
        return Completed(number) if number is not None else None

    def copy_to(self, barrier: int) -> Landed | None:
        """The last copy that counts at an mbarrier."""
        found = (n for n, each in enumerate(self.copies) if each.barrier == barrier)
        last = max(found, default=None)
        return Landed(last) if last is not None else None

    def arrivals(self, address: int) -> set[Node]:
        """What has arrived in the current phase."""
        return self._arrived[address]

    # wgmma

    def multiplied(self, warp: int) -> None:
        """A warp issues a wgmma."""
        self._products[warp].append(self.last(warp))

    def products_committed(self, warp: int) -> None:
        """A warp commits a group of wgmma."""
        self._groups[warp].append(len(self._products[warp]))

    def products_awaited(self, warp: int, going: int, members: range) -> None:
        """A warp waited for its groups but the latest few, which the warps of its warpgroup have
        issued."""
        ends, event = self._groups[warp], self._current(warp)
        count = ends[-1 - going] if len(ends) > going else 0
        for other in members:
            issued = self._products[other]
            if event is not None and 0 < count <= len(issued) and other != warp:
                event.awaited.add(Executed(other, issued[count - 1]))

    # Copies

    def issued(self, copy: Copy, rank: int) -> None:
        """A thread of a block issues a bulk copy."""
        self._issued[rank, copy.thread] += 1
        warp = rank * self.warps + copy.thread // LANES
        event = Executed(warp, self.last(warp))
        to, start = place_in(rank, copy.to), place_in(rank, copy.start)
        barrier = None if copy.barrier is None else place_in(rank, copy.barrier)
        times = self._issued[rank, copy.thread]
        self.copies.append(IssuedCopy(copy, times, event, rank, to, start, barrier))

    def number_of(self, copy: Copy) -> int:
        """The number of a copy in the trace."""
        found = (n for n in range(len(self.copies) - 1, -1, -1) if self.copies[n].copy is copy)
        return next(found)

    def last_copy(self, number: int, thread: int, address: int) -> int | None:
        """The last copy that a thread, counted through the cluster, issued by an instruction from
        or to a place in shared memory; of a tensor, the last one."""
        rank, within = divmod(thread, self.warps * LANES)
        for at in range(len(self.copies) - 1, -1, -1):
            issued = self.copies[at]
            copy = issued.copy
            if (copy.action.number, issued.rank, copy.thread) != (number, rank, within):
                continue
            start = issued.to if copy.action.form["D"] == "shared" else issued.start
            if start <= address < start + copy.nbytes or (
                copy.box is not None and start >> RANK_SHIFT == address >> RANK_SHIFT
            ):
                return at
        return None

    # Findings

    def note(self, key: Key, finding: Finding) -> None:
        """A finding was added; it is about the pending pair."""
        if key not in self.notes:
            self.notes[key] = finding, self.pending
        self.pending = Pair()


def place_in(rank: int, address: int) -> int:
    """A place in shared memory, by an address as the block of a rank uses it."""
    return cluster_address(*divided(address, rank))


class NotingCollection(Collection):
    """A collection that notes its findings in a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def again(self, key: Key, block: int) -> bool:
        """As `Collection.again`; what a finding is about is noted already if so."""
        known = super().again(key, block)
        if known:
            self._trace.pending = Pair()
        return known

    def add(self, finding: Finding, block: int, follows: str = "") -> Key:
        """Add a finding, and note what it is about."""
        key = super().add(finding, block, follows)
        self._trace.note(key, finding)
        return key
