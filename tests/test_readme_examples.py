"""README.md is short, its examples print what it says, and its figures are those of the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmkit.report.comparison import geometric_mean, ratios
from gemmkit.report.readme import read_records

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = re.findall(r"^```console\n(.*?)^```$", README, re.S | re.M)
# A command, and its output, in which lines of "…" stand for any number of lines.
COMMANDS = [
    each for block in CONSOLE for each in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
]
PYTHON = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.S | re.M)


def test_it_is_short_and_set_up_comes_first():
    assert len(README.split()) < 1200
    commands = re.findall(r"^(?: {4}|\$ )(python3|pip|gemmkit) ?(.*?)(?:  .*)?$", README, re.M)
    assert commands[:2] == [("python3", "run.py ladder"), ("python3", "run.py test")]


def test_every_block_is_run():
    assert len(CONSOLE) + 2 * len(PYTHON) == README.count("```") // 2
    assert len(CONSOLE) >= 3
    assert len(PYTHON) >= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the README's commands run one after another."""
    made = tmp_path_factory.mktemp("readme")
    (made / "examples").symlink_to(ROOT / "examples")
    (made / "gemmkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gemmkit "$@"\n', "utf-8")
    (made / "gemmkit").chmod(0o755)
    return made


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_a_command_prints_what_stands_below_it(folder, number):
    # A command may read what an earlier one of its block wrote.
    before = COMMANDS[:number] if not COMMANDS[number - 1][1] else []
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "100"}
    for command, _ in before:
        subprocess.run(command, shell=True, cwd=folder, env=environment, check=True)
    command, told = COMMANDS[number]
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ["(?:.*\n)*?" if line == "…" else f"{re.escape(line)}\n" for line in told.splitlines()]
    assert re.fullmatch("".join(lines), done.stdout), f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(("code", "told"), PYTHON)
def test_python_prints_what_stands_below_it(capsys, code, told):
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == told


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        (
            "h100-bench.json",
            r"[Pp]roducts are (?P<mean>[\d.]+) times .* geometric mean of (?P<count>\d+) problems, "
            r"and at least (?P<least>[\d.]+) times",
        ),
        (
            "h100-layouts.json",
            r"transposed operands, (?P<mean>[\d.]+) times at (?P<count>\d+) problems, "
            r"and at least (?P<least>[\d.]+) times",
        ),
    ],
)
def test_the_ratio_to_cublas_is_that_of_the_results(name, claim):
    found = ratios(read_records(RESULTS / name))
    facts = {"mean": geometric_mean(found), "count": len(found), "least": min(found)}
    told = re.search(claim, README).groupdict()
    assert {key: float(value) for key, value in told.items()} == {
        key: round(facts[key], 2) for key in told
    }


def test_the_ratios_of_fp64_are_those_of_the_results():
    found = ratios(read_records(RESULTS / "h100-double.json"))
    told = (
        f"{geometric_mean(found):.2f} of the speed of cuBLAS's fastest algorithm in the geometric "
        f"mean of {len(found)} squares, and {min(found):.2f} at least"
    )
    assert told in README, told


def test_the_error_of_predictions_is_that_of_the_table():
    page = (ROOT / "docs" / "predicted-speed.md").read_text("utf-8")
    table = page.partition("<!-- accuracy:")[2].partition("<!-- end")[0]
    rows = dict(re.findall(r"^\| ([\w ,]+?) \| \d+ \| ([\d.]+) % ", table, re.M))
    every = float(rows["all"])
    rungs = [float(error) for name, error in rows.items() if not name.startswith("all")]
    assert len(rungs) > 10
    told = r"predicted times are \[(\d+) % off in the median\].*?, and (\d+) % for the worst rung"
    assert re.search(told, README).groups() == (f"{every:.0f}", f"{max(rungs):.0f}")


def test_the_page_of_results_states_the_figures_of_fp32():
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    told = re.search(
        r"(?P<mean>[\d.]+) times .* of (?P<count>\d+) problems, and at least (?P<least>[\d.]+) t",
        README,
    )
    assert f"\n| all | {told['count']} | {told['mean']} | {told['least']} |" in page
    page = (ROOT / "docs" / "benchmark.md").read_text("utf-8")
    told = re.search(
        r"transposed operands, (?P<mean>[\d.]+) times at (?P<count>\d+) problems", README
    )
    assert f"geometric mean: fp32, {told['mean']} at {told['count']} problems" in page
