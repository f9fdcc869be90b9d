"""The course: exercises fail as given, solutions are done, and a goal needs its rung's idea."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gemmkit.check_record import CheckRecord
from gemmkit.cli import gemmkit

LADDER = Path(__file__).parent.parent / "docs" / "ladder"
EXERCISES, SOLUTIONS = LADDER / "exercises", LADDER / "solutions"
NAMES = sorted(path.stem for path in EXERCISES.glob("*.cu"))
# From exercise 6 on, a block has 256 threads for a tile of 128x128.
SAME_LAUNCH = NAMES[NAMES.index("06-vector-loads") :]
BEFORE = dict(zip(NAMES[1:], NAMES[: -len(SAME_LAUNCH)], strict=False))
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
@pytest.mark.sample(6)
def test_an_exercise_as_given_computes_a_wrong_result(name):
    launch, limits = options(name)
    source = (EXERCISES / f"{name}.cu").read_text("utf-8")
    assert "// TODO" in source
    result = check(EXERCISES / f"{name}.cu", *launch, *limits, "--shape", "132x132x12")
    assert result.exit_code == 1
    assert re.search(r"^2 problems: (2 wrong|.*wrong and with findings)", result.stdout, re.M)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(6)
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
@pytest.mark.sample(2)
def test_the_solution_of_the_exercise_before_is_right_but_misses_a_goal(name):
    launch, _ = options(BEFORE[name])
    _, limits = options(name)
    result = check(SOLUTIONS / f"{BEFORE[name]}.cu", *launch, *limits, "--shape", "4x4x4")
    assert result.exit_code == 1
    assert result.stdout.endswith("2 problems: 1 ok, 1 with a limit missed; no findings\n")


def missed(path: Path, names: list[str]) -> list[str]:
    """Those of these exercises, all of one launch, of which a kernel that is right misses a goal.

    It is counted once for all of them, in an odd number of steps of 8.
    """
    launch, _ = options(names[0])
    limits = {name: options(name)[1][1::2] for name in names}
    words = [
        f"--limit={text}" for text in sorted({text for each in limits.values() for text in each})
    ]
    records = path.with_suffix(".jsonl")
    words += ["--limit-at", "256x256x248", "--shape", "4x4x4", "--json", str(records)]
    check(path, *launch, *words)
    small, counted = (
        msgspec.json.decode(line, type=CheckRecord) for line in records.read_bytes().splitlines()
    )
    assert small.verdict == "ok"
    assert counted.verdict in ("ok", "limit missed")
    met = {each.limit: each.met for each in counted.limits}
    return [name for name in names if not all(met[text] for text in limits[name])]


def variant(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A copy of a solution with each of these texts, which must occur, replaced."""
    source = (SOLUTIONS / f"{name}.cu").read_text("utf-8")
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = folder / f"{name}.cu"
    path.write_text(source, "utf-8")
    return path


@pytest.mark.parametrize("name", SAME_LAUNCH)
@pytest.mark.sample(3)
def test_a_solution_misses_a_goal_of_every_later_exercise(name, tmp_path):
    later = SAME_LAUNCH[SAME_LAUNCH.index(name) :]
    assert missed(variant(tmp_path, name), later) == later[1:]


@pytest.mark.parametrize(
    ("tile", "names"),
    [
        (32, ["03-shared-tiles"]),
        (32, ["04-column-per-thread"]),
        (64, ["05-tile-per-thread"]),
        (128, SAME_LAUNCH),
    ],
)
def test_a_kernel_without_shared_memory_misses_a_goal_of_exercises_3_to_10(tile, names, tmp_path):
    path = tmp_path / "direct.cu"
    path.write_text(
        """__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
          for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < T * T / 4;
               i += blockDim.x * blockDim.y) {
            int row = blockIdx.y * T + i / (T / 4), col = blockIdx.x * T + i % (T / 4) * 4;
            if (row >= M || col >= N) continue;
            float4 sum = {};
            for (int k = 0; k < K; ++k) {
              float a = A[row * K + k];
              float4 b = *reinterpret_cast<const float4*>(B + k * N + col);
              sum.x += a * b.x, sum.y += a * b.y, sum.z += a * b.z, sum.w += a * b.w;
            }
            *reinterpret_cast<float4*>(C + row * N + col) = sum;
          }
        }
        """.replace("T", str(tile))
    )
    assert missed(path, names) == names


