"""`check` finds variables that are never set, also where the optimizer folds them away."""

from __future__ import annotations

import pytest

from gemmkit.bench.check import check
from gemmkit.kernels.kernel import Kernel

KERNEL = """struct Pair { float value; int mark; };
__device__ float scaled(float x, float s) { return x * s; }
__global__ void own(int M, int N, int K, const float *A, const float *B, float *C) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  BEFORE
  for (int p = 0; p < K; ++p) { float a = A[row * K + p], b = B[p * N + col]; WITHIN sum += a * b; }
  AFTER
  C[row * N + col] = sum;
}
"""
SHAPES = ["33x17x24", "33x17x8"]


@pytest.fixture
def checked(tmp_path):
    """The records of a kernel with these lines, for K = 24 and K = 8."""

    def run(before="", within="", after=""):
        text = KERNEL.replace("BEFORE", before).replace("WITHIN", within).replace("AFTER", after)
        path = tmp_path / "own.cu"
        path.write_text(text)
        kernel = Kernel.from_file(path, grid="ceil_div(N,16),ceil_div(M,16)", block="16,16")
        return check(kernel, SHAPES)

    return run


# What the optimizer takes the set value for in all cases. K = 24 is right, K = 8 is not.
UNSET = {
    "scale": ("float scale; if (K > 16) scale = 1;", "", "sum *= scale;"),
    "by a function": ("float s; if (K > 16) s = 1;", "", "sum = scaled(sum, s);"),
    "element": ("float s[2]; s[0] = 0; if (K > 16) s[1] = 1;", "", "sum = sum * s[1] + s[0];"),
    "field": ("Pair s; s.mark = 1; if (K > 16) s.value = 1;", "", "sum *= s.value * s.mark;"),
    "switch": ("float s; switch (K) { case 24: s = 1; break; case 99: s = 1; }", "", "sum *= s;"),
    "branch": ("bool on; if (K > 16) on = true;", "", "if (!on) sum = 0;"),
}


@pytest.mark.parametrize("name", UNSET)
def test_a_value_that_is_folded_away(checked, name):
    good, bad = checked(*UNSET[name])
    assert good.verdict == "ok"
    assert bad.verdict == "findings"
    assert {(each.check, each.kind) for each in bad.findings} == {("initcheck", "uninitialized")}
    assert "own.cu" in {each.here.file for each in bad.findings}


SOUND = {
    "all set": ("float s = 1; Pair p = {1, 1};", "", "sum = scaled(sum, s) * p.value;"),
    "copied, not used": ("Pair p, q; p.mark = 1; q = p;", "", "if (q.mark != 1) sum = 0;"),
    "set where it is used": ("float s; if (K > 16) s = 1;", "", "if (K > 16) sum *= s;"),
    "a loop that never ends early": ("float t[4]; for (int i = 0; i < 4; ++i) t[i] = 0;",
                                     "t[p & 3] += 1;", "sum += 0 * t[0];"),
    "a prefetch beyond the end": ("float next; next = K > 0 ? A[row * K] : 0;",
                                  "a = next; if (p + 1 < K) next = A[row * K + p + 1];", ""),
    "computed with, not used": ("int n; if (K > 99) n = 1; n += 1;", "", "(void)n;"),
    "nested functions, each twice": (
        "auto clamped = [&](int i) { return min(max(i, 0), K); };", "",
        "sum *= clamped(K + 5) - clamped(-3) == K;"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.sample(2)
def test_sound_kernels_have_no_finding(checked, name):
    assert [(each.verdict, each.findings) for each in checked(*SOUND[name])] == [("ok", ())] * 2


def test_checks_that_are_not_asked_for_cost_nothing(tmp_path):
    path = tmp_path / "own.cu"
    before, within, after = UNSET["scale"]
    path.write_text(
        KERNEL.replace("BEFORE", before).replace("WITHIN", within).replace("AFTER", after)
    )
    kernel = Kernel.from_file(path, grid="ceil_div(N,16),ceil_div(M,16)", block="16,16")
    assert {each.verdict for each in check(kernel, SHAPES, checks=["memcheck"])} == {"ok"}
