"""`gemmkit check` on files of one's own, for real: bugs come out as what they are."""

from __future__ import annotations

import os

import pytest

LAUNCH = ("--grid", "(N+15)/16,(M+15)/16", "--block", "16,16")

# Right for multiples of 16 only.
TILED = """__global__ void tiled(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[16][16], Bs[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k0 = 0; k0 < K; k0 += 16) {
    As[threadIdx.y][threadIdx.x] = A[row * K + k0 + threadIdx.x];
    Bs[threadIdx.y][threadIdx.x] = B[(k0 + threadIdx.y) * N + col];
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  C[row * N + col] = sum;
}
"""


@pytest.fixture
def check_file(call, tmp_path):
    """Write a file and check its only kernel on 32x32x32, or on other shapes."""

    def run(text, *words, shape="32x32x32", launch=LAUNCH):
        path = tmp_path / "own.cu"
        path.write_text(text)
        return call("check", path, *launch, "--shape", shape, *words)

    return run


def test_sizes_that_the_kernel_is_made_for_are_clean(check_file):
    result = check_file(TILED)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("1 problem: 1 ok; no findings\n")


def test_out_of_bounds_at_another_size_is_a_finding(check_file):
    result = check_file(TILED, shape="32x32x32,24x32x32")
    assert result.exit_code == 1
    assert "memcheck: out of bounds: load of 4 bytes" in result.stdout
    assert "of 'A'" in result.stdout
    assert "-> own.cu:6\n" in result.stdout
    assert ">    6 |     As[threadIdx.y][threadIdx.x] = A[row * K + k0" in result.stdout
    assert "2 problems: 1 ok, 1 with findings" in result.stdout


def test_missing_barrier_is_a_race_between_two_lines(check_file):
    result = check_file(
        TILED.replace("    __syncthreads();\n    for", "    for"), "--only", "racecheck"
    )
    assert result.exit_code == 1
    assert "racecheck: read after write" in result.stdout
    assert "-> own.cu:8\n" in result.stdout
    assert "-> own.cu:6\n" in result.stdout


def test_finding_that_was_not_asked_for_is_left_out(check_file):
    result = check_file(TILED, "--only", "racecheck", shape="32x16x24")
    assert "memcheck" not in result.stdout


def test_kernel_that_never_ends_is_told_where_it_was(check_file):
    endless = """__global__ void endless(int M, int N, const float *A, const float *B, float *C) {
  while (*(volatile const float *)A < 1e30f) {
  }
  C[0] = 1;
}
"""
    result = check_file(endless, "--max-steps", "10000", launch=("--grid", "1", "--block", "32"))
    assert result.exit_code == 1
    assert "did not end within 10,000 steps" in result.stdout
    assert "-> own.cu:2\n" in result.stdout