def test_single_words_of_a_tile_that_is_not_transposed_miss_a_goal_of_exercise_6(tmp_path):
    path = variant(
        tmp_path,
        "06-vector-loads",
        ("As[BK][BM]", "As[BM][BK + 1]"),
        *((f"As[a_k + {i}][a_row]", f"As[a_row][a_k + {i}]") for i in range(4)),
        ("i += 4) vec4(a[i]) = vec4(As[k][thread_row + i])", "++i) a[i] = As[thread_row + i][k]"),
    )
    assert missed(path, ["06-vector-loads"]) == ["06-vector-loads"]


# Exercise 7 with one buffer and two barriers in each step of 16.
STEPS_OF_16 = (
    ("BK = 8", "BK = 16"),
    (
        "    float4 a4 = {}",
        "    for (int a_k = a_k8, b_k = b_k8; a_k < BK; a_k += 8, b_k += 8) {\n    float4 a4 = {}",
    ),
    ("a_k = threadIdx", "a_k8 = threadIdx"),
    ("b_k = threadIdx", "b_k8 = threadIdx"),
    ("= b4;\n", "= b4;\n    }\n"),
)


@pytest.mark.parametrize("end", ["", "if (k0 + BK < K) "])
def test_longer_steps_are_right_for_exercise_7_and_no_double_buffering(end, tmp_path):
    last = "    __syncthreads();\n  }\n"
    path = variant(
        tmp_path, "07-bank-conflicts", *STEPS_OF_16, (last, last.replace("__", end + "__"))
    )
    names = ["07-bank-conflicts", "08-double-buffering", "09-warp-tiles"]
    assert missed(path, names) == names[1:]


def test_padding_and_a_barrier_before_the_loop_are_right_for_exercise_8(tmp_path):
    path = variant(
        tmp_path,
        "08-double-buffering",
        ("PAD = 4", "PAD = 12"),
        ("  fetch(0);\n", "  fetch(0);\n  put(0);\n  __syncthreads();\n"),
        ("    put(stage);\n    __syncthreads();", "    "),
        # The first text of these is the end of the loop over the steps.
        ("\n    }\n  }\n  for", "\n    }\n    put(stage ^ 1);\n    __syncthreads();\n  }\n  for"),
    )
    assert missed(path, ["08-double-buffering"]) == []


def test_one_buffer_of_long_steps_is_no_pipeline_of_three_stages(tmp_path):
    path = variant(
        tmp_path,
        "10-async-copies",
        ("BK = 8", "BK = 24"),
        ("STAGES = 3", "STAGES = 1"),
        ("a_k = threadIdx.x % 8", "a_k8 = threadIdx.x % 8"),
        ("b_k = threadIdx.x / 32", "b_k8 = threadIdx.x / 32"),
        (
            "    for (int i = 0; i < BM",
            "    for (int a_k = a_k8; a_k < BK; a_k += 8)\n    for (int i = 0; i < BM",
        ),
        (
            "    const int k = k0 + b_k,",
            "    for (int b_k = b_k8; b_k < BK; b_k += 8) {\n    const int k = k0 + b_k,",
        ),
        ("    commit();", "    }\n    commit();"),
        ("    wait<STAGES - 2>();", "    __syncthreads();\n    start(0, k0);\n    wait<0>();"),
        ("    start((stage + STAGES - 1) % STAGES, k0 + (STAGES - 1) * BK);\n", ""),
    )
    assert missed(path, ["10-async-copies"]) == ["10-async-copies"]


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
@pytest.mark.sample(2)
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
    launch, limits = options("10-async-copies")
    result = check(path, *launch, *limits, "--shape", "36x36x24")
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
    for student in ("ada", "bob", "李雷"):
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
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text("utf-8").splitlines()]
    assert [row[:3] + row[-1:] for row in rows] == [
        ["student", "01", "02", "done"],
        ["ada", "done", "not yet", "1"],
        ["bob", "not usable", "-", "0"],
        ["李雷", "-", "-", "0"],
    ]
    # Two characters of two columns each, in a column as wide as its head, and two spaces.
    assert re.search(r"^李雷 {5}- {11}-", done.stdout, re.M)
    assert re.search(r"^ada +done +not yet +-", done.stdout, re.M)
    assert "has no __global__" in (tmp_path / "reports" / "bob" / f"{first}.txt").read_text("utf-8")
    kept = (tmp_path / "reports" / "ada" / f"{first}.txt").read_text("utf-8")
    assert "Limits at" in kept
    assert "[1/" not in kept
