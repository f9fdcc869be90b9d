"""Sentences about a wrong result, and about the error bound that was applied."""

from __future__ import annotations

from collections.abc import Iterable

from gemmkit.record import Diagnosis

_PLAIN = ("", "fp32", "fp64")


def wrong_result(diagnosis: Diagnosis | None, detail: str) -> str:
    """What is wrong, what to try, and an example element."""
    if diagnosis is None:
        return detail
    example = f"For example, {detail}" if diagnosis.wrong > 1 and detail[:2] == "C[" else detail
    sentences = (f"{diagnosis.summary}.", *diagnosis.details, example)
    return " ".join(filter(None, sentences))


def shortened(diagnosis: Diagnosis | None, before: Iterable[Diagnosis | None]) -> str:
    """How much is wrong, and "as above" for what a previous diagnosis says; empty if none does."""
    if diagnosis is None:
        return ""
    how_much, _, why = diagnosis.summary.partition(": ")
    said = {each.summary.partition(": ")[2] for each in before if each is not None}
    return f"{how_much}: as above." if why and why in said else ""


def bound_notes(arithmetics: Iterable[str]) -> tuple[str, ...]:
    """A sentence per arithmetic, other than that of the types, whose bound was applied."""
    seen = dict.fromkeys(each for each in arithmetics if each not in _PLAIN)
    return tuple(f"Error bounds are those of: {each}." for each in seen)
