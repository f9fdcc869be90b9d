"""`Remembered`: what was decided of problems, each of them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gemmkit.problem import GemmProblem

# Problems that are remembered; those of groups, which hold all their sizes; and stand-ins.
MOST_REMEMBERED, MOST_GROUPS_REMEMBERED, MOST_STAND_INS = 4096, 64, 64

Decided = TypeVar("Decided")


class Remembered(Generic[Decided]):
    """What was decided of the problems that were asked for, and of stand-ins: problems that nobody
    asked for, but that decide others.

    Args:
        decide: decides a problem; it may ask for that of a stand-in.
    """

    def __init__(self, decide: Callable[[GemmProblem], Decided]) -> None:
        self._decide = decide
        self._asked_for: dict[GemmProblem, Decided] = {}
        self._groups: dict[GemmProblem, Decided] = {}
        self._stand_ins: dict[GemmProblem, Decided] = {}

    @property
    def asked_for(self) -> dict[GemmProblem, Decided]:
        """Those that were asked for, in that order, groups last."""
        return self._asked_for | self._groups

    def forget(self) -> None:
        """Everything is to be decided anew."""
        for each in (self._asked_for, self._groups, self._stand_ins):
            each.clear()

    def of(self, problem: GemmProblem) -> Decided:
        """What is decided of a problem that is asked for."""
        if problem.groups is not None:
            return self._known(problem, self._groups, MOST_GROUPS_REMEMBERED)
        return self._known(problem, self._asked_for, MOST_REMEMBERED)

    def of_stand_in(self, problem: GemmProblem) -> Decided:
        """What is decided of a problem that decides another one."""
        known = self._asked_for if problem.groups is None else self._groups
        return known.get(problem) or self._known(problem, self._stand_ins, MOST_STAND_INS)

    def _known(self, problem: GemmProblem, known: dict[GemmProblem, Decided], most: int) -> Decided:
        found = known.get(problem)
        if found is None:
            if len(known) >= most:
                known.clear()
            found = self._stand_ins.get(problem) or self._decide(problem)
            known[problem] = found
        return found
