"""Ragged groups as what a choice is made for: one for all divisions of the rows among them.

How rows are divided is not known, or other at each call: what suits a spread of sizes around their
mean is taken.
"""

from __future__ import annotations

from dataclasses import replace

from gemmkit.analysis.closed_form.form import Estimate
from gemmkit.dispatch.entry_words import described
from gemmkit.problem import GemmProblem


def apart(problem: GemmProblem) -> GemmProblem:
    """Ragged groups as others, which kernels read from a table."""
    assert problem.groups is not None
    return replace(problem, groups=replace(problem.groups, ragged=False))


def is_representative(problem: GemmProblem) -> bool:
    """Whether ragged groups are those that a choice is made for."""
    return problem.results > 0 and problem == problem.representative


def why_for_rows(here: Estimate) -> str:
    """Why a division of rows gets what was estimated for all of them."""
    return f"the same for any division of so many rows; this one is {described(here)}"
