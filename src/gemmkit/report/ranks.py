"""A product over ranks as text: what travels, the strategies, and a picture of the one chosen."""

from __future__ import annotations

from gemmkit.distributed.planning import DistributedPlan
from gemmkit.distributed.predictions import Predicted
from gemmkit.distributed.timeline import Interval, Timeline
from gemmkit.record import Record
from gemmkit.units import microseconds_text

# Characters of a picture's time axis, and the most ranks that it shows.
_WIDTH = 64
_MOST_RANKS = 8

_LIMITERS = {
    "product": "the products",
    "link": "the link: products wait for what is sent",
    "launch": "the host, which starts products and copies",
}


def plan_text(plan: DistributedPlan, timeline: Timeline | None) -> str:
    """A plan as `gemmkit which --ranks` prints it."""
    best = plan.chosen
    rows = {
        "problem": f"{plan.shape} on {_ranks(plan)} {plan.gpu}, {plan.dtype}",
        "placed": f"A {plan.a}, B {plan.b} → C {plan.result}",
        "travels": _travels(plan, best),
    }
    if plan.first:
        rows["before"] = f"{', '.join(plan.first)}, by collective operations, not in the times"
    rows |= {
        "strategy": best.strategy,
        "time": f"{microseconds_text(best.total_us)}, predicted; "
        f"{best.total_us / plan.alone_us:.2f} × the product alone"
        if plan.alone_us
        else microseconds_text(best.total_us),
        "overlap": f"{100 * best.hidden:.0f} % of {microseconds_text(best.transfer_us)} of "
        "transfers run under products",
        "limiter": _LIMITERS[best.limiter],
    }
    if not best.transfer_us:
        del rows["overlap"]
    else:
        rows["links"] = plan.link
    lines = [f"{name:9} {text}" for name, text in rows.items()]
    if len(plan.strategies) > 1:
        lines += ["", "strategies", *map(_line, plan.strategies)]
    if timeline is not None and timeline.intervals:
        lines += ["", *picture(timeline, plan.ranks)]
    return "\n".join(lines) + "\n"


def _ranks(plan: DistributedPlan) -> str:
    return f"{plan.ranks} ×" if len(plan.mesh) == 1 else f"a mesh of {plan.ranks_text}"


def measured_text(record: Record) -> str:
    """A record of a product over ranks as `gemmkit bench --ranks` prints it."""
    ranks, placed = record.config["ranks"], record.environment["placements"]
    lines = [f"{record.problem.shape}, {record.problem.types}, {placed}, {ranks} ranks"]
    times = {record.choice: record.time_us, **{each.name: each.time_us for each in record.peers}}
    for name, error in record.environment["error_ratios"].items():
        time_us = times.get(name)
        taken = "not timed" if time_us is None else microseconds_text(time_us.median)
        verdict = "correct" if error <= 1 else "WRONG"
        lines.append(f"{taken:>15}  {name:16} {verdict}, largest error {error:.2g} of its bound")
    if record.time_us is None:
        lines.append("no GPU for each rank: computed by the emulator over gloo")
    return "\n".join(lines) + "\n"


def _travels(plan: DistributedPlan, best: Predicted) -> str:
    if not best.sent_bytes:
        return "nothing"
    return f"{plan.travels}: each rank sends {_sent(best.sent_bytes)} ({plan.form})"


def _sent(nbytes: float) -> str:
    """Bytes in the units of links' bandwidths."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:,.1f} kB"


def _line(each: Predicted) -> str:
    return (
        f"{microseconds_text(each.total_us):>15}  {each.strategy:13} products "
        f"{microseconds_text(each.product_us)}, transfers {microseconds_text(each.transfer_us)}, "
        f"{100 * each.hidden:.0f} % hidden; limited by the {each.limiter}"
    )


def picture(timeline: Timeline, ranks: int) -> list[str]:
    """Lines of text: for each rank a lane of products, marked by whose lines they multiply, and one
    of transfers, marked by whom they go to."""
    per_mark = max(timeline.total, 1e-9) / _WIDTH
    lines = [
        f"timeline  one mark is {microseconds_text(per_mark)}; products by the rank that they are "
        "from, transfers by the rank they go to"
    ]
    for rank in range(min(ranks, _MOST_RANKS)):
        own = [each for each in timeline.intervals if each.rank == rank]
        products = [each for each in own if each.lane == "product"]
        sends = [each for each in own if each.lane == "send"]
        lines += [
            f"rank {rank}  product |{_lane(products, per_mark, 'owner')}|",
            f"        sends   |{_lane(sends, per_mark, 'peer')}|",
        ]
    if ranks > _MOST_RANKS:
        lines.append(f"        … {ranks - _MOST_RANKS} more ranks")
    return lines


def _lane(intervals: list[Interval], per_mark: float, marked: str) -> str:
    marks = ["·"] * _WIDTH
    for each in intervals:
        first = min(int(each.start / per_mark), _WIDTH - 1)
        last = min(max(int(each.stop / per_mark), first + 1), _WIDTH)
        marks[first:last] = str(getattr(each, marked) % 10) * (last - first)
        # Where one ends and the next of the same rank begins.
        if marks[first - 1] == marks[first] and first:
            marks[first] = "|"
    return "".join(marks)
