"""The suites hold what the benchmark promises."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from gemmkit.bench import suites
from gemmkit.bench.layers import LAYERS
from gemmkit.bench.peers import LIBRARIES
from gemmkit.bench.run import problem_record
from gemmkit.bench.suites import LAYER_SUITES, SUITES, TOPICS, find_suite, variants
from gemmkit.bench.tasks import Task, left, suite_tasks
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.problem import GemmProblem


def sizes(name):
    return [(each.m, each.n, each.k) for each in find_suite(name)]


def test_each_suite_has_distinct_problems_and_a_topic():
    assert list(TOPICS) == [*SUITES, *LAYER_SUITES]
    for problems in map(find_suite, SUITES):
        assert len(set(problems)) == len(problems) > 1


def test_no_suite_is_built_before_it_is_asked_for(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a problem was made at import")

    monkeypatch.setattr(GemmProblem, "__post_init__", refused)
    fresh = runpy.run_path(suites.__file__)
    with pytest.raises(AssertionError, match="at import"):
        fresh["find_suite"]("grouped")


def test_promised_sizes():
    cubes = {m for m, n, k in sizes("square") if m == n == k}
    assert min(cubes) == 256
    assert {1536, 3072, 4096, 8192, 16384} <= cubes
    assert len(sizes("k1024")) == 15
    assert {(1536, 1536, 1024), (3072, 3072, 1024)} <= set(sizes("k1024"))
    assert [m for m, _, _ in sizes("off-tile")] == [1000, 1023, 1025, 2047, 2049, 3001, 4095, 4097]
    assert set(sizes("skinny")) == {(m, n, n) for m in (1, 2, 4, 8, 16) for n in (4096, 8192)}
    fused = {str(each.epilogue) for each in find_suite("fused")}
    assert {"bias+relu", "bias+gelu", "bias+silu", "bias+residual", "scale=0.5"} <= fused
    assert "bias+gelu_tanh+aux" in fused
    assert (1, 32000, 4096) in sizes("llm")
    batches = find_suite("batched")
    cubes = {each.m: each.batch for each in batches if each.m == each.n == each.k}
    assert cubes == {32: 4096, 64: 2048, 128: 1024, 256: 256, 512: 64}
    assert min(each.batch for each in batches) > 1
    kinds = {(each.dtype, each.layout) for each in find_suite("typed")}
    assert len(kinds) == 9
    assert ("bfloat16", "tn") in kinds


def test_suites_in_other_types_and_layouts():
    skinny = find_suite("skinny")
    found = variants(skinny, ["fp16", "bfloat16"], "float32", ["nt", "tn", "ttt"])
    assert len(found) == 6 * len(skinny)
    assert found[0] == GemmProblem(1, 4096, 4096, transb=True, dtype="float16", out_dtype="float32")
    assert variants(skinny) == list(skinny)
    assert {each.layout for each in variants(find_suite("typed"), ["float32"])} == {
        "nn",
        "nt",
        "tn",
    }
    # Where types are asked for, those of a suite of types are one problem.
    assert len(variants(find_suite("typed"), ["float32"], None, ["nn"])) == 7
    batched = variants(find_suite("batched"), ["float16"], None, ["nt"])
    assert all(each.batch > 1 and each.layout == "nt" for each in batched)
    fused = variants(find_suite("fused"), ["bfloat16"])
    assert {str(each.epilogue) for each in fused} == {
        str(each.epilogue) for each in find_suite("fused")
    }
    with pytest.raises(UnsupportedType, match="unknown dtype 'float8'"):
        variants(skinny, ["float8"])


def test_a_precision_is_of_the_problems_of_float32():
    found = variants(find_suite("skinny"), ["float32", "float16"], precision="tf32")
    assert {(each.dtype, each.precision) for each in found} == {
        ("float32", "tf32"),
        ("float16", "ieee"),
    }
    with pytest.raises(UsageError, match="precision 'tf32' is of products of float32"):
        variants(find_suite("skinny"), ["float16"], precision="tf32")


def test_what_was_measured_in_another_precision_is_left():
    problems = [GemmProblem(64, 64, 64, precision=each) for each in ("ieee", "tf32")]
    assert len({Task(each).key for each in problems}) == 2


def test_what_a_file_lacks_is_left(make_record):
    tasks = suite_tasks(["off-tile"], lambda problems: variants(problems, [], None, ["nn", "nt"]))
    assert len(tasks) == 16
    done = [
        make_record(suite="off-tile", problem=problem_record(each.problem)) for each in tasks[:3]
    ]
    other = make_record(suite="square", problem=problem_record(tasks[3].problem))
    assert left(tasks, [*done, other]) == tasks[3:]
    (first, *_), products = suite_tasks(["layers"], list), [Task(each.product) for each in LAYERS]
    assert first.layer is LAYERS[0]
    # A layer's record is not one of its product, nor the other way round.
    record = make_record(suite="layers", problem=problem_record(first.problem))
    assert first in left([first], [record])
    assert left([replace(products[0], suite="layers")], [record]) == []


def test_unknown_suites_are_told():
    with pytest.raises(UsageError, match="did you mean square"):
        find_suite("squares")
    with pytest.raises(UsageError, match="is a suite of layers: only `gemmkit bench` takes it"):
        find_suite("layers")


def test_the_page_lists_all_suites_and_peers():
    page = Path(__file__).resolve().parents[2] / "docs" / "benchmark.md"
    listed = re.findall(r"^\| `([^`]+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert listed == [*SUITES, *LAYER_SUITES, *LIBRARIES]
