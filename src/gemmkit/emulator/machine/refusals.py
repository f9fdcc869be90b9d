"""`Refusal`: an asynchronous instruction that is not valid, with what a message needs."""

from __future__ import annotations

from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.ptx.module import Kernel
from gemmkit.emulator.ptx.shared_names import shared_array


class Refusal(Exception):
    """One thread's instruction that is refused: `what` is a clause that begins with a verb.

    `array` and `offset` say where, as in a finding; `number` is that of the instruction.
    """

    def __init__(
        self, kind: str, what: str, number: int, thread: int, array: str, offset: int
    ) -> None:
        super().__init__(what)
        self.kind, self.what = kind, what
        self.number, self.thread = number, thread
        self.array, self.offset = array, offset

    @classmethod
    def at_shared(
        cls,
        misuse: Misuse,
        number: int,
        thread: int,
        kernel: Kernel,
        address: int,
        peer: int | None = None,
    ) -> Refusal:
        """A refusal that concerns an address in shared memory, maybe that of a peer's rank."""
        array, offset = shared_array(kernel, address)
        what = f"{misuse.what}, at byte {offset} of '{array}'"
        if peer is not None:
            what += (
                f" of rank {peer}, a block that may not run yet: a barrier.cluster.arrive and wait "
                "after the initialization there order it before"
            )
        return cls(misuse.kind, what, number, thread, array, offset)
