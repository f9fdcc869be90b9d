"""The shortest order of execution in which a fault shows, out of a recorded trace.

The later access of a pair needs what it depends on (arrivals, waits, barriers, copies that have
landed), and nothing else. Hence these events come first, then that access, and last the access
that was the earlier one when the block was recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gemmkit.emulator.ptx.places import place_of
from gemmkit.emulator.sanitizer.interleaving_steps import (
    grouped,
    text_of,
    through,
    until_next,
    warp_name,
)
from gemmkit.emulator.sanitizer.trace import (
    Completed,
    Event,
    Executed,
    Landed,
    Node,
    Pair,
    Passed,
    Trace,
)
from gemmkit.emulator.schedule import Landing, Run, Schedule, Step
from gemmkit.findings import Finding, Interleaving

# A list longer than this helps nobody.
MOST_STEPS = 60
_ORDERED = (
    "no order of the warps shows it: the second access depends on what follows the first one, but "
    "nothing makes the first one visible to it"
)
# What the second event of a pair does, by the kind of finding, if it is no access; those about the
# phase of an mbarrier that came before it when recorded.
_SECOND = {
    "mbarrier not visible": ", which uses the mbarrier",
    "early arrival": ", which counts in the phase before",
    "ambiguous parity": ", which ends at once",
}
_OF_PHASE = frozenset(["early arrival", "ambiguous parity"])
_UNKNOWN = "no order of the recorded steps was found in which it shows"
_LONG = f"it takes more than {MOST_STEPS} steps"


def interleaving(trace: Trace, finding: Finding, pair: Pair) -> Interleaving:
    """The order in which a pair of a trace goes wrong, in words and as a schedule."""
    if pair.reason or (pair.second is None and finding.kind != "deadlock"):
        return Interleaving(reason=pair.reason or _UNKNOWN)
    if pair.second is None:
        wanted: list[Node] = [Executed(warp, trace.last(warp)) for warp in trace.events]
    else:
        wanted = [each for each in (pair.second, pair.also) if each is not None]
    needed = _slice(trace, wanted, pair)
    first, of_phase = pair.first, finding.kind in _OF_PHASE
    if first is not None and first in needed:
        return Interleaving(reason=_UNKNOWN if of_phase else _ORDERED)
    if not of_phase and isinstance(first, Landed) and trace.earlier_copy(first.copy) in needed:
        # The second access has waited for the copy before this one, which comes too early.
        needed, first = _slice(trace, [*wanted, first], pair), None
    steps: list[Step] = []
    if pair.second is None:
        steps += _recorded(trace)
    else:
        walk = _Walk(trace, needed)
        steps += walk.steps()
        if not walk.complete:
            return Interleaving(reason=_UNKNOWN)
    texts = [text_of(trace, step) for step in steps]
    if pair.second is None and len(grouped(trace, steps, texts)) > MOST_STEPS:
        text = "the warps run in their default order, each until it waits"
        return Interleaving(steps=(text,), schedule=str(Schedule(finding.block, ())))
    if isinstance(pair.second, Passed):
        last = until_next(trace, pair.second)
        if (
            steps
            and isinstance(steps[-1], Run)
            and (steps[-1].warp, steps[-1].rank) == (last.warp, last.rank)
        ):
            steps.pop()
            texts.pop()
        steps.append(last)
        texts.append(f"{text_of(trace, last)}, past {_access(finding, first=False)}")
    elif finding.kind in _SECOND and texts:
        texts[-1] += _SECOND[finding.kind]
    elif pair.second is not None and finding.kind != "phase overrun" and texts:
        texts[-1] += f", which begins {_access(finding, first=False)}"
    if first is not None:
        step, text = _late(trace, first, finding, needed)
        steps += [step] if step is not None else []
        texts.append(text)
    lines = grouped(trace, steps, texts)
    if len(lines) > MOST_STEPS:
        return Interleaving(reason=_LONG)
    return Interleaving(steps=tuple(lines), schedule=str(Schedule(finding.block, tuple(steps))))


def _late(
    trace: Trace, first: Node, finding: Finding, needed: set[Node]
) -> tuple[Step | None, str]:
    """The access that came first in the trace, as the last step; None if the default order gets
    there, as it takes more warps."""
    of_phase = finding.kind in _OF_PHASE
    if isinstance(first, Landed):
        issued = trace.copies[first.copy]
        landing = Landing(issued.times, issued.copy.thread, issued.rank)
        step: Step = landing if issued.event in needed else through(trace, issued.event)
        text, warp = text_of(trace, step), issued.event.warp
        late = "the phase before ends" if of_phase else _access(finding, first=True)
        text = f"{text}: only now {late}"
    elif isinstance(first, Executed):
        step, warp = through(trace, first), first.warp
        late = "it arrives in the phase before" if of_phase else "the mbarrier is initialized"
        text = f"{text_of(trace, step)}: only now {late}"
    else:
        assert isinstance(first, Passed)
        warp = first.warp
        if finding.kind == "phase overrun":
            wait = trace.body[trace.events[warp][first.index].number]
            where = "{}:{}".format(*place_of(wait))
            name = warp_name(*divmod(warp, trace.warps)[::-1])
            return None, (
                f"{name} goes on, and waits at {where} for a phase that has passed, until another "
                "one of this parity completes, if ever"
            )
        step = until_next(trace, first)
        text = f"{text_of(trace, step)}: only now {_access(finding, first=True)}"
    missing = _slice(trace, [first], Pair()) - needed
    others = {n.warp for n in missing if isinstance(n, Executed)} - {warp}
    return (None, f"the other warps go on; {text}") if others else (step, text)


def _access(finding: Finding, *, first: bool) -> str:
    site = finding.other if first else finding.here
    assert site is not None
    return f"the access at {site} to byte {finding.offset} of '{finding.array}'"


def _recorded(trace: Trace) -> Iterator[Run]:
    """All events in the order in which they were recorded."""
    events = [
        (event.order, Executed(warp, index))
        for warp, found in trace.events.items()
        for index, event in enumerate(found)
    ]
    ordered = [node for _, node in sorted(events, key=lambda each: each[0])]
    for node, following in zip(ordered, [*ordered[1:], None], strict=True):
        if following is None or following.warp != node.warp:
            yield through(trace, node)


# What a pair depends on


def _slice(trace: Trace, wanted: list[Node], pair: Pair) -> set[Node]:
    """Everything that must happen for some nodes to happen, these included."""
    found: set[Node] = set()
    work = list(wanted)
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            needs = _needs(trace, node)
            if pair.early and node == pair.second:
                needs = [each for each in needs if not isinstance(each, Completed)]
            work += needs
    return found


def _needs(trace: Trace, node: Node) -> list[Node]:
    if isinstance(node, Completed):
        return list(trace.phases[node.phase].needs)
    if isinstance(node, Landed):
        return [trace.copies[node.copy].event]
    if node.index < 0:
        return []
    event = trace.events[node.warp][node.index]
    if isinstance(node, Passed):
        return [Executed(node.warp, node.index), *event.awaited]
    return [*event.after, Passed(node.warp, node.index - 1)]


class _Walk:
    """An order of the events of a slice with few changes of the warp."""

    def __init__(self, trace: Trace, needed: set[Node]) -> None:
        self._trace, self._needed = trace, needed
        self._done: set[Node] = set()
        self._last: dict[int, int] = {}
        for node in needed:
            if isinstance(node, Executed):
                self._last[node.warp] = max(node.index, self._last.get(node.warp, -1))
        self._at = dict.fromkeys(self._last, -1)
        # By node, the phases that need it; by phase, how many nodes and events it still needs.
        self._phases: defaultdict[Node, list[int]] = defaultdict(list)
        self._missing = [len(phase.needs) for phase in trace.phases]
        self._arrivals = [0] * len(trace.phases)
        for number, phase in enumerate(trace.phases):
            if not phase.needs:
                self._done.add(Completed(number))
            for node in phase.needs:
                self._phases[node].append(number)
                self._arrivals[number] += isinstance(node, Executed)
        self._copies: defaultdict[Node, list[Node]] = defaultdict(list)
        for number, copy in enumerate(trace.copies):
            self._copies[copy.event].append(Landed(number))

    def steps(self) -> Iterator[Run]:
        """Runs of warps, each as far as it comes."""
        while left := [warp for warp in self._last if self._at[warp] < self._last[warp]]:
            ready = [warp for warp in left if self._ready(warp)]
            if not ready:
                return
            warp = min(ready, key=lambda each: self._next(each).order)
            while self._at[warp] < self._last[warp] and self._ready(warp):
                self._at[warp] += 1
                self._do(Executed(warp, self._at[warp]))
            yield through(self._trace, Executed(warp, self._at[warp]))

    @property
    def complete(self) -> bool:
        """Whether the steps lead to all of the slice."""
        return self._at == self._last

    def _next(self, warp: int) -> Event:
        return self._trace.events[warp][self._at[warp] + 1]

    def _ready(self, warp: int) -> bool:
        at = self._at[warp]
        wanted = set(self._next(warp).after)
        if at >= 0:
            wanted |= self._trace.events[warp][at].awaited
        return wanted & self._needed <= self._done and not self._overruns(Executed(warp, at + 1))

    def _overruns(self, following: Executed) -> bool:
        """Whether an event completes a phase although a warp has yet to observe the one before."""
        for number in self._phases[following]:
            if self._arrivals[number] > 1:
                continue
            for before in self._trace.phases[number].needs:
                if isinstance(before, Completed) and any(
                    each in self._needed
                    and self._at[each.warp] < each.index
                    and each.warp != following.warp
                    for each in self._trace.phases[before.phase].observed
                ):
                    return True
        return False

    def _do(self, event: Executed) -> None:
        """An event happens, and with it what needs nothing else."""
        work: list[Node] = [event]
        while work:
            node = work.pop()
            self._done.add(node)
            work += self._copies[node]
            for number in self._phases[node]:
                self._missing[number] -= 1
                self._arrivals[number] -= isinstance(node, Executed)
                if not self._missing[number]:
                    work.append(Completed(number))
