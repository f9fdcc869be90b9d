"""The findings about the blocks of a cluster, in words."""

from __future__ import annotations

from gemmkit.emulator.codegen.operands import access_bytes
from gemmkit.emulator.isa.cluster import divided
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import instruction_of
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.worded_findings import WordedFindings


class ClusterFindings(WordedFindings):
    """Adds findings to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        super().__init__(names, collection)
        self.parties = Parties(names)

    def may_not_run(self, who: int, address: int) -> None:
        """A thread accesses the shared memory of a block that may not run yet."""
        array, offset, place = self.parties.place(address, self.parties.rank_of(who))
        here = self.parties.site(who)
        text = (
            f"{self.parties.name(who)} accesses {place}, with no barrier.cluster.arrive and "
            "wait before that show that this block runs"
        )
        block = self.parties.block_of(who)
        self._add(block, "synccheck", "block may not run yet", text, here, None, array, offset)

    def may_have_exited(self, who: int, address: int) -> None:
        """A thread accesses the shared memory of a block that may have exited."""
        array, offset, place = self.parties.place(address, self.parties.rank_of(who))
        here = self.parties.site(who)
        by = self.parties.name(who)
        text = (
            f"{by} accesses {place}, and nothing that this block waits for follows: it may have "
            "exited; a barrier.cluster.arrive after the access and a wait before the exit keep it"
        )
        if self._names.actions[instruction_of(who)].operation == "bulk_store":
            text = (
                f"{by} stores asynchronously to {place}, and this block does not wait for the "
                "mbarrier that counts the bytes: it may have exited"
            )
        block = self.parties.block_of(who)
        self._add(block, "synccheck", "block may have exited", text, here, None, array, offset)

    def may_exit_too_early(self, who: int, address: int) -> None:
        """A block may exit while its copy to another block still reads its shared memory."""
        array, offset, place = self.parties.place(address, self.parties.rank_of(who))
        here = self.parties.site(who)
        text = (
            f"the block ends while the bulk copy by {self.parties.name(who)} may still read "
            f"{place}: only the other block waits for the mbarrier that counts the bytes; a "
            "barrier.cluster.arrive there after that, and a wait here, keep this block"
        )
        block = self.parties.block_of(who)
        self._add(block, "synccheck", "block may have exited", text, here, None, array, offset)

    def not_of_cluster_scope(self, block: int, who: int, address: int, other: int) -> None:
        """A thread reads what another block wrote, ordered by instructions of block scope only."""
        array, offset, place = self.parties.place(address)
        here, there = self.parties.site(who), self.parties.site(other)
        text = (
            f"{self.parties.name(who, block)} reads {place}, which {self.parties.name(other)} "
            "writes; an mbarrier arrival or wait between is of block scope (.cta, the default), "
            "which orders nothing between blocks: use .release.cluster and .acquire.cluster"
        )
        self._add(
            block, "racecheck", "block scope between blocks", text, here, there, array, offset,
            forgiven_by="current hardware",
        )  # fmt: skip

    def outside_peer(self, block: int, number: int, thread: int, address: int) -> None:
        """A thread accesses another block's shared memory out of bounds or misaligned."""
        rank, within = divided(address, self.parties.rank)
        size = access_bytes(self._names.actions[number])
        here = self._names.site(number, self._names.thread(thread))
        kind = "misaligned" if within % size else "out of bounds"
        text = (
            f"{self.parties.named(here, block)} accesses {size} bytes at byte {within:,} of the "
            "shared "
            f"memory of rank {rank}, in a cluster of {self.parties.count} blocks"
        )
        self._add(block, "memcheck", kind, text, here, None, "", within)

    def uninitialized_peer(self, who: int, address: int) -> None:
        """A thread reads another block's shared memory, which was never written."""
        array, offset, place = self.parties.place(address)
        here = self.parties.site(who)
        text = f"{self.parties.name(who)} reads {place}, which was never written"
        block = self.parties.block_of(who)
        self._add(block, "initcheck", "uninitialized", text, here, None, array, offset)
