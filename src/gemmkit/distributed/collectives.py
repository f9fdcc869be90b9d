"""Collective operations around a product: all lines before it, or the sums of all ranks after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gemmkit.distributed.process_group import (
    GroupCommunicator,
    gather_collectively,
    reduce_collectively,
    scatter_collectively,
)


class Collectives(Protocol):
    """Those of a group of ranks, one call after the other."""

    def gather(self, own: Any, sizes: Sequence[int]) -> Any:
        """The lines of all ranks, which have so many each; they are read before `ended`."""

    def scatter(self, sums: Any, sizes: Sequence[int]) -> Any:
        """This rank's lines of the sum of all ranks' arrays, of which each has so many."""

    def reduce(self, sums: Any) -> Any:
        """The sum of all ranks' arrays, which may be in place of this rank's."""

    def ended(self) -> None:
        """A call is over."""


class GroupCollectives:
    """By one operation of a process group each."""

    def __init__(self, group: GroupCommunicator) -> None:
        self._group = group

    def gather(self, own: Any, sizes: Sequence[int]) -> Any:
        """As `Collectives.gather`."""
        return gather_collectively(self._group, own, sizes)

    def scatter(self, sums: Any, sizes: Sequence[int]) -> Any:
        """As `Collectives.scatter`."""
        return scatter_collectively(self._group, sums, sizes)

    def reduce(self, sums: Any) -> Any:
        """As `Collectives.reduce`."""
        return reduce_collectively(self._group, sums)

    def ended(self) -> None:
        """As `Collectives.ended`."""
