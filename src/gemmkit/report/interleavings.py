"""The order of execution in which a finding goes wrong, and what came of a schedule, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmkit.check_record import CheckRecord
from gemmkit.findings import Finding


def interleaving_lines(finding: Finding, records: Sequence[CheckRecord]) -> Iterator[str]:
    """The steps in which a finding goes wrong, numbered, and the options that replay them."""
    found = finding.interleaving
    if found is None:
        return
    if not found.schedule:
        yield f"Interleaving: {found.reason}."
        return
    yield "Goes wrong in this order:"
    for number, step in enumerate(found.steps, 1):
        yield f"  {number}. {step}"
    record = next((each for each in records if finding in each.findings), None)
    shape = f"--shape {record.problem.shape} " if record is not None else ""
    yield f"To replay it, add: {shape}--schedule {found.schedule}"


def replayed(records: Sequence[CheckRecord]) -> Iterator[str]:
    """For problems whose block followed a schedule, whether the result was right."""
    for record in records:
        if not record.schedule:
            continue
        if record.correct is None:
            yield f"With this schedule there is no result: {record.detail}"
        else:
            yield f"With this schedule the result is {'right' if record.correct else 'wrong'}."
