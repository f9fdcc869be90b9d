"""`Parties`: how findings name threads and places in shared memory, also those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.isa.cluster import divided
from gemmkit.emulator.sanitizer.granules import instruction_of, thread_of
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import AccessSite


class Parties:
    """The names of the threads of one worker's block or, if there are several, of its cluster's.

    A party (`who`, see `granules.party`) numbers the threads of a cluster one block after the
    other, each with whole warps.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._blocks: Sequence[int] | None = None
        # What names the fault by which a warp's last wait at an mbarrier may have come too early.
        self.cause_of_wait: Callable[[int], str] = lambda _: ""
        self._block = self.rank = 0
        x, y, z = names.request.block
        self._threads = -(-x * y * z // LANES) * LANES

    def begin(self, block: int, rank: int, blocks: Sequence[int] | None) -> None:
        """A block begins; `blocks` are those of its cluster, if that has several, by rank."""
        self._block, self.rank, self._blocks = block, rank, blocks

    @property
    def first_warp(self) -> int:
        """This block's first warp, as the warps are counted in the cluster."""
        return self.rank * self._threads // LANES

    @property
    def count(self) -> int:
        """The number of blocks in the cluster."""
        return 1 if self._blocks is None else len(self._blocks)

    def site(self, who: int) -> AccessSite:
        """Where a party is."""
        thread = thread_of(who) % self._threads
        return self._names.site(instruction_of(who), self._names.thread(thread))

    def rank_of(self, who: int) -> int:
        """The rank of a party's block."""
        return thread_of(who) // self._threads

    def block_of(self, who: int) -> int:
        """The number of a party's block."""
        return self._block if self._blocks is None else self._blocks[self.rank_of(who)]

    def name(self, who: int, block: int | None = None) -> str:
        """A party in words: with its block if that is given, or in a cluster."""
        if self._blocks is not None:
            block = self.block_of(who)
        return self.named(self.site(who), block, self.rank_of(who))

    def named(self, site: AccessSite, block: int | None = None, rank: int | None = None) -> str:
        """A thread in words; in a cluster with the rank, which is this block's if none is given."""
        of = f" of block {self._names.block(block)}" if block is not None else ""
        if self._blocks is not None:
            of += f" (rank {self.rank if rank is None else rank})"
        return f"thread {site.thread}{of} at {site}"

    def place(self, address: int, own: int | None = None) -> tuple[str, int, str]:
        """The array at an address in shared memory, the byte in it, and both in words; if it is in
        a block of another rank than this one or `own`, with that."""
        own = self.rank if own is None else own
        rank, within = divided(address, own)
        array, offset = self._names.shared(within)
        other = f" of rank {rank}" if self._blocks is not None and rank != own else ""
        return array, offset, f"byte {offset} of '{array}'{other}"

    def missing_fence(self, writer: int, address: int) -> str:
        """Which proxy fence an ordinary write to a place in shared memory lacks, in words."""
        if self.rank_of(writer) == divided(address, self.rank)[0]:
            return "with no fence.proxy.async between"
        return (
            "with no fence.proxy.async between that covers other blocks' shared memory (without a "
            "space, or .shared::cluster)"
        )

    def copy_name(self, number: int) -> str:
        """What an asynchronous copy is called."""
        action = self._names.actions[number]
        if action.operation in ("bulk_copy", "bulk_tensor"):
            return "bulk copy"
        return ".".join(action.form.opcode.split(".")[:2])


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence as a list: "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
