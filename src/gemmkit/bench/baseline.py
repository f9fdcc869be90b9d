"""`Baseline`: a library that computes the same product, to be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gemmkit.devices.device import Work
from gemmkit.problem import GemmProblem

Arguments = Mapping[str, int | float]


class Baseline(Protocol):
    """A library that computes the same product from the same buffers."""

    name: str

    def candidates(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, list[Work]]:
        """Ways to compute the problem, by name: for each the launch on every set of buffers.

        At least one; each does what the kernel does, epilogue and all. Where the library chooses
        for itself, its choice is the first.

        Raises:
            UnsupportedProblem: the library has no way to compute it.
        """
