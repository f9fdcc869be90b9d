"""`gemmkit check` without --shape: the problems follow the kernel, broken ones do not get by."""

from __future__ import annotations

import re

import pytest

# One file, so that all kernels are compiled from the same text; T is the tile.
SOURCE = """
#define T 8
template <bool Second>
__global__ void square(const float *a, const float *b, float *c, int n) {
  __shared__ float As[T][T], Bs[T][T];
  int ty = threadIdx.y, tx = threadIdx.x, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  float sum = 0;
  for (int t = 0; t < n; t += T) {
    As[ty][tx] = row < n && t + tx < n ? a[row * n + t + tx] : 0.f;
    Bs[ty][tx] = t + ty < n && col < n ? b[(t + ty) * n + col] : 0.f;
    __syncthreads();
    for (int k = 0; k < T; ++k) sum += As[ty][k] * Bs[k][tx];
    if (Second) __syncthreads();
  }
  if (row < n && col < n) c[row * n + col] = sum;
}

// Whole tiles only, and nothing says so.
__global__ void whole(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[T][T], Bs[T][T];
  int ty = threadIdx.y, tx = threadIdx.x, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  float sum = 0;
  for (int t = 0; t < K; t += T) {
    As[ty][tx] = A[row * K + t + tx];
    Bs[ty][tx] = B[(t + ty) * N + col];
    __syncthreads();
    for (int k = 0; k < T; ++k) sum += As[ty][k] * Bs[k][tx];
    __syncthreads();
  }
  C[row * N + col] = sum;
}

// A circular buffer; from the third time round on, a broken one reads the wrong slot.
constexpr int kStages = 3;
template <bool Broken>
__global__ void buffered(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[kStages][T][T], Bs[kStages][T][T];
  int ty = threadIdx.y, tx = threadIdx.x, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  auto load = [&](int t) {
    int a = t * T + tx, b = t * T + ty;
    As[t % kStages][ty][tx] = row < M && a < K ? A[row * K + a] : 0.f;
    Bs[t % kStages][ty][tx] = b < K && col < N ? B[b * N + col] : 0.f;
  };
  for (int t = 0; t < kStages - 1; ++t) load(t);
  float sum = 0;
  for (int t = 0; t * T < K; ++t) {
    __syncthreads();
    int slot = Broken && t >= 2 * kStages + 1 ? (t - 1) % kStages : t % kStages;
    for (int k = 0; k < T; ++k) sum += As[slot][ty][k] * Bs[t % kStages][k][tx];
    load(t + kStages - 1);
  }
  if (row < M && col < N) C[row * N + col] = sum;
}

__device__ float dot(const float *a, int sa, const float *b, int sb, int k) {
  float sum = 0;
  for (int p = 0; p < k; ++p) sum += a[p * sa] * b[p * sb];
  return sum;
}

// The sign of alpha is lost, or a beta that is not positive is taken for 0.
template <bool BadAlpha, bool BadBeta>
__global__ void scaled(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                       float *C) {
  int j = blockIdx.x * T + threadIdx.x, i = blockIdx.y * T + threadIdx.y;
  if (i >= M || j >= N || (BadAlpha && alpha == 0.f)) return;
  float old = (BadBeta ? beta > 0 : beta != 0) ? beta * C[i * N + j] : 0.f;
  C[i * N + j] = alpha * dot(A + i * K, 1, B + j, N, K) + old;
}

template <bool Adds>
__global__ void adds(int M, int N, int K, const float *A, const float *B, float *C) {
  int j = blockIdx.x * T + threadIdx.x, i = blockIdx.y * T + threadIdx.y;
  if (i >= M || j >= N) return;
  C[i * N + j] = dot(A + i * K, 1, B + j, N, K) + (Adds ? C[i * N + j] : 0.f);
}

__global__ void __launch_bounds__(32) bounded(const float *a, const float *b, float *c, int n) {
  int j = blockIdx.x * T + threadIdx.x, i = blockIdx.y * T + threadIdx.y;
  if (i < n && j < n) c[i * n + j] = dot(a + i * n, 1, b + j, n, n);
}
"""
RECTANGLE = ("--grid", "ceil_div(N,T),ceil_div(M,T)", "--block", "T,T")
CUBE = ("--grid", "ceil_div(n,T),ceil_div(n,T)", "--block", "T,T")


@pytest.fixture
def check(call, tmp_path):
    """Check one kernel of the file; the result, and the sizes of the problems that ran."""

    def run(entry, *words):
        path = tmp_path / "own.cu"
        path.write_text(SOURCE)
        result = call("check", path, "--entry", entry, *words)
        rows = re.findall(r"^\S.*?  (\d+)x(\d+)x(\d+) ", result.stdout, re.MULTILINE)
        return result, [tuple(map(int, row)) for row in rows]

    return run


