"""How a choice for ragged groups is made: one for all divisions of the rows among them.

How rows are divided is not known, or other at each call: what suits a spread of sizes around their
mean is taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemmkit.dispatch.entry_words import described
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.dispatch.choose import Choice, Dispatcher


def apart(problem: GemmProblem) -> GemmProblem:
    """Ragged groups as others, which kernels read from a table."""
    assert problem.groups is not None
    return replace(problem, groups=replace(problem.groups, ragged=False))


def is_representative(problem: GemmProblem) -> bool:
    """Whether ragged groups are those that a choice is made for."""
    return problem.results > 0 and problem == problem.representative


def choose_for_rows(own: Dispatcher, problem: GemmProblem) -> Choice:
    """What any division of a problem's rows gets, with the time for this one; what groups with a
    table get, where no kernel reads where ragged ones end.

    Raises:
        UnsupportedProblem: as `Dispatcher.choose`.
    """
    if not problem.results:
        return own.choose(apart(problem))
    typical = problem.representative
    found = own.choose(typical)
    kernel, config = found.kernel, found.config
    if not kernel.takes_ragged or kernel.supports(problem, config, own.gpu) is not None:
        return own.choose(apart(problem))
    costed = own.costed(kernel.name, config)
    here, there = costed.estimate(problem), costed.estimate(typical)
    time = here.microseconds
    reason = f"the same for any division of so many rows; this one is {described(here)}"
    if found.source != "heuristic":
        reason = found.reason
        if there.microseconds:
            time *= found.microseconds / there.microseconds
    return replace(found, reason=reason, microseconds=time, measured=False)
