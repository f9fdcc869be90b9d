"""Sentences about a wrong result, and about the error bound that was applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.bench.edge_cases import NON_FINITE
from gemmkit.check_record import CheckRecord
from gemmkit.record import Diagnosis

_PLAIN = ("", "fp32", "fp64")


def wrong_result(diagnosis: Diagnosis | None, detail: str) -> str:
    """What is wrong, what to try, and an example element."""
    if diagnosis is None:
        return detail
    example = f"For example, {detail}" if diagnosis.wrong > 1 and detail[:2] == "C[" else detail
    sentences = (f"{diagnosis.summary}.", *diagnosis.details, example)
    return " ".join(filter(None, sentences))


def shortened(record: CheckRecord, before: Sequence[CheckRecord]) -> str:
    """What to say of a wrong result whose reason was given already; empty if it was not.

    "As above" stands for the reason that was given last, so that it names one only. NaN and
    infinities among the inputs of a problem that is wrong without them show nothing new.
    """
    diagnosis = record.diagnosis
    if diagnosis is None:
        return ""
    how_much, _, why = diagnosis.summary.partition(": ")
    if _wrong_without_nan(record, before):
        return f"{how_much}: without NaN and infinities, results are wrong too."
    said = [
        each.diagnosis.summary.partition(": ")[2]
        for number, each in enumerate(before)
        if each.diagnosis is not None and not _wrong_without_nan(each, before[:number])
    ]
    if not why or why not in said:
        return ""
    return f"{how_much}: {'as above' if why == said[-1] else why}."


def _wrong_without_nan(record: CheckRecord, before: Sequence[CheckRecord]) -> bool:
    """Whether inputs hold NaN and infinities, and the same problem was wrong without them."""
    return record.case == NON_FINITE and any(
        each.problem == record.problem and each.correct is False for each in before
    )


def bound_notes(arithmetics: Iterable[str]) -> tuple[str, ...]:
    """A sentence per arithmetic, other than that of the types, whose bound was applied."""
    seen = dict.fromkeys(each for each in arithmetics if each not in _PLAIN)
    return tuple(f"Error bounds are those of: {each}." for each in seen)
