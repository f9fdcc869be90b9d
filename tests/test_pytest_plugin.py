"""The fixture `gemm_kernel`, in a project of a user's own: what passes, and what fails how."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SGEMM = Path(__file__).parent.parent / "examples" / "sgemm.cu"

TESTS = """
import pytest

LAUNCH = dict(
    entry="sgemm<32,32,8,4,4>",
    args="M,N,K,alpha,A,B,beta,C",
    grid="(N+31)/32,(M+31)/32",
    block=64,
)
SHAPES = ["64x32x16", (33, 17, 9)]


def test_passing(gemm_kernel):
    kernel = gemm_kernel("sgemm.cu", **LAUNCH)
    records = kernel.check(SHAPES)
    assert [record.verdict for record in records] == ["ok", "ok"]
    counters = kernel.counters(64, 64, 32, alpha=2.0, beta=1.0)
    assert counters.sectors_per_request <= 4
    assert counters.bank_conflicts == 0
    assert counters.record.device.gpu == "RTX 3080"


@pytest.mark.parametrize("shapes", [None, SHAPES])
def test_out_of_bounds(gemm_kernel, shapes):
    gemm_kernel("out_of_bounds.cu", **LAUNCH).check(shapes)


def test_setting(gemm_kernel):
    assert gemm_kernel("sgemm.cu", **LAUNCH).gpu == "rtx3080"


def test_wrong(gemm_kernel):
    gemm_kernel("wrong.cu", **LAUNCH).check(SHAPES)


def test_wrong_while_counting(gemm_kernel):
    gemm_kernel("wrong.cu", **LAUNCH).counters(32, 32, 8)


def test_budget(gemm_kernel):
    counters = gemm_kernel("sgemm.cu", gpu="h100", **LAUNCH).counters(64, 64, 32)
    assert counters.record.device.gpu == "H100"
    assert counters.sectors_per_request <= 2


def test_limits(gemm_kernel):
    kernel = gemm_kernel("sgemm.cu", **LAUNCH)
    kernel.check(["8x8x8"], limits=["bank_conflicts == 0"], limits_at="64x64x32")
    kernel.check(["8x8x8"], limits=["sectors_per_request <= 2"], limits_at="64x64x32")


def test_no_such_file(gemm_kernel):
    gemm_kernel("absent.cu", **LAUNCH)


def test_does_not_compile(gemm_kernel):
    gemm_kernel("broken.cu", **LAUNCH).check(SHAPES)


def test_board(gemm_kernel):
    gemm_kernel("sgemm.cu", gpu="rtx1", **LAUNCH).check(SHAPES)


SQUARE = dict(grid="ceil_div(width,8),ceil_div(width,8)", block="8,8")


def test_square(gemm_kernel):
    gemm_kernel("square.cu", **SQUARE).check()


def test_too_little(gemm_kernel):
    gemm_kernel("square.cu", **SQUARE).check(["1x1x1", "8x9x10"])


def test_kernels_of_other_kinds(gemm_kernel):
    from gemmkit import find_kernel

    gemm_kernel(find_kernel("naive")).check(SHAPES)
    ptx = gemm_kernel("zero.ptx", args="C", grid=1, block=32)
    assert ptx.kernel.name == "zero"
    with pytest.raises(pytest.fail.Exception, match="leave out grid"):
        gemm_kernel(find_kernel("naive"), grid=1)
    with pytest.raises(pytest.fail.Exception, match="option 'blocks': did you mean block"):
        gemm_kernel("zero.ptx", args="C", grid=1, blocks=32)
    with pytest.raises(pytest.fail.Exception, match="a function that numba-cuda can compile"):
        gemm_kernel(print, grid=1, block=1)
