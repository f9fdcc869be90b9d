"""The course: exercises fail as given, solutions are done, and a goal needs its rung's idea."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gemmkit.cli import gemmkit

LADDER = Path(__file__).parent.parent / "docs" / "ladder"
EXERCISES, SOLUTIONS = LADDER / "exercises", LADDER / "solutions"
NAMES = sorted(path.stem for path in EXERCISES.glob("*.cu"))
BEFORE = dict(zip(NAMES[1:], NAMES, strict=False))
# More than a block in two directions, with edges, in sizes that vectors of four allow.
EDGES = ("--shape", "33x36x44,129x132x12")

options_of = runpy.run_path(str(EXERCISES / "grade.py"))["command"]


def options(name: str) -> tuple[list[str], list[str]]:
    """The launch and the limits in the head of an exercise, as words of a command."""
    words = options_of(EXERCISES / f"{name}.cu")
    first = words.index("--limit")
    return words[:first], words[first:]


def check(file: Path, *words: str) -> Result:
    result = CliRunner().invoke(gemmkit, ["check", str(file), *words])
    assert result.exit_code in (0, 1), result.output
    return result


def test_rungs_1_to_10_have_an_exercise_and_each_has_a_solution():
    assert sorted({name[:2] for name in NAMES}) == [f"{rung:02}" for rung in range(1, 11)]
    assert [path.stem for path in sorted(SOLUTIONS.glob("*.cu"))] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_as_given_computes_a_wrong_result(name):
    launch, limits = options(name)
    source = (EXERCISES / f"{name}.cu").read_text("utf-8")
    assert "// TODO" in source
    result = check(EXERCISES / f"{name}.cu", *launch, *limits, "--shape", "132x132x12")
    assert result.exit_code == 1
    assert re.search(r"^2 problems: (2 wrong|.*wrong and with findings)", result.stdout, re.M)


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_right_and_meets_its_goals(name):
    launch, limits = options(name)
    # Sums in local memory would make a mockery of them.
    spills = ("--limit", "local_bytes == 0")
    result = check(SOLUTIONS / f"{name}.cu", *launch, *limits, *spills, *EDGES)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.endswith("3 problems: 3 ok; no findings\n")
    assert len(re.findall(r" met$", result.stdout, re.M)) == len(limits) // 2 + 1


@pytest.mark.slow  # test_a_solution_is_right_and_meets_its_goals runs two of the edge cases.
@pytest.mark.parametrize("name", NAMES)
def test_the_command_in_the_head_accepts_the_solution(name):
    launch, limits = options(name)
    result = check(SOLUTIONS / f"{name}.cu", *launch, *limits)
    assert result.exit_code == 0, result.stdout


@pytest.mark.parametrize("name", BEFORE)
def test_the_solution_of_the_exercise_before_is_right_but_misses_a_goal(name):
    launch, _ = options(BEFORE[name])
    _, limits = options(name)
    result = check(SOLUTIONS / f"{BEFORE[name]}.cu", *launch, *limits, "--shape", "4x4x4")
    assert result.exit_code == 1
    assert result.stdout.endswith("2 problems: 1 ok, 1 with a limit missed; no findings\n")


def test_a_kernel_that_sums_up_in_c_is_right_but_misses_the_first_goal(tmp_path):
    launch, limits = options("01-one-thread-per-result")
    source = (SOLUTIONS / "01-one-thread-per-result.cu").read_text("utf-8")
    start = source.index("  float sum")
    path = tmp_path / "in_c.cu"
    path.write_text(
        source[:start] + "C[row * N + col] = 0;\n"
        "  for (int k = 0; k < K; ++k) C[row * N + col] += A[row * K + k] * B[k * N + col];\n}\n"
    )
    result = check(path, *launch, *limits, "--shape", "33x34x35")
    assert result.stdout.endswith("2 problems: 1 ok, 1 with a limit missed; no findings\n")


# What pages say of the counters of solutions, and of changes that they suggest.
@pytest.mark.parametrize(
    ("name", "change", "launch", "limit"),
    [
        (
            "02-coalesced",
            ("32", "16"),
            ["--grid", "(N+15)/16,(M+15)/16", "--block", "16,16"],
            "sectors_per_request == 2",
        ),
        ("03-shared-tiles", None, None, "gemmkit__results_in_flight_per_sm == 1024"),
        ("04-column-per-thread", None, None, "gemmkit__results_in_flight_per_sm == 10240"),
        ("05-tile-per-thread", None, None, "sectors_per_store_request == 32"),
        ("06-vector-loads", None, None, "store_sectors == 2*M*N*4/32"),
        (
            "09-warp-tiles",
            ("lane % 2 + lane / 16 * 2, lane_col = lane % 16 / 2", "lane / 8, lane_col = lane % 8"),
            None,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum == 1.5*M*N*K/256",
        ),
    ],
)
def test_answers_to_questions_of_the_pages(name, change, launch, limit, tmp_path):
    source = (SOLUTIONS / f"{name}.cu").read_text("utf-8")
    if change is not None:
        assert change[0] in source
    path = tmp_path / f"{name}.cu"
    path.write_text(source.replace(*change) if change else source)
    words = (*(launch or options(name)[0]), "--shape", "36x36x8", "--limit", limit)
    result = check(
        path, *words, "--limit-at", "128x128x128" if "flight" not in limit else "1024x1024x8"
    )
    assert result.exit_code == 0, result.stdout


def test_a_wait_for_too_few_copies_is_a_race(tmp_path):
    source = (SOLUTIONS / "10-async-copies.cu").read_text("utf-8")
    path = tmp_path / "short.cu"
    path.write_text(source.replace("wait<STAGES - 2>();", "wait<STAGES - 1>();"))
    assert path.read_text() != source
    result = check(path, *options("10-async-copies")[0], "--shape", "36x36x24")
    assert "racecheck: read before wait" in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_rung_states_the_goals_of_its_exercise(name):
    head = (EXERCISES / f"{name}.cu").read_text("utf-8")
    page = re.search(r"The task is in (\S+\.md)\.\n", head)[1]
    text = (LADDER / page).read_text("utf-8").partition("\n## Exercise\n")[2]
    assert f"](exercises/{name}.cu)" in text
    assert f"](solutions/{name}.cu)" in text
    for limit in options(name)[1][1::2]:
        assert f"`{limit}`" in text
    assert text.count("<details") == text.count("</details>") >= 2


def test_the_readme_shows_what_the_command_prints():
    text = (LADDER / "README.md").read_text("utf-8")
    shown = re.search(r"   ```text\n(.*?)   ```", text, re.S)[1]
    launch, _ = options("01-one-thread-per-result")
    _, limits = options("02-coalesced")
    result = check(SOLUTIONS / "01-one-thread-per-result.cu", *launch, *limits)
    lines = [line.strip() for line in shown.splitlines()]
    printed = [line.strip() for line in result.stdout.splitlines()]
    assert printed[-len(lines) :] == lines
    assert "21 problems: 20 ok, 1 with a limit missed; no findings" in lines


def test_a_class_is_graded_by_one_command(tmp_path):
    class_ = tmp_path / "class"
    for student in ("ada", "bob"):
        (class_ / student / "work").mkdir(parents=True)
    first, second = NAMES[:2]
    (class_ / "ada" / "work" / f"{first}.cu").write_text((SOLUTIONS / f"{first}.cu").read_text())
    # The limits in a student's own file do not count.
    cheat = (
        SOLUTIONS / f"{first}.cu"
    ).read_text() + "//   gemmkit check 02-coalesced.cu --grid M,N\n"
    (class_ / "ada" / f"{second}.cu").write_text(cheat)
    (class_ / "bob" / f"{first}.cu").write_text("int nothing;\n")
    words = [sys.executable, EXERCISES / "grade.py", class_, "--csv", tmp_path / "t.csv"]
    words += ["--reports", tmp_path / "reports"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, encoding="utf-8")
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()]
    assert [row[:3] + row[-1:] for row in rows] == [
        ["student", "01", "02", "done"],
        ["ada", "done", "not yet", "1"],
        ["bob", "not usable", "-", "0"],
    ]
    assert re.search(r"^ada +done +not yet +-", done.stdout, re.M)
    assert "has no __global__" in (tmp_path / "reports" / "bob" / f"{first}.txt").read_text("utf-8")