def test_a_square_kernel_gets_cubes_and_its_missing_barrier_is_found(check):
    sound, cubes = check("square<true>", *CUBE)
    assert sound.exit_code == 0, sound.output
    assert all(m == n == k for m, n, k in cubes)
    assert {m % 8 for m, _, _ in cubes if m > 8} >= {0, 1, 7}
    assert max(cubes) >= (80, 80, 80)
    broken, _ = check("square<false>", *CUBE, "--shape", "16x16x16")
    assert broken.exit_code == 1
    assert "racecheck" in broken.stdout
    assert "square<false>, checked on the emulator" in broken.stdout


def test_a_kernel_for_whole_tiles_says_how_to_restrict_it(check):
    result, _ = check("whole", *RECTANGLE)
    assert result.exit_code == 1
    assert "memcheck: out of bounds" in result.stdout
    flat = " ".join(result.stdout.split())
    assert "M, N and K are multiples of 8" in flat
    assert "--multiple-of 8,8,8" in flat
    restricted, sizes = check("whole", *RECTANGLE, "--multiple-of", "8")
    assert restricted.exit_code == 0, restricted.output
    assert all(size % 8 == 0 for row in sizes for size in row)
    rounding_down, sizes = check("whole", "--grid", "N/T,M/T", "--block", "T,T", "--multiple-of", 8)
    assert rounding_down.exit_code == 0, rounding_down.output
    assert "only sizes where M and N are multiples of 8 are tried" in rounding_down.stderr
    assert all(m % 8 == n % 8 == 0 for m, n, _ in sizes)


def test_k_is_deep_enough_for_a_circular_buffer_to_wrap_several_times(check):
    sound, _ = check("buffered<false>", *RECTANGLE)
    assert sound.exit_code == 0, sound.output
    broken, _ = check("buffered<true>", *RECTANGLE)
    assert broken.exit_code == 1
    assert re.search(r"many steps +16x16x80 .*(wrong|findings)", broken.stdout)


@pytest.mark.parametrize(
    ("arguments", "case"), [("true,false", "alpha 0 "), ("false,true", "negative beta")]
)
def test_scales_of_both_signs_and_zero(check, arguments, case):
    broken, _ = check(f"scaled<{arguments}>", *RECTANGLE)
    assert broken.exit_code == 1
    (row,) = re.findall(rf"^{case} .*", broken.stdout, re.MULTILINE)
    assert "wrong result" in row
    assert "21 ok" not in broken.stdout


def test_scales_that_are_right(check):
    sound, _ = check("scaled<false,false>", *RECTANGLE)
    assert sound.exit_code == 0, sound.output
    assert "α=0 β=0.333333" in sound.stdout


def test_a_kernel_that_adds_to_c(check):
    unasked, _ = check("adds<true>", *RECTANGLE)
    assert unasked.exit_code == 1
    assert "or if it adds to C, use --beta 1" in " ".join(unasked.stdout.split())
    assert check("adds<true>", *RECTANGLE, "--beta", "1")[0].exit_code == 0
    assert check("adds<false>", *RECTANGLE, "--beta", "1")[0].exit_code == 1


def test_a_launch_that_the_board_refuses_is_no_ok(check):
    result, _ = check("bounded", *CUBE)
    assert result.exit_code == 1
    assert "32 threads per block at most (__launch_bounds__) and launched with 64" in " ".join(
        result.stdout.split()
    )


def test_too_little_is_an_error(check):
    result, _ = check("square<true>", *CUBE, "--shape", "1x1x1,8x9x10,0x0x0")
    assert result.exit_code == 2
    assert "too little ran to say anything: nothing larger than 1x1x1" in result.stderr
    assert "3 problems: 2 ok, 1 refused" in result.stdout
    assert check("square<true>", *CUBE, "--shape", "1x1x1")[0].exit_code == 0
    assert check("square<true>", *CUBE, "--shape", "1x1x1,8x9x10,8")[0].exit_code == 0


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (
            ("--grid", "N,M", "--block", "64,64"),
            "4,096 threads per block exceed the limit",
        ),
        (("--grid", "1,70000", "--block", "8,8"), "grid.y is 70,000, above CUDA's limit of 65,535"),
        (("--grid", "N/64,1", "--block", "8,8"), "--grid is 'N/64', where N = 24"),
        (("--grid", "N,M", "--block", "8,8", "--shared", "K*9999"), "239,976 of them dynamic"),
    ],
)
def test_every_launch_that_the_board_refuses_is_a_failed_check(check, launch, words):
    """Limits of CUDA, of the board and of the kernel alike: exit 1, as the kernel's own failure."""
    result, _ = check("whole", *launch, "--shape", "16x24x24")
    assert result.exit_code == 1
    assert "1 problem: 1 failed" in result.stdout
    assert words in " ".join(result.stdout.split())


def test_what_cannot_be_launched_at_all_is_an_error(check):
    result, _ = check("whole", "--grid", "N/(K-24),M", "--block", "8,8", "--shape", "16x24x24")
    assert result.exit_code == 2
    assert "divides by zero" in result.stderr
    problem_refused, _ = check("square<true>", *CUBE, "--shape", "16x24x24")
    assert problem_refused.exit_code == 2
