"""What measured entries and estimates say of a problem, in words."""

from __future__ import annotations

from gemmkit.analysis.closed_form.form import Estimate
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import Entry
from gemmkit.units import counted, microseconds_text


def is_of(entry: Entry, problem: GemmProblem) -> bool:
    """Whether an entry's time is one of this very problem, but for the numbers in its matrices."""
    own = entry.problem.problem
    if problem.groups is not None and ":" in problem.groups_text:
        # Of padded rows, or of ragged groups, for which entries stand however rows are divided.
        return False
    return (
        (entry.problem.dtype, entry.epilogue) == (problem.dtype, str(problem.epilogue))
        and problem.scales == own.scales
        and (problem.alpha, problem.beta) == (own.alpha, own.beta)
        and (problem.lda, problem.ldb, problem.ldc) == (own.lda, own.ldb, own.ldc)
        and problem.strides == own.strides
        and not problem.prepared
    )


def how_measured(entry: Entry, problem: GemmProblem) -> str:
    """How an entry was measured, with scales if the problem has any."""
    fused = "no epilogue" if entry.epilogue == "none" else f"epilogue {entry.epilogue}"
    if problem.scales:
        scales = entry.problem.scales
        fused += f", scales {scales}" if scales else ", no scales"
    return f"{fused}, α = 1, β = 0 and rows without gaps"


def described(seen: Estimate) -> str:
    """An estimate in words."""
    work = seen.work
    text = (
        f"estimated at {microseconds_text(seen.microseconds)}, {counted(work.ctas, 'block')} in "
        f"{seen.waves:,.2f} waves"
    )
    if work.parts > 1:
        text += f", up to {work.parts} of them share the k of a tile"
    if seen.memory_us > seen.microseconds / 2:
        text += f", {microseconds_text(seen.memory_us)} of it to read and write the matrices"
    elif seen.busy < 0.9:
        text += f", which keep the SMs busy {100 * seen.busy:.0f} % of the time"
    return text
