"""Arguments `workspace` and `semaphores` of a user's own kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gemmkit
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

# The blocks of two parts of k leave their sums in the workspace; the last of them adds them up.
SPLIT = """
__global__ void split(const float *A, const float *B, float *C, int M, int N, int K,
                      float *workspace, int *semaphores) {
  __shared__ bool last;
  const int part = blockIdx.y, e = blockIdx.x * 32 + threadIdx.x, half = (K + 1) / 2;
  float sum = 0;
  if (e < M * N)
    for (int k = part * half; k < min(K, (part + 1) * half); ++k)
      sum += A[e / N * K + k] * B[k * N + e % N];
  if (e < M * N) workspace[part * M * N + e] = sum;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&semaphores[blockIdx.x], 1) == 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (e < M * N) C[e] = workspace[e] + workspace[M * N + e];
  if (threadIdx.x == 0) semaphores[blockIdx.x] = 0;
}
"""
MEMORY = {"workspace": "2*M*N*sizeof(float)", "semaphores": "(M*N+31)/32"}


def kernel_of(folder: Path, text: str = SPLIT, **options: Any) -> Kernel:
    path = folder / "split.cu"
    path.write_text(text)
    return Kernel.from_file(path, grid="(M*N+31)/32,2", block=32, **options)


def found(kernel: Kernel) -> set[tuple[str, str, str]]:
    (record,) = gemmkit.check(kernel, ["9x7x5"])
    return {(each.check, each.kind, each.array) for each in record.findings}


def test_a_launch_has_the_memory_that_is_asked_for(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, **MEMORY)
    plan = kernel.plan(GemmProblem(9, 7, 5), kernel.default, find_board("rtx3090"))
    assert (plan.workspace_bytes, plan.semaphores) == (2 * 9 * 7 * 4, 2)
    assert plan.signature[-2:] == ("workspace", "semaphores")
    assert not found(kernel)


@pytest.mark.parametrize(
    ("memory", "old", "new", "expected"),
    [
        ({"workspace": "M*N*4"}, "", "", ("memcheck", "out of bounds", "workspace")),
        ({"semaphores": "M*N/32"}, "", "", ("memcheck", "out of bounds", "semaphores")),
        ({}, "x] = 0", "x] = 2", ("synccheck", "counter left set", "semaphores")),
        ({}, "if (e < M * N) w", "if (part) w", ("initcheck", "uninitialized", "workspace")),
        ({}, "__threadfence();", "", ("racecheck", "read after write", "workspace")),
    ],
)
def test_bugs_around_them(
    tmp_path: Path, memory: dict[str, str], old: str, new: str, expected: tuple[str, str, str]
) -> None:
    kernel = kernel_of(tmp_path, SPLIT.replace(old, new, 1), **{**MEMORY, **memory})
    assert expected in found(kernel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has an argument 'workspace': give --workspace BYTES"),
        ({"workspace": 64}, "has an argument 'semaphores': give --semaphores COUNT"),
        (
            {"workspace": 64, "semaphores": 1, "args": "A,B,C,M,N,K,0,semaphores"},
            "--workspace is given, but the kernel has no argument 'workspace'",
        ),
        ({**MEMORY, "args": "A,B,C,M,N,workspace,K,semaphores"}, "'workspace' is a pointer"),
        ({**MEMORY, "semaphores": "tiles"}, "'tiles' uses tiles; grid, block and memory may use"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        kernel_of(tmp_path, **options)


def test_a_negative_amount_is_refused(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, workspace="M-100", semaphores=2)
    board = find_board("rtx3090")
    reason = kernel.supports(GemmProblem(9, 7, 5), kernel.default, board)
    assert reason == "--workspace is 'M-100', where M = 9: -91 is negative"
