"""The findings about mbarriers, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.sanitizer.cluster_findings import ClusterFindings
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import instruction_of, thread_of
from gemmkit.emulator.sanitizer.parties import listed
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import AccessSite


def overrun_cause(array: str, wait: AccessSite) -> str:
    """What names the overrun of the phases of the mbarriers of an array, awaited at one place."""
    return "/".join(("phase-overrun", array, str(wait), *wait.called_from))


def surplus_text(expected: int, warps: Sequence[int]) -> str:
    """That more warps arrive at an mbarrier than its phases expect arrivals."""
    return (
        f"Its phases expect {expected:,} arrival{'s' * (expected > 1)}, and {len(warps)} warps "
        "arrive at it: the count of its initialization may be too small"
    )


@dataclass(frozen=True, slots=True)
class Before:
    """The phase of an mbarrier before the one in which a thread arrives, or for which it waits: a
    party that arrives in it or, with `copies`, issues one whose bytes it takes, if that is known.

    With `same_warp` the party is of the thread's own warp, and ends the phase by the same
    instruction. `expected` is how many arrivals a phase expects, 0 if not known, and `surplus` has
    that with the warps that arrive, if these are more.
    """

    by: int | None
    copies: bool = False
    same_warp: bool = False
    expected: int = 0
    surplus: tuple[int, list[int]] | None = None


class MbarrierFindings(ClusterFindings):
    """Adds findings to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        super().__init__(names, collection)
        self._relaxed = any(
            ".relaxed" in each.form.opcode and "arrive" in each.operation for each in names.actions
        )

    def not_visible(self, block: int, number: int, thread: int, address: int, who: int) -> None:
        """An mbarrier is used before its initialization is visible."""
        array, offset, place = self.parties.place(address)
        there_by = who
        here, there = (
            self._names.site(number, self._names.thread(thread)),
            self.parties.site(there_by),
        )
        text = (
            f"{self.parties.named(here, block)} uses the mbarrier at {place}, which "
            f"{self.parties.name(there_by)} initializes, with no barrier between "
            "that orders memory"
        )
        if self._relaxed:
            text += ": a relaxed arrive needs a fence.mbarrier_init before it"
        self._add(block, "racecheck", "mbarrier not visible", text, here, there, array, offset)

    def touched(self, block: int, who: int, address: int) -> None:
        """An ordinary access to the bytes of an mbarrier."""
        array, offset, place = self.parties.place(address)
        here = self.parties.site(who)
        text = (
            f"{self.parties.name(who, block)} accesses the bytes of the mbarrier at "
            f"{place}, which only mbarrier instructions may until it is invalidated"
        )
        self._add(block, "synccheck", "mbarrier accessed", text, here, None, array, offset)

    def initialized_again(self, block: int, number: int, thread: int, address: int) -> None:
        """An mbarrier is initialized while it is in use."""
        array, offset, place = self.parties.place(address)
        here = self._names.site(number, self._names.thread(thread))
        text = (
            f"{self.parties.named(here, block)} initializes the mbarrier at {place} "
            f"again without mbarrier.inval"
        )
        self._add(block, "synccheck", "invalid mbarrier", text, here, None, array, offset)

    def overrun_phase(
        self,
        block: int,
        who: int,
        address: int,
        arrived: Sequence[int],
        surplus: tuple[int, list[int]] | None = None,
    ) -> None:
        """The next phase of an mbarrier, by these arrivals, may complete before a thread has
        observed this one; with a `surplus`, as more warps arrive than it expects arrivals."""
        array, offset, place = self.parties.place(address)
        here = self.parties.site(who)
        text = (
            f"{self.parties.name(who, block)} waits for a phase of the mbarrier at "
            f"{place}, but nothing orders this wait before the arrivals of the next phase"
            f"{self._arrivals(arrived)}: if that completes first, the wait does not end"
        )
        there = self.parties.site(arrived[0]) if arrived else None
        cause = overrun_cause(array, here)
        follows = ""
        if surplus is not None:
            self._collection.roots.add(cause)
            text += f". {surplus_text(*surplus)}"
        elif arrived:
            follows = self._cause_of_last_wait(arrived[-1])
        self._add(
            block, "synccheck", "phase overrun", text, here, there, array, offset, cause=cause,
            follows=follows,
        )  # fmt: skip

    def early_arrival(
        self, block: int, number: int, thread: int, address: int, before: Before
    ) -> None:
        """A thread arrives at an mbarrier without knowing that the phase before is complete."""
        array, offset, place = self.parties.place(address)
        here = self._names.site(number, self._names.thread(thread))
        there = self.parties.site(before.by) if before.by is not None else None
        text = f"{self.parties.named(here, block)} arrives at the mbarrier at {place}, "
        if before.same_warp and before.by is not None:
            text += (
                f"and counts in the phase after the one that {self.parties.name(before.by)}, of "
                "the same warp, ends by the same instruction"
            )
        else:
            early = "be one too many there" if before.copies else "end it too early"
            text += (
                f"but nothing orders this arrival after the end of the phase before"
                f"{self._which(before)}: it may count in that phase, and {early}"
            )
        if before.surplus is not None:
            text += f". {surplus_text(*before.surplus)}"
        elif before.expected:
            text += f". Its phases expect {before.expected:,} arrival{'s' * (before.expected > 1)}"
        self._add(block, "synccheck", "early arrival", text, here, there, array, offset)

    def ambiguous_wait(
        self, block: int, number: int, thread: int, phase: tuple[int, int], before: Before
    ) -> None:
        """A thread waits for the phase of a parity of an mbarrier (`phase`: the address and the
        parity) without knowing that the phase before is complete."""
        address, parity = phase
        array, offset, place = self.parties.place(address)
        here = self._names.site(number, self._names.thread(thread))
        there = self.parties.site(before.by) if before.by is not None else None
        text = (
            f"{self.parties.named(here, block)} waits for a phase of parity {parity} of the "
            f"mbarrier at {place}, but nothing orders this wait after the end of the phase before"
            f"{self._which(before)}: if the wait comes first, it ends at once, with an earlier "
            "phase of that parity"
        )
        self._add(block, "synccheck", "ambiguous parity", text, here, there, array, offset)

    def _which(self, before: Before) -> str:
        if before.by is None:
            return ""
        name, called = self.parties.name(before.by), self.parties.site(before.by).called_from
        name += f" (called at {called[0]})" if called else ""
        if before.copies:
            what = self.parties.copy_name(instruction_of(before.by))
            return f", which takes the bytes of the {what} by {name}"
        return f", in which {name} arrives"

    def _cause_of_last_wait(self, who: int) -> str:
        """What may have let a party go on too early."""
        return self.parties.cause_of_wait(thread_of(who) // LANES)

    def _arrivals(self, arrived: Sequence[int]) -> str:
        """The first thread that arrives at each line, in words."""
        names: dict[str, str] = {}
        for who in arrived:
            site = self.parties.site(who)
            called = f" (called at {site.called_from[0]})" if site.called_from else ""
            names.setdefault(f"{site}{called}", f"{self.parties.name(who)}{called}")
        return f" by {listed(tuple(names.values()))}" if names else ""
