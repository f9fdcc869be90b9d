"""Reasons in global and shared memory: loads, requests, sectors, wavefronts, bank conflicts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.explanation import Evidence, Sentence
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.explain.pair import Pair, Reason, Rule, fewer_is_better, more_is_better
from gemmkit.analysis.explain.weights import access_places, places
from gemmkit.analysis.explain.wording import differ, number, percent
from gemmkit.analysis.loads import GLOBAL_REQUESTS, GLOBAL_SECTORS
from gemmkit.analysis.memory import MemoryRow


def _global_loads(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(
        pair, derived.GLOBAL_LOADS, "It loads {} words per result from global memory"
    )


def _requests(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(pair, GLOBAL_REQUESTS[0], "It makes {} global-load requests")


def _sectors(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(
        pair, GLOBAL_SECTORS[0], "Its global loads access {} 32-byte sectors"
    )


def _coalescing(pair: Pair) -> Iterator[Reason]:
    """Per operand: sectors per request, compared with the minimum for its bytes."""
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
                text=f"A request to {_verb(this)} {this.array} accesses {_sectors_text(this)}; "
                f"in {pair.names[1]}, {_sectors_text(other)}.",
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
                favors="this" if excess < theirs else "other",
                places=access_places(
                    *((pair.other, other) if excess < theirs else (pair.this, this)),
                    lambda row: row.sectors - row.ideal_sectors,
                ),
                places_of="other" if excess < theirs else "this",
            ),
        )


def _sectors_text(access: MemoryRow) -> str:
    seen, needed = (each / access.requests for each in (access.sectors, access.ideal_sectors))
    text = f"{number(seen)} sector{'' if seen == 1 else 's'}"
    if not differ(seen, needed):
        return f"{text}, the minimum for its bytes"
    return f"{text} where {number(needed)} would suffice"


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
        "A global-load request loads {} bytes per lane",
    )


def _async(pair: Pair) -> Iterator[Reason]:
    yield from _copied(pair, derived.ASYNC_SHARE, "cp.async")


def _by_tma(pair: Pair) -> Iterator[Reason]:
    yield from _copied(pair, derived.TMA_SHARE, "TMA")


def _copied(pair: Pair, metric: str, means: str) -> Iterator[Reason]:
    values = pair.both(metric)
    if values is None or not differ(*values):
        return
    more, less = max(values), min(values)
    mine = values[0] > values[1]
    name = "It" if mine else pair.names[1]
    rest = "this kernel" if not mine else pair.names[1]
    text = f"{name} loads {percent(more)} of its bytes from global memory by {means}"
    text += f"; {rest}, {percent(less)}." if less else f"; {rest} uses no {means}."
    # cp.async needs threads, but neither is a loss against the other.
    others = pair.both(derived.TMA_SHARE if metric == derived.ASYNC_SHARE else derived.ASYNC_SHARE)
    instead = others is not None and others[1 if mine else 0] > 0
    yield (
        math.log(1 + more / 100),
        Sentence(
            text=text,
            evidence=pair.evidence(metric),
            favors="neither" if instead and means == "cp.async" else "this" if mine else "other",
        ),
    )


# --- shared memory ----------------------------------------------------------------------------


def _shared_loads(pair: Pair) -> Iterator[Reason]:
    values = pair.both(derived.SHARED_LOADS)
    if values is None:
        return
    if all(values):
        yield from fewer_is_better(
            pair, derived.SHARED_LOADS, "It loads {} words per result from shared memory"
        )
    elif any(values):
        user = "It" if values[0] else pair.names[1]
        plain = pair.names[1] if values[0] else "this kernel"
        yield (
            0.0,
            Sentence(
                text=f"{user} loads {number(max(values))} words per result from shared memory; "
                f"{plain} loads none.",
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
    this, other = (percent(value) if value else "none" for value in values)
    worse = pair.other if values[0] < values[1] else pair.this
    yield (
        abs(values[0] - values[1]) / 100,
        Sentence(
            text=f"Bank conflicts account for {this} of the wavefronts of its shared loads and "
            f"stores, and for {other} of those of {pair.names[1]}.",
            evidence=pair.evidence(derived.CONFLICT_SHARE, *derived.SHARED_CONFLICTS),
            favors="this" if values[0] < values[1] else "other",
            places=places(
                (row for row in worse.lines if row.space == "shared"), lambda row: row.conflicts
            ),
            places_of="other" if worse is pair.other else "this",
        ),
    )


def _shared_width(pair: Pair) -> Iterator[Reason]:
    yield from more_is_better(
        pair, derived.SHARED_WIDTH, "A shared-memory load instruction loads {} bytes per lane"
    )


def _reuse(pair: Pair) -> Iterator[Reason]:
    yield from more_is_better(
        pair,
        derived.FMA_PER_SHARED_LOAD,
        "Each word loaded from shared memory feeds {} multiply-adds",
    )


MEMORY_RULES: tuple[Rule, ...] = (
    _global_loads,
    _requests,
    _sectors,
    _coalescing,
    _global_width,
    _async,
    _by_tma,
    _shared_loads,
    _shared_wavefronts,
    _conflicts,
    _shared_width,
    _reuse,
)
