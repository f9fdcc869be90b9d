"""Reasons from occupancy, independent work, waves and executed instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.explanation import Favors, Sentence
from gemmkit.analysis.explain.pair import Pair, Reason, Rule, fewer_is_better
from gemmkit.analysis.explain.wording import compared, differ, number, percent

SYNCHRONIZING = "ptx__inst_executed_op_synchronize.sum"
_SMALL_PART = 0.02


def _instructions(pair: Pair) -> Iterator[Reason]:
    yield from fewer_is_better(
        pair,
        derived.INSTRUCTIONS_PER_FMA,
        "It executes {} PTX instructions per multiply-add",
    )


def _synchronizing(pair: Pair) -> Iterator[Reason]:
    copies = pair.both(derived.ASYNC_SHARE)
    what = "barriers and cp.async commits and waits" if copies and any(copies) else "barriers"
    for strength, sentence in fewer_is_better(
        pair, SYNCHRONIZING, f"Its warps execute {{}} {what}"
    ):
        # Rare beside other instructions: an H100 showed 0.3 to 1.8 % of the time for one every 8 k.
        yield strength * _SMALL_PART, sentence


def _spills(pair: Pair) -> Iterator[Reason]:
    values = pair.both(derived.SPILLS)
    if values is None or not differ(*values):
        return
    spilling = values[0] > values[1]
    name, rest = ("It", pair.names[1]) if spilling else (pair.names[1], "this kernel")
    least = f"{number(min(values))} bytes" if min(values) else "nothing"
    yield (
        0.5,
        Sentence(
            text=f"{name} spills {number(max(values))} bytes per thread to local memory; {rest} "
            f"spills {least}.",
            evidence=pair.evidence(derived.SPILLS),
            favors="other" if spilling else "this",
        ),
    )


def _occupancy(pair: Pair) -> Iterator[Reason]:
    """Occupancy and independent work (Volkov): what matters is the work in flight on an SM."""
    occupancy, work = pair.both(derived.OCCUPANCY), pair.both(derived.RESULTS_PER_THREAD)
    flight = pair.both(derived.RESULTS_IN_FLIGHT)
    if occupancy is None or work is None or flight is None or not all((*occupancy, *work, *flight)):
        return
    levels = f"{percent(occupancy[0])} vs. {percent(occupancy[1])} in {pair.names[1]}"
    same_warps, same_work = not differ(*occupancy), not differ(*work)
    if same_warps and same_work:
        return
    if same_work:
        head = f"Its theoretical occupancy is {_higher(*occupancy)}: {levels}"
    else:
        results = f"{number(work[0])} independent result{'' if work[0] == 1 else 's'}"
        each = f"each thread computes {results} instead of {number(work[1])}"
        opposed = not same_warps and (occupancy[0] < occupancy[1]) == (work[0] > work[1])
        level = (
            "Its theoretical occupancy is the same"
            if same_warps
            else f"Its theoretical occupancy is {_higher(*occupancy)}, {levels}"
        )
        head = f"{level}, {'yet' if opposed else 'and'} {each}"
    favors: Favors = "neither"
    if not differ(*flight):
        tail = f", so an SM can have equally many results in flight, {number(flight[0])}"
    else:
        tail = (
            f", so an SM can have {compared(*flight)} results in flight, "
            f"{number(flight[0])} vs. {number(flight[1])}"
        )
        favors = "this" if flight[0] > flight[1] else "other"
    yield (
        abs(math.log(flight[0] / flight[1])),
        Sentence(
            text=head + tail + ".",
            evidence=pair.evidence(
                derived.OCCUPANCY, derived.RESULTS_PER_THREAD, derived.RESULTS_IN_FLIGHT
            ),
            favors=favors,
        ),
    )


def _higher(this: float, other: float) -> str:
    return "higher" if this > other else "lower"


def _busy(pair: Pair) -> Iterator[Reason]:
    """SMs without a block, in a grid smaller than the board or in its last wave."""
    busy, blocks = pair.both(derived.BUSY), pair.both("launch__grid_size")
    if busy is None or blocks is None or not all(busy) or not differ(*busy):
        return
    yield (
        abs(math.log(busy[0] / busy[1])),
        Sentence(
            text=f"Its {_blocks(blocks[0])} keep the SMs busy {percent(busy[0])} of the time; the "
            f"{_blocks(blocks[1])} of {pair.names[1]}, {percent(busy[1])}.",
            evidence=pair.evidence(derived.BUSY, "launch__grid_size", derived.WAVES),
            favors="this" if busy[0] > busy[1] else "other",
        ),
    )


def _blocks(count: float) -> str:
    return f"{count:,.0f} blocks" if count != 1 else "1 block"


RESIDENCY_RULES: tuple[Rule, ...] = (_instructions, _synchronizing, _spills, _occupancy, _busy)
