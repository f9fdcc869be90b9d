"""`Observer`: what the sanitizers want to know of asynchronous instructions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Observer(Protocol):
    """Is told of the asynchronous instructions of one worker, in the order of their execution.

    Threads are numbered within the block, `number` is that of an instruction, addresses are in
    shared memory, a copy is a `bulk.Copy`, whose module needs workers and so this one.
    """

    def look(self) -> None:
        """Native code returns for a while."""

    def initialized(self, number: int, thread: int, address: int) -> None:
        """A thread initializes an mbarrier."""

    def invalidated(self, number: int, thread: int, address: int) -> None:
        """A thread invalidates an mbarrier."""

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier in another way; arrivals and waits are reported again."""

    def arrived(self, number: int, thread: int, address: int) -> None:
        """A thread has arrived at an mbarrier, the last one of its warp in this instruction; this
        precedes the completion of the phase."""

    def completed(self, address: int) -> None:
        """A phase of an mbarrier is complete."""

    def waited(self, number: int, thread: int, address: int) -> None:
        """A thread has observed the completion of a phase."""

    def issued(self, copy: Any) -> None:
        """A thread has issued a bulk copy."""

    def delivered(self, copy: Any) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""

    def landed(self, copy: Any) -> None:
        """A bulk copy has written its destination."""

    def groups_waited(self, thread: int, copies: Iterable[Any]) -> None:
        """A thread has waited for bulk copies that it issued, or for their reads."""

    def ended(self, copies: Iterable[Any]) -> None:
        """All warps have ended; these copies to global memory were not waited for."""
