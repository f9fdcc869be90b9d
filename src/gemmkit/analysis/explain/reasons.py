"""Why one kernel is faster or slower than another, in sentences derived from metrics.

Each rule looks only at metrics, never at which kernels they belong to. It yields nothing if the two
do not differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.explanation import Evidence, Favors, Sentence
from gemmkit.analysis.explain.memory import MEMORY_RULES
from gemmkit.analysis.explain.pair import Pair
from gemmkit.analysis.explain.residency import RESIDENCY_RULES
from gemmkit.analysis.explain.wording import differ, number
from gemmkit.kernels.layouts import layout_text

# A saving is mentioned if it is at least this share of the slower kernel's time.
_WORTH_SAYING = 0.03


def compare(pair: Pair) -> tuple[Sentence, ...]:
    """The verdict, the advantages of the faster kernel, those of the other, and neutral remarks.

    Within each group the strongest reason comes first. Without a predicted speed, this kernel's
    advantages come first.
    """
    reasons = sorted(
        (reason for rule in (*MEMORY_RULES, *RESIDENCY_RULES) for reason in rule(pair)),
        key=lambda each: -each[0],
    )
    speeds = pair.both(derived.TFLOPS)
    faster: Favors = "other" if speeds is not None and speeds[0] < speeds[1] else "this"
    order = [faster, "this" if faster == "other" else "other", "neither"]
    ranked = sorted(reasons, key=lambda each: order.index(each[1].favors))
    return (*_layouts(pair), *_verdict(pair), *(sentence for _, sentence in ranked))


def _layouts(pair: Pair) -> Iterator[Sentence]:
    """What is compared where the kernels read the same product from different layouts."""
    this, other = (layout_text(each.problem.layout) for each in (pair.this, pair.other))
    if this != other:
        text = (
            f"The matrices are stored differently: {pair.names[0]} reads A and B as {this}, "
            f"{pair.names[1]} as {other}."
        )
        yield Sentence(text=text, evidence=(), favors="neither")


def _verdict(pair: Pair) -> Iterator[Sentence]:
    speeds = pair.both(derived.TFLOPS)
    if speeds is None:
        return
    this, other = speeds
    where = f"on {pair.this.gpu.name}: {number(this)} vs. {number(other)} TFLOP/s"
    name = pair.names[1]
    if not differ(this, other):
        text = f"It is predicted to be as fast as {name} {where}."
        favors: Favors = "neither"
    elif this > other:
        text, favors = (
            f"It is predicted to be {number(this / other)} times as fast as {name} {where}.",
            "this",
        )
    else:
        text = f"It is predicted to be {number(other / this)} times slower than {name} {where}."
        favors = "other"
    yield Sentence(text=text, evidence=pair.evidence(derived.TFLOPS), favors=favors)
    yield from _limiters(pair)


def _limiters(pair: Pair) -> Iterator[Sentence]:
    """What limits the slower kernel in the model, and where else it spends more time."""
    ours, theirs = pair.this.prediction, pair.other.prediction
    if ours is None or theirs is None:
        return
    slower_is_other = theirs.microseconds > ours.microseconds
    slower, faster = (theirs, ours) if slower_is_other else (ours, theirs)
    fast_name, slow_name = pair.names if slower_is_other else reversed(pair.names)
    took = {term.name: term.microseconds for term in slower.terms}
    takes = {term.name: term.microseconds for term in faster.terms}

    def sentence(text: str, name: str) -> Sentence:
        mine, others = (takes, took) if slower_is_other else (took, takes)
        evidence = Evidence(
            metric=derived.PREDICTED_TERM, operand=name, this=mine[name], other=others[name]
        )
        favors: Favors = "neither"
        if differ(took[name], takes[name]):
            favors = "this" if (mine[name] < others[name]) else "other"
        return Sentence(text=text, evidence=(evidence,), favors=favors)

    limit = slower.limiter
    if limit not in takes:
        return
    text = f"In the model, {slow_name} is limited by {limit}: {number(took[limit])} µs on its own, "
    text += f"vs. {number(takes[limit])} µs in {fast_name}"
    text += "." if faster.limiter == limit else f", which is limited by {faster.limiter}."
    yield sentence(text, limit)
    saved = {name: took[name] - takes[name] for name in took if name in takes and name != limit}
    name = max(saved, key=saved.__getitem__, default="")
    if name and saved[name] > _WORTH_SAYING * slower.microseconds:
        text = f"In the model, the time for {name} alone is {number(took[name])} µs in {slow_name} "
        yield sentence(f"{text}and {number(takes[name])} µs in {fast_name}.", name)
