"""The order of remarks on one kernel, their marks, and the source lines that they are about."""

from __future__ import annotations

import pytest

from gemmkit.analysis.explain import Sentence, explain, explain_facts
from gemmkit.analysis.explain.weights import (
    GLOBAL_TERMS,
    SHARED_TERMS,
    places,
    ranked,
    waves_weight,
)
from gemmkit.analysis.model import predict
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

LIMITED = "It is predicted to take"


def said(gathered, name):
    return explain_facts(gathered[name]).sentences


def line_of(gathered, name, text):
    """The places of the lines of a rung's file that contain a text."""
    lines = gathered[name].kernel.source.splitlines()
    return [f"{name}.cu:{at}" for at, line in enumerate(lines, 1) if text in line]


def test_what_costs_most_comes_first_and_good_news_last():
    first, second, neutral, good = (
        Sentence(text=text, evidence=(), mark=mark, weight=weight)
        for text, mark, weight in (
            ("a", "bad", 0.5),
            ("b", "bad", 0.1),
            ("c", "neither", 0.0),
            ("d", "good", 0.0),
        )
    )
    assert ranked([good, neutral, second, first]) == (first, second, neutral, good)


def test_a_kernels_limiter_leads_then_its_issues_by_weight(gathered):
    sentences = said(gathered, "naive_uncoalesced")
    assert sentences[0].text.startswith(LIMITED)
    assert sentences[1].text.startswith("Loads of A are not coalesced: 32 sectors per request")
    marks = [each.mark for each in sentences[1:]]
    assert marks == sorted(marks, key=["bad", "neither", "good"].index)
    weights = [each.weight for each in sentences]
    assert weights == sorted(weights, reverse=True)
    assert all(0 <= each <= 1 for each in weights)
    # Stores happen once per result, loads once per multiply-add.
    loads, stores = (
        next(each for each in sentences if each.text.startswith(text))
        for text in ("Loads of A", "Stores to C")
    )
    assert loads.weight > 50 * stores.weight > 0
    assert sentences[-1].text.startswith("Loads of B are coalesced")


def test_a_nearly_empty_grid_is_an_issue():
    found = explain("vectorized", 128, gpu="rtx3090").sentences
    grid = next(each for each in found if "block slots are empty" in each.text)
    assert grid == found[1]
    assert grid.mark == "bad"
    assert grid.weight > 0.9


@pytest.mark.parametrize(("waves", "empty"), [(0.25, 0.75), (1, 0), (3.5, 0.125), (0, 0)])
def test_empty_slots_count_over_all_waves(waves, empty):
    assert waves_weight(waves) == pytest.approx(empty)


def test_remarks_on_accesses_name_the_lines_that_make_them(gathered):
    sentences = said(gathered, "naive_uncoalesced")
    found = {each.text.partition(" are")[0]: each.places for each in sentences}
    (load,) = line_of(gathered, "naive_uncoalesced", "element(A")
    (store,) = line_of(gathered, "naive_uncoalesced", "*c = ")
    assert found["Loads of A"] == found["Loads of B"] == (load,)
    assert found["Stores to C"] == (store,)


def test_bank_conflicts_name_the_lines_that_have_them(gathered):
    explained = explain_facts(gathered["vectorized"])
    conflicts = {f"{e.file}:{e.line}": e.bank_conflicts for e in explained.source}
    told = [each for each in explained.sentences if "bank conflicts:" in each.text]
    assert told
    for each in told:
        assert each.mark == "bad"
        assert each.places
        assert all(conflicts[place] > 0 for place in each.places)
    (free,) = (each for each in explained.sentences if "no bank conflicts" in each.text)
    assert free.mark == "good"


def test_every_place_is_a_line_with_counters(gathered):
    for facts in gathered.values():
        explained = explain_facts(facts)
        known = {f"{each.file}:{each.line}" for each in explained.source}
        assert {place for each in explained.sentences for place in each.places} <= known


def test_the_terms_are_those_of_the_model(gathered):
    names = {each.name for each in gathered["naive"].prediction.terms}
    assert {*GLOBAL_TERMS, *SHARED_TERMS} <= names


def test_lines_far_below_the_most_are_left_out(gathered):
    rows = gathered["naive_uncoalesced"].lines
    (load,) = line_of(gathered, "naive_uncoalesced", "element(A")
    assert places(rows, lambda each: each.requests) == (load,)
    assert places(rows, lambda _: 0) == ()
    # The first cost that any line has decides.
    (store,) = line_of(gathered, "naive_uncoalesced", "*c = ")
    assert places(rows, lambda _: 0, lambda each: each.kind == "store") == (store,)


@pytest.mark.parametrize(("size", "several"), [(64, False), (4096, True)])
def test_only_a_grid_of_several_waves_takes_its_latency_wave_after_wave(size, several):
    kernel = find_kernel("conflict_free")
    terms = predict(kernel, GemmProblem(size, size, size), find_board("rtx3090")).terms
    (latency,) = (each for each in terms if each.name == "latency")
    assert latency.meaning.endswith("wave after wave") == several


@pytest.mark.parametrize(
    ("names", "which"),
    [(("naive", "naive_uncoalesced"), "other"), (("naive_uncoalesced", "naive"), "this")],
)
def test_a_comparison_names_lines_of_the_kernel_that_is_worse(gathered, names, which):
    compared = explain_facts(*(gathered[name] for name in names)).comparison
    (load,) = (each for each in compared if each.text.startswith("A request to load A"))
    assert load.places == tuple(line_of(gathered, "naive_uncoalesced", "element(A"))
    assert load.places_of == which