def test_kernel_that_refuses_all_that_was_asked_for_is_an_error(check_file):
    result = check_file(TILED, "--beta", "0.5")
    assert result.exit_code == 2
    assert "nothing to check" in result.stderr
    assert "beta" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--entry", "other"), "other"),
        (("--args", "M,N,K,A,B,D"), "'D'"),
        (("--block", "16,x"), "x"),
    ],
)
def test_bad_usage(check_file, words, message):
    result = check_file(TILED, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "unexpected" not in result.stderr


def test_a_missing_barrier_is_one_finding(check_file):
    """Of two arrays, read after write and write after read, at two shapes and in all threads."""
    result = check_file(
        TILED.replace("    __syncthreads();\n  }", "  }"), shape="32x32x32,48x32x64"
    )
    assert result.exit_code == 1
    assert result.stdout.endswith("1 distinct finding (1 racecheck)\n")
    flat = " ".join(result.stdout.split())
    assert (
        "no barrier between line 9 and line 7 of the next iteration; the barrier at line 8 comes "
        "before both"
    ) in flat
    assert "'As' at own.cu:" in flat
    assert "at 32x32x32, 48x32x64" in flat


def test_reads_that_a_race_leads_to_stand_with_it(check_file):
    result = check_file(TILED.replace("    __syncthreads();\n    for", "    for"))
    assert result.exit_code == 1
    assert "\n1. racecheck" in result.stdout
    assert "\n2." not in result.stdout
    assert "may lead to: uninitialized, 'Bs' at own.cu:8" in result.stdout


def test_an_array_of_the_tile_is_too_short(check_file):
    result = check_file(TILED.replace("As[16][16], ", "As[16][15], "))
    assert "past the end of 'As' (960 bytes of shared memory), in 'Bs'" in " ".join(
        result.stdout.split()
    )
    assert result.stdout.index("memcheck: out of bounds") < result.stdout.index("racecheck: ")


# Each thread's part of C goes by way of an array that other threads read.
THROUGH_GLOBAL = """#include <cuda_pipeline.h>
namespace parts { __device__ float of_c[32 * 32]; }
__global__ void own(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float rows[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k0 = 0; k0 < K; k0 += 16) {
    __pipeline_memcpy_async(&rows[threadIdx.y][threadIdx.x], A + row * K + k0 + threadIdx.x, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += rows[threadIdx.y][k] * B[(k0 + k) * N + col];
    __syncthreads();
  }
  parts::of_c[row * 32 + col] = sum;
  __syncthreads();
  C[(row ^ 8) * N + col] = parts::of_c[(row ^ 8) * 32 + col];
}
"""


def test_arrays_of_the_file_by_their_names(check_file):
    assert check_file(THROUGH_GLOBAL).exit_code == 0
    racy = THROUGH_GLOBAL.replace("= sum;\n  __syncthreads();", "= sum;")
    result = check_file(racy, "--only", "racecheck")
    assert result.exit_code == 1
    assert "of 'parts::of_c' at own.cu:1" in " ".join(result.stdout.split())
    outside = check_file(THROUGH_GLOBAL.replace("of_c[32 * 32]", "of_c[32 * 31]"))
    assert "0 bytes past the end of 'parts::of_c' (3968 bytes)" in " ".join(outside.stdout.split())


def test_a_line_in_a_header_of_cuda_is_the_line_that_calls_it(check_file):
    late = THROUGH_GLOBAL.replace("    __pipeline_wait_prior(0);\n", "")
    result = check_file(late, "--only", "racecheck")
    assert result.exit_code == 1
    assert "-> own.cu:8\n" in result.stdout
    assert "cuda_pipeline" not in result.stdout.replace("#include <cuda_pipeline.h>", "")


def test_a_seed_finds_the_same(check_file):
    assert check_file(TILED, "--seed", "7").exit_code == 0
    shown = [
        check_file(TILED.replace("    __syncthreads();\n  }", "  }"), "--seed", "7").stdout
        for _ in range(2)
    ]
    assert shown[0] == shown[1]
    assert "of the next iteration" in shown[0]


@pytest.mark.parametrize("name", ["练习.cu", 'q"q.cu', os.fsdecode(b"x\xff.cu")])
def test_findings_of_any_file_name_have_their_source_lines(call, tmp_path, name):
    head = "__global__ void k(int M, int N, int K, const float *A, float *C) {"
    path = tmp_path / name
    path.write_text(f"{head}\n  C[M * N] = A[0];\n}}\n")
    done = call("check", path, "--grid", 1, "--block", 1, "--shape", 4, "--args", "M,N,K,A,C")
    shown = name.encode(errors="replace").decode()
    assert f"--> {shown}:2" in done.stdout
    assert "C[M * N] = A[0];" in done.stdout


# The weights B are read before the wait for earlier launches, and A after it.
DEPENDENT = """
__global__ void dependent(int M, int N, int K, const float *A, const float *B, float *C) {
  extern __shared__ float weights[];
  const int col = threadIdx.x;
  for (int k = 0; k < K; ++k) weights[k * N + col] = B[k * N + col];
  cudaGridDependencySynchronize();
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[blockIdx.x * K + k] * weights[k * N + col];
  C[blockIdx.x * N + col] = sum;
}
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 1, "earlier launch not waited for"),
        (("--not-written-before", "B"), 0, "no findings"),
        (("--not-written-before", "a,b"), 0, "no findings"),
        (("--not-written-before", "A"), 1, "earlier launch not waited for"),
        (("--not-written-before", "W"), 2, "unknown array 'W'"),
    ],
)
def test_weights_that_are_read_before_the_wait(check_file, words, status, said):
    launch = ("--grid", "M", "--block", "N", "--shared", "4*K*N", "--gpu", "h100")
    result = check_file(DEPENDENT, *words, launch=launch)
    assert result.exit_code == status, result.output
    assert said in " ".join(result.output.split())


def test_a_type_that_is_refused_is_not_assumed_before(check_file):
    result = check_file(TILED.replace("float *", "int8_t *"))
    assert result.exit_code == 2
    assert "points to int8_t, which is not a supported element type" in result.output
    assert "assumed" not in result.output


def test_python_is_not_cuda(call, tmp_path):
    path = tmp_path / "own.py"
    path.write_text("from numba import cuda\n")
    result = call("check", path, *LAUNCH)
    assert result.exit_code == 2
    assert "own.py is Python, not CUDA C++: gemmkit.Kernel.from_numba" in result.output
