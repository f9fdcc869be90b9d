"""`gemmkit bench`: a file of the user's own, measured like a rung."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gemmkit.cli import gemmkit

SOURCE = """// One thread a result
#include <cuda_runtime.h>
#include <stdio.h>
__global__ void gemm(int M, size_t N, int K, double alpha, const float* A, const float* B,
                     float beta, float* C) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= M || column >= N) return;
  float sum = 0;
  for (int k = 0; k < K; k++) sum += A[row * K + k] * B[k * N + column];
  sum = alpha * sum + (beta == 0 ? 0 : beta * C[row * N + column]);
  if (row + column == 0) printf("first: %.1f\\n", (float)K);
  while (sum == 12345.0f) __nanosleep(1);
  C[row * N + column] = sum;
}
int main() { printf("host\\n"); gemm<<<1, 1>>>(0, 0, 0, 0, 0, 0, 0, 0); }
"""
LAUNCH = ("--grid", "(N+15)/16,(M+7)/8", "--block", "16,8", "--device", "emulator")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.cu"
    path.write_text(SOURCE)
    return path


def test_a_file_is_measured_like_a_rung(call: Callable[..., Result], file: Path) -> None:
    words = ("--shape", "33x18x21,40", "--shape", "8", "--alpha", 2, "--beta", 0.5)
    result = call("bench", file, *LAUNCH, *words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("first: ") == 3
    assert "first: 21.0\n" in result.stdout
    rows = [line.split()[:2] for line in result.stdout.splitlines() if " gemm " in line]
    assert rows == [["33x18x21", "gemm"], ["40x40x40", "gemm"], ["8x8x8", "gemm"]]


def test_records(file: Path) -> None:
    words = ["bench", str(file), *LAUNCH, "--shape", "20", "--json", "-"]
    result = CliRunner().invoke(gemmkit, words)
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert (record["kernel"], record["rung"], record["config"]) == ("gemm", None, {})
    assert record["correct"]
    assert record["counters"]["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] > 0
    assert record["idea"] == "One thread a result"
    assert "first: 20.0" in result.stderr


def test_a_wrong_result_exits_with_1(call: Callable[..., Result], file: Path) -> None:
    file.write_text(SOURCE.replace("k < K", "k < K - 1"))
    result = call("bench", file, *LAUNCH, "--shape", "20x20x20")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    shown = " ".join(result.stdout.split())
    assert "20x20x20: All 400 elements are wrong: k is short by 1: the last step" in shown
    assert "For example, C[" in shown


def test_beta_0_must_not_read_c(call: Callable[..., Result], file: Path) -> None:
    file.write_text(SOURCE.replace("beta == 0 ? 0 : ", ""))
    result = call("bench", file, *LAUNCH, "--shape", "20")
    assert result.exit_code == 1
    assert "read although β is 0" in " ".join(result.stdout.split())
    assert call("bench", file, *LAUNCH, "--shape", "20", "--beta", 1).exit_code == 0


def test_an_endless_kernel_is_told(call: Callable[..., Result], file: Path) -> None:
    file.write_text(SOURCE.replace("sum == 12345.0f", "sum < 12345.0f"))
    result = call("bench", file, *LAUNCH, "--shape", "16", "--max-steps", "100000")
    assert result.exit_code == 2
    assert "did not end within 100,000 steps: warp 0 at my.cu:12" in result.stderr
    assert "--max-steps" in result.stderr
    assert "first: 16.0" in result.stdout


def test_checks_show_what_is_printed_too(call: Callable[..., Result], file: Path) -> None:
    result = call("check", file, *LAUNCH[:4], "--shape", "8,9x3x5")
    assert result.exit_code == 0, result.stdout
    printed = [
        line for line in result.stdout.splitlines() if line.startswith(("first", "8x", "9x"))
    ]
    assert [line.split()[:2] for line in printed] == [
        ["first:", "8.0"],
        ["8x8x8", "–"],
        ["first:", "5.0"],
        ["9x3x5", "–"],
    ]


def test_a_rung(call: Callable[..., Result]) -> None:
    words = ("--shape", "64", "--config", "BM=16", "--epilogue", "bias")
    result = call("bench", "naive", "--device", "emulator", *words)
    assert result.exit_code == 0
    assert "64x64x64  naive + bias" in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--lda", "3"), "No such option"),
        (("--shape", "5x5"), "'5x5' is not a valid shape"),
        (("--epilogue", "bias"), "no argument 'bias'"),
        (("--config", "BM=3"), "kernel 'gemm' has no key 'BM'; it has: none"),
        (("--max-steps", "0"), "--max-steps"),
    ],
)
def test_bad_usage(
    call: Callable[..., Result], file: Path, words: tuple[str, ...], reason: str
) -> None:
    result = call("bench", file, *LAUNCH, *words)
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.gpu
def test_on_a_gpu_a_file_is_timed(call: Callable[..., Result], file: Path) -> None:
    file.write_text(SOURCE.replace("if (row + column == 0) printf", "if (false) printf"))
    words = (*LAUNCH[:4], "--device", "cuda", "--shape", "33x18x21,256", "--beta", "0.5")
    result = call("bench", file, *words)
    assert result.exit_code == 0, result.stderr
    rows = [line.split()[:2] for line in result.stdout.splitlines() if " gemm " in line]
    assert rows == [["33x18x21", "gemm"], ["256x256x256", "gemm"]]
    assert "median" in result.stdout


@pytest.mark.gpu
@pytest.mark.parametrize(("fifo", "lost"), [(64 * 2**20, False), (2**20, True)])
def test_the_fifo_of_a_gpu_holds_as_much_as_is_asked_for(file: Path, fifo: int, lost: bool) -> None:
    lines = 100_000
    loop = f"if (row + column == 0) for (int i = 0; i < {lines}; i++) printf"
    file.write_text(SOURCE.replace("if (row + column == 0) printf", loop))
    script = f"""
from gemmkit import GemmProblem, Kernel, open_device, run_kernel
kernel = Kernel.from_file({str(file)!r}, grid={LAUNCH[1]!r}, block={LAUNCH[3]!r})
device = open_device("cuda", printf_bytes={fifo})
assert run_kernel(kernel, GemmProblem(20, 20, 20), device, time=False).correct
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count("first: 20.0\n") < lines) is lost
