"""The findings about wgmma and `setmaxnreg`, in words."""

from __future__ import annotations

import threading

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.accumulators import Touch
from gemmkit.emulator.sanitizer.asynchronous_findings import (
    NO_COPY_WAIT,
    REFILL,
    is_refill,
    not_waited,
)
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import Conflict, instruction_of, thread_of
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.ranked_descriptors import RankedDescriptors
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.swizzles import Mismatch
from gemmkit.emulator.sanitizer.worded_findings import WordedFindings
from gemmkit.findings import AccessSite

_UNORDERED = "with no barrier, and no arrival and wait at an mbarrier, between"
# What ptxas 13.0 does about each, by its messages C7519 and C7518: such a kernel may be slow.
_FORGIVEN = {
    "missing wgmma.fence": "ptxas, which inserts the fence",
    "accumulator in flight": "ptxas, which inserts a wait and serializes the wgmma",
    "operand in flight": "ptxas, which inserts a wait and serializes the wgmma",
}
# CUTLASS has such main loops, and Triton 3.6 compiles loads through pointers to them.
_COPIES = "current hardware"
# So also for swizzled operands that are K-major.
_UNUSED = "current hardware, which ignores the leading offset of this layout"


class WarpgroupFindings(WordedFindings):
    """Adds findings to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        super().__init__(names, collection)
        # By instruction, the first block and thread that executed it.
        self.first: dict[int, tuple[int, int]] = {}
        self.descriptors = RankedDescriptors()
        # All workers tell of it, also when they read their logs.
        self._lock = threading.Lock()

    def executed(self, number: int, block: int, thread: int) -> None:
        """A thread, the first of its warp, executes a wgmma."""
        with self._lock:
            if number not in self.first or block < self.first[number][0]:
                self.first[number] = block, thread

    def too_early(
        self,
        parties: Parties,
        block: int,
        who: int,
        address: int,
        met: Conflict,
        clocks: Clocks,
    ) -> None:
        """A wgmma reads what is not ordered before it."""
        array, offset = self._names.shared(address)
        here, there = parties.site(who), parties.site(met.other)
        of_bulk_copy = clocks.warps <= met.actor < clocks.warps + clocks.places
        of_copy = met.actor >= clocks.warps + clocks.places
        kind = "read before wait" if of_bulk_copy or of_copy else "read after write"
        if of_bulk_copy and is_refill(clocks, who, met):
            kind = REFILL

        def text() -> str:
            other, between = parties.name(met.other), _UNORDERED
            if of_bulk_copy:
                other = f"the {parties.copy_name(instruction_of(met.other))} by {other}"
                between = not_waited(clocks, who, met, parties)
            elif of_copy:
                other, between = f"the cp.async by {other}", NO_COPY_WAIT
            return (
                f"the wgmma by {parties.name(who, block)} reads byte {offset} of "
                f"'{array}', which {other} writes, {between}"
            )

        def follows() -> str:
            return parties.cause_of_wait(thread_of(met.other) // LANES) if of_bulk_copy else ""

        self._add(block, "racecheck", kind, text, here, there, array, offset, follows=follows)

    def no_proxy_fence(
        self,
        parties: Parties,
        block: int,
        who: int,
        address: int,
        other: int,
        *,
        copied: bool,
    ) -> None:
        """A wgmma reads what a generic write, or a cp.async, may not have made visible."""
        array, offset = self._names.shared(address)
        here, there = parties.site(who), parties.site(other)
        text = (
            f"the wgmma by {parties.name(who, block)} reads byte {offset} of '{array}', which "
            f"{'the cp.async by ' if copied else ''}{parties.name(other)} writes "
            f"{parties.missing_fence(other, address)}"
        )
        self._add(
            block, "racecheck", "missing proxy fence", text, here, there, array, offset,
            forgiven_by=_COPIES if copied else "",
            cause=self._names.missing_fences.cause(instruction_of(other)),
        )  # fmt: skip

    def swizzled(self, parties: Parties, block: int, who: int, met: Mismatch) -> None:
        """A wgmma reads chunks in another order than a tensor copy wrote them."""
        array, offset = self._names.shared(met.address)
        here, there = parties.site(who), parties.site(met.writer)
        layout, base = met.descriptor.layout, met.descriptor.base
        if base:
            layout += f" and base offset {base}"
        hint = "give map and descriptor the same swizzle"
        if CHUNK_BYTES << met.descriptor.chunks_log2 == met.swizzle:
            hint = f"TMA's pattern begins at multiples of {8 * met.swizzle:,} bytes, base offset 0"
        text = (
            f"the wgmma by {parties.name(who, block)} reads byte {offset} of '{array}' as part of "
            f"{met.operand} with {layout}, which the bulk copy by {parties.name(met.writer)} "
            f"writes with a {met.swizzle}-byte swizzle; {hint}"
        )
        self._add(block, "synccheck", "swizzle mismatch", text, here, there, array, offset)

    def uninitialized(
        self, parties: Parties, block: int, who: int, address: int, writer: int | None
    ) -> None:
        """A wgmma reads shared memory that was never written, or to which a party, `writer`, has
        written a value that was never set."""
        array, offset = self._names.shared(address)
        here, there = parties.site(who), None
        why = "was never written"
        if writer is not None:
            there = parties.site(writer)
            why = f"{parties.name(writer)} writes with a value that was never set"
        text = (
            f"the wgmma by {parties.name(who, block)} reads byte {offset} of '{array}', which {why}"
        )
        self._add(block, "initcheck", "uninitialized", text, here, there, array, offset)

    def disagree(self, block: int, one: tuple[int, int], other: tuple[int, int], what: str) -> None:
        """Two warps of a warpgroup, each (instruction, warp), do not execute the same."""
        here, there = (self._site_of(number, warp * LANES) for number, warp in (one, other))
        operands = "descriptors" if what == "wgmma" else "registers"
        text = (
            f"warp {one[1]} of block {self._names.block(block)} executes the {what} at {here}, and "
            f"warp {other[1]} of its warpgroup another at {there}, or one with other {operands}"
        )
        self._add(block, "synccheck", "warps disagree", text, here, there)

    def ranked_descriptors(self) -> None:
        """All blocks have ended: descriptors of wgmma that hold the rank of a block."""
        for each in self.descriptors.found():
            here = self._site_of(each.number, each.warp * LANES)
            text = (
                f"the descriptor of {each.operand} of the wgmma by thread {here.thread} of block "
                f"{self._names.block(each.block)} (rank {each.rank}) at {here} holds bits of the "
                f"block's rank in its cluster: its leading offset is {each.leading:,} bytes, and "
                f"{each.other:,} without the rank; mask the shared address to 18 bits, "
                "(address & 0x3FFFF) >> 4"
            )
            forgiven = "" if each.used else _UNUSED
            self._add(
                each.block, "synccheck", "rank in descriptor", text, here, None,
                forgiven_by=forgiven,
            )  # fmt: skip

    def absent(self, block: int, number: int, warp: int, other: int, what: str) -> None:
        """A warp executes an instruction without another one of its warpgroup."""
        here = self._site_of(number, warp * LANES)
        text = (
            f"warp {warp} of block {self._names.block(block)} executes the {what} at {here} "
            f"without warp {other} of its warpgroup"
        )
        self._add(block, "synccheck", "incomplete warpgroup", text, here, None)

    def setmaxnreg_ignored(self, block: int, number: int, warp: int, reason: str) -> None:
        """ptxas leaves the instruction out, for this reason."""
        here = self._site_of(number, warp * LANES)
        text = (
            f"ptxas leaves out the setmaxnreg at {here}, which warp {warp} of block "
            f"{self._names.block(block)} executes, as {reason}"
        )
        self._add(
            block, "synccheck", "setmaxnreg ignored", text, here, None,
            forgiven_by="ptxas: each thread keeps the registers that it has at launch",
            cause="setmaxnreg-ignored",
        )  # fmt: skip

    def too_many_registers(
        self, block: int, number: int, warp: int, wanted: tuple[int, str], had: int
    ) -> None:
        """A warp waits for registers that no other warp releases; `wanted` is how many the block
        would have then, and of which threads."""
        here, (total, listed) = self._site_of(number, warp * LANES), wanted
        text = (
            f"warp {warp} of block {self._names.block(block)} waits for registers at {here} that "
            f"no warp releases: {listed} are {total:,}, and the block has {had:,}"
        )
        self._add(block, "synccheck", "register file exceeded", text, here, None)

    def released_too_late(self, block: int, number: int, warp: int, other: tuple[int, int]) -> None:
        """A warp waits for registers that another one, (instruction, warp), releases only after
        something that the first one does later."""
        here, there = self._site_of(number, warp * LANES), self._site_of(other[0], other[1] * LANES)
        text = (
            f"warp {warp} of block {self._names.block(block)} waits at {here} for registers that "
            f"warp {other[1]} releases at {there}, after waiting for warp {warp}"
        )
        self._add(block, "synccheck", "register deadlock", text, here, there)

    def wrong_direction(self, block: int, number: int, warp: int, count: int, had: int) -> None:
        """A `setmaxnreg.inc` asks for fewer registers than the warp has, or `.dec` for more."""
        here = self._site_of(number, warp * LANES)
        way = "an increase" if count < had else "a decrease"
        text = (
            f"warp {warp} of block {self._names.block(block)} asks at {here} for {way} to {count} "
            f"registers per thread, and has {had}"
        )
        self._add(block, "synccheck", "invalid register count", text, here, None)

    def touched(self, touch: Touch) -> None:
        """An instruction uses registers of a wgmma too early."""
        wgmma = touch.number if touch.kind == "missing wgmma.fence" else touch.other
        if wgmma is None or wgmma not in self.first:
            return
        block, thread = self.first[wgmma]
        here = self._site_of(touch.number, thread)
        there = self._site_of(touch.other, thread) if touch.other is not None else None
        text = f"{self._party(here, block)} {_does(touch)}"
        if there is not None:
            text = text.format(there=there)
        if touch.moved_past is not None:
            fence = self._site_of(touch.moved_past, thread)
            text = f"{self._party(here, block)} {self._moved(touch, there, fence)}"
        forgiven = _FORGIVEN.get(touch.kind, "") if touch.committed else ""
        self._add(block, "synccheck", touch.kind, text, here, there, forgiven_by=forgiven)

    def _moved(self, touch: Touch, there: AccessSite | None, fence: AccessSite) -> str:
        """What the compiler did where it moved a write past a fence, and how to stop it."""
        assert touch.other is not None
        writer = self._names.actions[touch.other]
        what, source = "writes", writer.sources[0] if writer.operation == "move" else None
        if isinstance(source, Immediate):
            what = "zeroes" if source.value == 0 else "initializes"
        letter = "f" if touch.register.startswith("%f") else "r"
        return (
            f"uses register '{touch.register}' in a wgmma; the compiler {what} it at "
            f"{_with_call(there)}, after the wgmma.fence at {_with_call(fence)}: it moves writes "
            "past a fence whose asm does not name the registers. Name all accumulators and "
            f'operands before the fence: asm volatile("" : "+{letter}"(d[i]) :: "memory"), as '
            "warpgroup_fence_operand of CUTLASS does"
        )

    def _site_of(self, number: int, thread: int) -> AccessSite:
        return self._names.site(number, self._names.thread(thread))

    def _party(self, site: AccessSite, block: int) -> str:
        return f"thread {site.thread} of block {self._names.block(block)} at {site}"


def _with_call(site: AccessSite | None) -> str:
    """A line, and the one that calls its function if that is inlined."""
    if site is None or not site.called_from:
        return str(site)
    return f"{site} (called at {site.called_from[0]})"


def _does(touch: Touch) -> str:
    register = f"register '{touch.register}'"
    if touch.kind == "missing wgmma.fence":
        if touch.other is None:
            return "executes a wgmma with no wgmma.fence before it"
        return f"uses {register} in a wgmma, which {{there}} writes, with no wgmma.fence between"
    if touch.kind == "accumulator of another shape":
        return (
            f"accumulates in {register}, which the wgmma of another shape at {{there}} may still "
            "write, with no wgmma.wait_group that covers it between"
        )
    still = "write" if touch.kind == "accumulator in flight" else "read"
    missing = (
        "with no wgmma.wait_group that covers it between"
        if touch.committed
        else "with no wgmma.commit_group for it, and so no wgmma.wait_group that covers it, between"
    )
    return f"{touch.does} {register}, which the wgmma at {{there}} may still {still}, {missing}"
