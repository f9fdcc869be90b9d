"""No sentence of a comparison is false: real rungs, both ways round, and random figures."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmkit.analysis.explain import derived, explain_facts
from gemmkit.analysis.explain.derived import figures
from gemmkit.analysis.explain.explanation import Sentence
from gemmkit.analysis.explain.pair import Pair
from gemmkit.analysis.explain.reasons import compare
from gemmkit.analysis.explain.residency import SYNCHRONIZING
from gemmkit.analysis.explain.wording import EQUAL, number
from gemmkit.analysis.loads import GLOBAL_REQUESTS, GLOBAL_SECTORS

_RATIO = r"([\d,.]+) times (fewer|as many) .*: ([\d,.e+]+) vs\. ([\d,.e+]+) in "
MIRRORED = {"this": "other", "other": "this", "neither": "neither"}


def hold(sentence: Sentence, names: tuple[str, str]) -> None:
    """Check what a sentence says against its own evidence."""
    text, first = sentence.text, sentence.evidence[0]
    this, other = first.this, first.other
    assert other is not None
    apart = [max(e.this, e.other) > EQUAL * min(e.this, e.other) for e in sentence.evidence]
    assert any(apart) or sentence.favors == "neither"
    if re.search(r"\bfewer\b", text) and "results in flight" not in text:
        assert this < other, text
    if re.search(r"times as many|% more", text) and "results in flight" not in text:
        assert this > other, text
    if found := re.search(_RATIO, text):
        assert float(found[1].replace(",", "")) == pytest.approx(
            max(this, other) / min(this, other), rel=6e-3
        )
        assert (found[3], found[4]) == (number(this), number(other))
    if "occupancy is higher" in text:
        assert this > other
    if "occupancy is lower" in text:
        assert this < other
    flight = {each.metric: each for each in sentence.evidence}.get(derived.RESULTS_IN_FLIGHT)
    if flight is not None:
        more = flight.this > flight.other * EQUAL
        fewer = flight.this * EQUAL < flight.other
        assert ("equally many results in flight, " in text) or more or fewer
        assert sentence.favors == ("this" if more else "other" if fewer else "neither")
    if "times as fast as" in text:
        assert this > other
    if "slower than" in text:
        assert this < other
    assert names[0] not in text.replace(names[1], "") or "In the model" in text


def test_neighbouring_rungs_both_ways(gathered):
    for one, two in itertools.pairwise(gathered.values()):
        there, back = explain_facts(one, two), explain_facts(two, one)
        for explained in (there, back):
            assert explained.comparison
            for sentence in explained.comparison:
                hold(sentence, (explained.kernel, explained.against.kernel))
        said = {(e.evidence[0].metric, e.evidence[0].operand, e.favors) for e in there.comparison}
        heard = {
            (e.evidence[0].metric, e.evidence[0].operand, MIRRORED[e.favors])
            for e in back.comparison
        }
        assert said == heard


def test_a_kernel_against_itself_has_no_reasons(gathered):
    naive = gathered["naive"]
    (verdict, limiter) = explain_facts(naive, naive).comparison
    assert "as fast as naive" in verdict.text
    assert (verdict.favors, limiter.favors) == ("neither", "neither")


def test_lower_occupancy_yet_faster(strides):
    explained = explain_facts(strides[8], strides[1])
    assert explained.kernel == "coarsening_1d:TM=8"
    assert explained.against.kernel == "coarsening_1d:TM=1"
    verdict = explained.comparison[0]
    assert verdict.favors == "this"
    assert verdict.text.startswith("It is predicted to be ")
    (volkov,) = (each for each in explained.comparison if "occupancy" in each.text)
    assert volkov.favors == "this"
    assert volkov.text == (
        "Its theoretical occupancy is lower, 33.33 % vs. 100 % in coarsening_1d:TM=1, yet each "
        "thread computes 8 independent results instead of 1, so an SM can have 2.67 times as "
        "many results in flight, 4,096 vs. 1,536."
    )
    back = explain_facts(strides[1], strides[8])
    (volkov,) = (each for each in back.comparison if "occupancy" in each.text)
    assert volkov.favors == "other"
    assert "is higher, 100 % vs. 33.33 %" in volkov.text
    assert "1 independent result instead of 8" in volkov.text


def test_bank_conflicts_are_told(gathered):
    explained = explain_facts(gathered["conflict_free"], gathered["vectorized"])
    (told,) = (each for each in explained.comparison if "Bank conflicts" in each.text)
    assert told.text.startswith("Bank conflicts account for none of the wavefronts of its shared")
    assert told.favors == "this"


_METRICS = (
    *GLOBAL_REQUESTS,
    *GLOBAL_SECTORS,
    *derived.SHARED_WAVEFRONTS,
    *derived.SHARED_CONFLICTS,
    SYNCHRONIZING,
    "launch__grid_size",
    *(each.name for each in derived.DERIVED if not each.name.startswith("gemmkit__predicted_t")),
)
_VALUES = st.one_of(
    st.just(0.0), st.floats(1e-3, 1e9), st.integers(0, 2**40).map(float), st.just(8.0)
)
_FIGURES = st.fixed_dictionaries({}, optional=dict.fromkeys(_METRICS, _VALUES))


def test_random_figures_both_ways(gathered):
    naive, tiled = gathered["naive"], gathered["shared_tiling"]

    @settings(max_examples=100)
    @given(mine=_FIGURES, theirs=_FIGURES)
    def check(mine, theirs):
        there = compare(Pair(naive, tiled, mine, theirs))
        back = compare(Pair(tiled, naive, theirs, mine))
        for sentence in there:
            hold(sentence, ("naive", "shared_tiling"))
        for sentence in back:
            hold(sentence, ("shared_tiling", "naive"))
        assert _claims(there) == {
            (tuple((metric, other, this) for metric, this, other in told), MIRRORED[favors])
            for told, favors in _claims(back)
        }

    check()


def _claims(sentences):
    """Evidence over all operands, and whom it favors."""
    return {
        (tuple((each.metric, each.this, each.other) for each in said.evidence), said.favors)
        for said in sentences
        if not said.evidence[0].operand
    }


def test_evidence_is_what_the_metrics_say(gathered):
    one, two = gathered["vectorized"], gathered["conflict_free"]
    mine, theirs = figures(one), figures(two)
    for sentence in explain_facts(one, two).comparison:
        for each in sentence.evidence:
            if not each.operand:
                assert (each.this, each.other) == (mine[each.metric], theirs[each.metric])
