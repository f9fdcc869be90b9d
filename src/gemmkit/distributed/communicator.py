"""What a schedule needs of the ranks' means of communication: a protocol with little in it.

Between `start` and `finish` of a call, all ranks start the same exchanges in the order of their
schedules. On a GPU nothing here waits on the host: what is taken may be read by the current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gemmkit.distributed.schedule import Schedule, Transfer
from gemmkit.ops.allgather import GatheredRows


class Outgoing(NamedTuple):
    """An array to be sent, and where to."""

    array: Any
    transfer: Transfer


class Arrival(Protocol):
    """An array that is on its way to this rank."""

    def take(self) -> Any:
        """The array, which may be read from now on until the call is finished.

        Raises:
            DistributedError: it did not arrive.
        """


class Transfers(Protocol):
    """The transfers of one call."""

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer]
    ) -> Sequence[Arrival]:
        """Start transfers; the arrays that are sent stay as they are until `finish`."""

    def gathered(self, own: Any) -> Any:
        """All lines of the operand, once they are there, with this rank's own among them."""

    def arriving(self, own: Any) -> GatheredRows | None:
        """The lines of the operand and their flags, for a kernel that waits for them itself, with
        this rank's `own` apart; None where there are no flags, or no lines on some rank. After
        `waited`, all that arrives has been read by such a kernel."""

    def waited(self) -> None:
        """What arrives is waited for by a kernel on the current stream."""

    def finish(self) -> None:
        """End the call: what was sent may be overwritten, what was taken is read no more."""


class Communicator(Protocol):
    """A group of ranks, as one of them sees it."""

    @property
    def rank(self) -> int:
        """The number of this rank in the group, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def start(self, schedule: Schedule, like: Any, dtype: str, width: int) -> Transfers:
        """Begin a call.

        Args:
            schedule: what is sent and received in it.
            like: an array of the operands' kind and device.
            dtype: the type of what is sent.
            width: the elements of each line that is sent.
        """

    def agree(self, facts: str) -> Sequence[str]:
        """What each rank says of a call, by rank; all ranks call it.

        Raises:
            DistributedError: a rank does not answer in time.
        """
