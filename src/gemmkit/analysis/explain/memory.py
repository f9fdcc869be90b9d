"""Reasons in global and shared memory: loads, requests, sectors, wavefronts, bank conflicts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.explanation import Evidence, Sentence
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.explain.pair import Pair, Reason, Rule, fewer_is_better, more_is_better
from gemmkit.analysis.explain.wording import differ, number, percent
from gemmkit.analysis.loads import GLOBAL_REQUESTS, GLOBAL_SECTORS
from gemmkit.analysis.memory import MemoryRow


def _global_loads(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(
        pair, derived.GLOBAL_LOADS, "It loads {} words from global memory for each result"
    )


def _requests(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(pair, GLOBAL_REQUESTS[0], "It makes {} global-load requests")


def _sectors(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(pair, GLOBAL_SECTORS[0], "Its global loads touch {} 32-byte sectors")


def _coalescing(pair: Pair) -> Iterator[Reason]:
    """Per operand: sectors per request beside those that its bytes need at least."""
    for this, other in _common(pair, "global"):
        if not (this.ideal_sectors and other.ideal_sectors):
            continue
        excess, theirs = this.sectors / this.ideal_sectors, other.sectors / other.ideal_sectors
        if not differ(excess, theirs):
            continue
        metric = derived.SECTORS_PER_REQUEST["store" if this.kind == "store" else "load"]
        yield (
            abs(math.log(excess / theirs)),
            Sentence(
                text=f"A request to {_verb(this)} {this.array} touches {_sectors_told(this)}; "
                f"in {pair.names[1]} {_sectors_told(other)}.",
                evidence=(
                    Evidence(
                        metric=metric,
                        operand=this.array,
                        this=this.sectors / this.requests,
                        other=other.sectors / other.requests,
                    ),
                    Evidence(
                        metric=derived.IDEAL_SECTORS,
                        operand=this.array,
                        this=this.ideal_sectors / this.requests,
                        other=other.ideal_sectors / other.requests,
                    ),
                ),
                favours="this" if excess < theirs else "other",
            ),
        )


def _sectors_told(access: MemoryRow) -> str:
    seen, needed = (each / access.requests for each in (access.sectors, access.ideal_sectors))
    told = f"{number(seen)} sector{'' if seen == 1 else 's'}"
    if not differ(seen, needed):
        return f"{told}, the fewest that its bytes need"
    return f"{told} where {number(needed)} would hold its bytes"


def _verb(access: MemoryRow) -> str:
    return {"load": "load", "copy": "copy", "store": "store"}.get(access.kind, "update")


def _common(pair: Pair, space: str) -> Iterator[tuple[MemoryRow, MemoryRow]]:
    """Accesses to the same array for the same purpose; cp.async is a load from global memory."""

    def by_purpose(facts: Facts) -> dict[tuple[str, str], MemoryRow]:
        return {
            (each.array, {"copy": "load"}.get(each.kind, each.kind)): each
            for each in facts.accesses
            if each.space == space
        }

    theirs = by_purpose(pair.other)
    for purpose, access in by_purpose(pair.this).items():
        if purpose in theirs:
            yield access, theirs[purpose]


def _global_width(pair: Pair) -> Iterator[Reason]:
    yield from more_is_better(
        pair,
        derived.GLOBAL_WIDTH,
        "A global-load request brings {} bytes to a lane",
    )


def _async(pair: Pair) -> Iterator[Reason]:
    values = pair.both(derived.ASYNC_SHARE)
    if values is None or not differ(*values):
        return
    more, less = max(values), min(values)
    mine = values[0] > values[1]
    name = "It" if mine else pair.names[1]
    told = "this kernel" if not mine else pair.names[1]
    text = f"{name} copies {percent(more)} of what it loads from global memory by cp.async"
    text += f"; {told} {percent(less)}." if less else f"; {told} copies none that way."
    yield (
        math.log(1 + more / 100),
        Sentence(
            text=text,
            evidence=pair.evidence(derived.ASYNC_SHARE),
            favours="this" if mine else "other",
        ),
    )


# --- shared memory ----------------------------------------------------------------------------


def _shared_loads(pair: Pair) -> Iterator[Reason]:
    values = pair.both(derived.SHARED_LOADS)
    if values is None:
        return
    if all(values):
        yield from fewer_is_better(
            pair, derived.SHARED_LOADS, "It loads {} words from shared memory for each result"
        )
    elif any(values):
        user = "It" if values[0] else pair.names[1]
        plain = pair.names[1] if values[0] else "this kernel"
        yield (
            0.0,
            Sentence(
                text=f"{user} loads {number(max(values))} words from shared memory for each "
                f"result; {plain} loads none from there.",
                evidence=pair.evidence(derived.SHARED_LOADS),
            ),
        )


def _shared_wavefronts(pair: Pair) -> Iterator[Reason]:
    for metric, what in zip(derived.SHARED_WAVEFRONTS, ("loads", "stores"), strict=True):
        values = pair.both(metric)
        if values is not None and all(values):
            yield from fewer_is_better(
                pair, metric, f"Its shared-memory {what} take {{}} wavefronts"
            )


def _conflicts(pair: Pair) -> Iterator[Reason]:
    values = pair.both(derived.CONFLICT_SHARE)
    if values is None or not differ(1 + values[0] / 100, 1 + values[1] / 100):
        return
    this, other = (
        f"cost {percent(value)} of the wavefronts of" if value else "cost nothing in"
        for value in values
    )
    yield (
        abs(values[0] - values[1]) / 100,
        Sentence(
            text=f"Bank conflicts {this} its shared loads and stores, and {other} those of "
            f"{pair.names[1]}.",
            evidence=pair.evidence(derived.CONFLICT_SHARE, *derived.SHARED_CONFLICTS),
            favours="this" if values[0] < values[1] else "other",
        ),
    )


def _shared_width(pair: Pair) -> Iterator[Reason]:
    yield from more_is_better(
        pair, derived.SHARED_WIDTH, "A shared-memory load brings {} bytes to a lane"
    )


def _reuse(pair: Pair) -> Iterator[Reason]:
    yield from more_is_better(
        pair,
        derived.FMA_PER_SHARED_LOAD,
        "Each word that it loads from shared memory feeds {} multiply-adds",
    )


MEMORY_RULES: tuple[Rule, ...] = (
    _global_loads,
    _requests,
    _sectors,
    _coalescing,
    _global_width,
    _async,
    _shared_loads,
    _shared_wavefronts,
    _conflicts,
    _shared_width,
    _reuse,
)
