"""Why a candidate was not chosen: what the cost model says that it loses, and against what."""

from __future__ import annotations

import math

from gemmkit.dispatch.prices import Ranked
from gemmkit.problem import GemmProblem
from gemmkit.units import microseconds_text

# An estimate that is longer by less is no reason to name one part of it.
LITTLE = 1.03
# A factor of the speed that is as good as the choice's but for so much is no reason.
NOTABLE = 0.98

# By the factors of `Shares`, in their order.
_FACTORS = (
    "{mine} of its tiles lie inside C, of the choice's {other}",
    "its blocks keep the SMs busy {mine} of the time, the choice's {other}",
    "a busy SM reaches {mine} of its peak with it, {other} with the choice",
)
# By the parts of an `Estimate`: the time of this candidate, and that of the choice.
_PARTS = {
    "tiles_us": "its tiles take {mine} before their first step and after their last, the choice's "
    "{other}",
    "sharing_us": "the fix-up of tiles that its blocks share takes {mine}, with the choice {other}",
    "before_us": "a launch before it copies operands, which takes {mine}, for the choice {other}",
}


def why_it_loses(loser: Ranked, winner: Ranked, problem: GemmProblem, *, entered: bool) -> str:
    """What costs a candidate most, compared with the one that was chosen.

    `entered` says that the choice was measured, here or for a shape nearby.
    """
    ours, theirs = loser.estimate, winner.estimate
    if entered and ours.microseconds <= theirs.microseconds:
        return "it is only estimated, and the choice has won where it was measured"
    if ours.microseconds <= theirs.microseconds and _needs_a_table(loser, winner):
        return "the host makes a table of products for it at each call, and none for the choice"
    if ours.microseconds == theirs.microseconds:
        return "its estimate is the same, and it comes later in the list of candidates"
    if math.isinf(ours.microseconds):
        return "an SM cannot hold one of its blocks"
    if ours.microseconds < LITTLE * theirs.microseconds:
        longer = 100 * max(ours.microseconds / theirs.microseconds - 1, 0.001)
        if entered:
            return (
                f"it differs little: its estimate is {longer:.1f} % longer than the choice's would "
                "be without measurements"
            )
        return f"it differs little: its estimate is {longer:.1f} % longer"
    names = ("steps_us", *_PARTS, "memory_us")
    excess = {name: getattr(ours, name) - getattr(theirs, name) for name in names}
    most = max(excess, key=excess.__getitem__)
    if ours.waits_for_memory and excess["memory_us"] > 0:
        # What its SMs take longer for goes on meanwhile.
        most = "memory_us"
    if most == "memory_us":
        return _slower_memory(loser, winner, problem)
    if most == "steps_us":
        return _slower_steps(loser, winner, problem)
    if most == "before_us" and not theirs.before_us:
        mine = microseconds_text(ours.before_us)
        return f"a launch before it copies operands, which takes {mine}; the choice needs none"
    mine, other = (microseconds_text(getattr(each, most)) for each in (ours, theirs))
    return _PARTS[most].format(mine=mine, other=other)


def _needs_a_table(loser: Ranked, winner: Ranked) -> bool:
    """Whether one reads a table of ragged groups, where the other reads where they end."""
    return winner.costed.kernel.takes_ragged and not loser.costed.kernel.takes_ragged


def _slower_memory(loser: Ranked, winner: Ranked, problem: GemmProblem) -> str:
    """Why the same bytes take it longer: how it stores or reads them, or what was measured of its
    launches over what the cost model says."""
    (reads, writes), (other_reads, other_writes) = (
        each.costed.bandwidth(each.estimate.work.demands) for each in (loser, winner)
    )
    launch, other_launch = (
        each.costed.correction_for(problem.dtype).launch for each in (loser, winner)
    )
    written = problem.written_bytes
    read = problem.minimal_bytes - written
    stores, choices_stores = _percents(writes, other_writes)
    loads, choices_loads = _percents(reads, other_reads)
    launches, choices_launches = _percents(launch, other_launch)
    ours, theirs = loser.estimate, winner.estimate
    # Bytes that memory would move in the time that is lost.
    uneven = max(ours.port_us - theirs.port_us, 0.0) * loser.costed.gpu.dram_gb_per_s * 1e3
    found = (
        (
            uneven,
            f"its {ours.work.ctas} blocks load the memory ports of SM groups less evenly: the "
            f"fullest has read its part after {microseconds_text(ours.port_us)}, with the "
            f"choice after {microseconds_text(theirs.port_us)}",
        ),
        (
            written / writes - written / other_writes,
            f"it stores C in parts of sectors, which reaches {stores} of the bandwidth, the "
            f"choice's stores {choices_stores}",
        ),
        (
            read / reads - read / other_reads,
            f"it reads lines of memory in parts, which reaches {loads} of the bandwidth, the "
            f"choice's loads {choices_loads}",
        ),
        (
            (launch - other_launch) * (read / other_reads + written / other_writes),
            f"its launches take {launches} of what the cost model says without measurements, the "
            f"choice's {choices_launches}",
        ),
    )
    _, text = max(found)
    return text


def _percents(*shares: float) -> list[str]:
    """Shares as percentages, with so many digits that those of different shares differ."""
    for digits in range(8):
        texts = [f"{100 * each:.{digits}f} %" for each in shares]
        if len(set(texts)) == len(set(shares)):
            break
    return texts


def _slower_steps(loser: Ranked, winner: Ranked, problem: GemmProblem) -> str:
    """Which factor of the arithmetic's speed is the worst, compared with the choice's."""
    shares = zip(
        _FACTORS,
        loser.costed.shares(problem, loser.estimate),
        winner.costed.shares(problem, winner.estimate),
        strict=True,
    )
    found = []
    for text, mine, other in shares:
        mine_text, other_text = _percents(mine, other)
        found.append((mine / other, text.format(mine=mine_text, other=other_text)))
    (mine, on), (other, choices) = _pipe(loser), _pipe(winner)
    found.append((mine / other, f"it multiplies on {on}, the choice on {choices}"))
    ratio, text = min(found)
    if ratio < NOTABLE:
        return text
    mine_us, other_us = loser.estimate.steps_us, winner.estimate.steps_us
    return (
        f"its steps along k take {microseconds_text(mine_us)}, the choice's "
        f"{microseconds_text(other_us)}"
    )


def _pipe(ranked: Ranked) -> tuple[float, str]:
    """The peak of the pipe that multiplies, in TFLOP/s, and its name with that."""
    pipe = ranked.estimate.work.demands.math
    peak = ranked.costed.gpu.peak(pipe)
    name = f"{pipe}s" if pipe.tensor else f"the {pipe} FMA pipe"
    figure = f"{peak:,.0f}" if peak >= 100 else f"{peak:.3g}"
    return peak, f"{name} (peak {figure} TFLOP/s{pipe.sums})"
