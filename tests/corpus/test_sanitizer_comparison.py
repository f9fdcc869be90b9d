"""`benchmarks/compare_sanitizer.py` reads what compute-sanitizer prints; its page is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from planted import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void naive<(int)16>(int)+0xc00 in naive.cu:23
=========     by thread (1,0,0) in block (1,1,0)
=========     Access to 0x7ff716a00154 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7ff716a00000 of size 340 bytes
=========
========= Invalid __shared__ write of size 16 bytes
=========     at void naive<(int)16>(int)+0xc10 in naive.cu:24
=========     Access to 0x84 is misaligned
=========
========= ERROR SUMMARY: 12 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void f(int)+0x460 in f.cu:38
=========     and Read access at void f(int)+0x470 in f.cu:42 [64 hazards]
=========     and Write access at void f(int)+0x490 in f.cu:38 [64 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
OTHERS = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void f(int)+0x460 in f.cu:38
=========
========= Barrier error detected. Divergent thread(s) in warp.
=========     at void f(int)+0x460 in f.cu:38
=========
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n{}\n========= ERROR SUMMARY: 0 errors\n"


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        # The scripts put the corpus on the path themselves; undone with the rest.
        patch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        import compare_sanitizer
        import sanitizer_page

        yield compare_sanitizer, sanitizer_page


@pytest.mark.parametrize(
    ("printed", "kinds", "errors"),
    [
        (MEMCHECK, ["misaligned __shared__ write", "out of bounds __global__ read"], 12),
        (RACECHECK, ["race: Write and Read", "race: Write and Write"], 2),
        (OTHERS, ["barrier: Divergent thread(s) in warp", "uninitialized __global__ read"], 2),
        (CLEAN, [], 0),
        ("========= COMPUTE-SANITIZER\n", [], None),
    ],
)
def test_what_the_tools_print(scripts, printed, kinds, errors):
    script, _ = scripts
    assert script.kinds(printed) == kinds
    assert script.errors({"printed": printed, "end": ""}) == errors


def test_options_that_the_tool_does_not_know_are_left_out(scripts):
    script, _ = scripts
    assert script.options("memcheck", "--print-limit arg --padding arg") == [
        "--tool", "memcheck", "--print-limit", "1000", "--padding", "4096",
    ]  # fmt: skip


def test_the_committed_comparison_is_of_this_corpus_and_misses_nothing():
    (path,) = (ROOT / "benchmarks" / "results").glob("*-sanitizer.json")
    rows = json.loads(path.read_text("utf-8"))["targets"]
    planted = {each["target"]: each for each in rows if "expects" in each}
    compared = {name.partition(":")[0] for name in planted}
    # The rungs for tensor cores are not among them.
    assert {name: (each["old"], each["new"]) for name, each in planted.items()} == {
        f"{each.kernel}: {each.name}": (each.old, each.new)
        for each in MUTATIONS
        if each.kernel in compared
    }
    assert all(set(each["expects"]) <= set(each["gemmkit"]) for each in planted.values())
    assert all(each["gemmkit"] == [] for each in rows if "expects" not in each)


def test_page_is_up_to_date(scripts):
    _, page = scripts
    text = page.PAGE.read_text("utf-8")
    assert page.rendered(text, ROOT / "benchmarks" / "results") == text


def test_results_of_targets_that_did_not_run_this_time_are_kept(scripts):
    script, _ = scripts
    run = {"printed": CLEAN.format(""), "end": "", "timed_out": False}
    ran = {"printed": '{"correct": true}', "timed_out": False}
    raw = {
        "version": "1",
        "environment": {"driver": "2"},
        "runs": {"new": {**dict.fromkeys(script.TOOLS, run), "plain": ran}},
    }
    old = {"target": "old", "gpu_result": "wrong", "compute_sanitizer": {"memcheck": {"errors": 3}}}
    results = {"version": "1", "environment": {"driver": "2"}, "targets": [old]}
    found = script.joined(raw, results)
    assert script.on_gpu(found, "new")["gpu_result"] == "right"
    assert script.on_gpu(found, "old")["compute_sanitizer"] == old["compute_sanitizer"]
    assert script.on_gpu(found, "planted since") == script.NOT_RUN
    with pytest.raises(SystemExit, match="another version"):
        script.joined(raw, {**results, "version": "2"})