"""

# The second barrier of the loop is missing.
MISSING_BARRIER = """
__global__ void square(const float *a, const float *b, float *c, int width) {
  __shared__ float As[8][8], Bs[8][8];
  int row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x * 8 + threadIdx.x;
  float sum = 0;
  for (int k0 = 0; k0 < width; k0 += 8) {
    int along = k0 + threadIdx.x, down = k0 + threadIdx.y;
    As[threadIdx.y][threadIdx.x] = row < width && along < width ? a[row * width + along] : 0.f;
    Bs[threadIdx.y][threadIdx.x] = down < width && col < width ? b[down * width + col] : 0.f;
    __syncthreads();
    for (int k = 0; k < 8; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
  }
  if (row < width && col < width) c[row * width + col] = sum;
}
"""
GUIDE = Path(__file__).parent.parent / "docs" / "check-your-kernel-in-ci.md"
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry zero(.param .u64 c) { ret; }
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with kernels and their tests."""
    folder = tmp_path_factory.mktemp("project")
    text = SGEMM.read_text("utf-8")
    (documented,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    sources = {
        "sgemm.cu": text,
        "out_of_bounds.cu": text.replace("if (m < M && n < N)", "if (m < M)"),
        "wrong.cu": text.replace("sum[i][j] + old", "sum[i][j] + old + 1.0f"),
        "broken.cu": text.replace("float sum[TM]", "flat sum[TM]"),
        "zero.ptx": PTX,
        "square.cu": MISSING_BARRIER,
        "test_kernels.py": TESTS,
        "test_guide.py": documented,
        "pytest.ini": "[pytest]\ngemmkit_gpu = rtx3080\nfilterwarnings = error\n",
    }

    for name, content in sources.items():
        (folder / name).write_text(content, "utf-8")
    return folder


def run_pytest(folder, *options):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(project):
    """What pytest says about the tests of the project: all, and by the test's name."""
    text = run_pytest(project)
    parts = re.split(r"^_+ (\S+) _+$", text.partition("short test summary")[0], flags=re.MULTILINE)
    return {"": text} | dict(zip(parts[1::2], parts[2::2], strict=True))


def test_right_kernels_pass_and_the_others_fail(report):
    assert "11 failed, 7 passed" in report[""]
    assert {"test_passing", "test_kernels_of_other_kinds"}.isdisjoint(report)
    assert "test_guide.py ...." in report[""]


def test_an_access_out_of_bounds_is_shown_with_line_and_thread(report):
    line = (
        SGEMM.read_text("utf-8")
        .split("\n")
        .index("        C[m * N + n] = alpha * sum[i][j] + old;")
    )
    for name in ("test_out_of_bounds[None]", "test_out_of_bounds[shapes1]"):
        failure = report[name]
        assert ">   " in failure
        assert 'gemm_kernel("out_of_bounds.cu", **LAUNCH).check(shapes)' in failure
        assert "out of bounds" in failure
        assert "'C'" in failure
        assert f"out_of_bounds.cu:{line + 1}" in failure
        assert "33x17x9" in failure or name.endswith("[None]")
        assert "pytest_plugin.py" not in failure


def test_a_missed_limit_is_shown_with_what_was_counted(report):
    failure = report["test_limits"]
    assert 'limits=["sectors_per_request <= 2"]' in failure
    assert "2 problems: 1 ok, 1 with a limit missed; no findings" in failure
    assert re.search(r"sectors_per_request <= 2 +4 +<= 2 +missed: 2 times the limit", failure)


def test_a_square_kernel_without_its_second_barrier_fails_on_cubes(report):
    failure = report["test_square"]
    assert re.search(r"E +Failed: \d+ problems: .*\d+ wrong and with findings.*racecheck", failure)
    assert "88x88x88" in failure or "80x80x80" in failure


def test_many_problems_with_one_bug_do_not_fill_the_screen(report):
    failure = report["test_out_of_bounds[None]"]
    assert re.search(r"… and \d+ more problems", failure)
    assert len(re.findall(r"^E +\S.* \d+x\d+x\d+  ", failure, re.MULTILINE)) == 5


def test_a_wrong_result_is_shown_with_its_element_and_seed(report):
    failure = report["test_wrong"]
    assert re.search(r"E +Failed: 2 problems: 2 wrong; no findings", failure)
    unwrapped = " ".join(failure.replace("\nE", "").split())
    assert re.search(r"C\[\d+, \d+\] is \S+, not \S+ ± \S+ \(normal inputs, seed 0\)", unwrapped)
    counted = report["test_wrong_while_counting"]
    assert re.search(
        r"E +Failed: sgemm<32,32,8,4,4>, 32x32x8: All 1,024 elements are wrong: .*"
        r"C\[\d+, \d+\] is ",
        counted,
    )


def test_an_exceeded_budget_shows_the_figure(report):
    failure = report["test_budget"]
    assert re.search(r"E +assert \d\S* <= 2\n", failure)
    assert re.search(r"<sgemm<32,32,8,4,4> at 64x64x32: sectors_per_request \d", failure)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_no_such_file", r"cannot read \S+absent\.cu: No such file"),
        ("test_does_not_compile", r"broken\.cu does not compile"),
        ("test_board", "unknown board 'rtx1'"),
        ("test_too_little", r"square: too little ran to say anything: nothing larger than 1x1x1"),
    ],
)
def test_errors_are_one_message_at_the_line_of_the_test(report, test, message):
    failure = report[test]
    assert re.search(rf"E +Failed: {message}", failure)
    assert failure.count(">   ") >= 1
    assert "Traceback" not in failure
    assert "src/gemmkit" not in failure


def test_the_command_line_comes_before_the_setting(project):
    text = run_pytest(project, "-k", "test_setting", "--gemmkit-gpu", "a100")
    assert "assert 'a100' == 'rtx3080'" in text


def test_the_plugin_costs_other_test_runs_nothing():
    code = (
        "import sys, pytest; before = set(sys.modules); import gemmkit.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # These import nothing outside the standard library.
    small = ["interpreter", "interrupts", "loading", "native_calls", "pytest_plugin", "version"]
    found = [each for each in done.stdout.split("'")[1::2] if not each.startswith("_")]
    assert found == ["gemmkit", *(f"gemmkit.{each}" for each in small)]
