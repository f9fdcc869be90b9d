"""The bound of products whose operands are split into parts of a narrower type."""

from __future__ import annotations

import pytest

from gemmkit import Kernel, check

SOURCE = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ float bf16(float x) { return __bfloat162float(__float2bfloat16(x)); }
__device__ float fp16(float x) { return __half2float(__float2half_rn(x)); }
__device__ float tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}
__global__ void split(const float *A, const float *B, float *C, int M, int N, int K) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c >= N) return;
  float s = 0;
  for (int i = 0; i < K; ++i) {
    float a = A[r * K + i], b = B[i * N + c];
    float ah = TYPE(a), bh = TYPE(b), al = TYPE(SCALE(a - ah)), bl = TYPE(SCALE(b - bh));
    s += PRODUCT;
  }
  C[r * N + c] = s;
}
"""
RIGHT = "ah * bh + ah * bl + al * bh"
SHAPES = ["33x40x5", "5x8x1", "20x12x300"]


@pytest.fixture
def checked(tmp_path):
    def run(product, *, of="bf16", scale="", text=SOURCE):
        path = tmp_path / "own.cu"
        source = text.replace("PRODUCT", product).replace("TYPE", of).replace("SCALE", scale)
        path.write_text(source)
        return check(Kernel.from_file(path, grid="(N+31)/32,M", block=32), SHAPES)

    return run


@pytest.mark.parametrize("of", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize(
    ("product", "scale", "verdict"),
    [
        (RIGHT, "", "ok"),
        ("al * bl + al * bh + bl * ah + bh * ah", "", "ok"),
        # Scaled, so that low parts do not underflow.
        ("ah * bh + (bl * ah + al * bh) / 2048", "2048 * ", "ok"),
        ("ah * bh + ah * bl + al * bl", "", "wrong result"),
        ("ah * bh + 0.5f * ah * bl + al * bh", "", "wrong result"),
        ("ah * bh - ah * bl + al * bh", "", "wrong result"),
    ],
)
@pytest.mark.sample(8)
def test_low_parts_have_to_be_right(checked, of, product, scale, verdict):
    records = checked(product, of=of, scale=scale)
    if verdict == "ok":
        assert {record.verdict for record in records} == {"ok"}
    assert records[0].verdict == verdict
    name = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}[of]
    words = f"operands split into high and low parts in {name} ("
    assert all(record.arithmetic.startswith(words) for record in records)
    assert "results" not in records[0].arithmetic


@pytest.mark.parametrize("of", ["bf16", "tf32"])
@pytest.mark.parametrize("product", ["ah * bh + al * bh", "ah * bh"])
@pytest.mark.sample(2)
def test_an_operand_that_is_rounded_alone_has_the_bound_of_its_type(checked, product, of):
    records = checked(product, of=of)
    assert {record.verdict for record in records} == {"ok"}
    assert records[0].arithmetic.startswith("operands rounded to ")


def test_a_result_that_is_rounded_has_the_bound_of_its_type(checked):
    text = SOURCE.replace("C[r * N + c] = s", "C[r * N + c] = bf16(s)")
    records = checked(RIGHT, text=text)
    assert {record.verdict for record in records} == {"ok"}
    assert "results rounded to bfloat16" in records[0].arithmetic


def test_a_zero_is_no_operand(checked):
    """A constant is converted as operands are, but nothing is rounded."""
    text = SOURCE.replace("float s = 0", "float s = TYPE(0.f)")
    assert ":7)" not in checked(RIGHT, text=text)[0].arithmetic
    half = text.replace("s += PRODUCT", "s = TYPE(s + a * b)")
    assert all("operands" not in record.arithmetic for record in checked("", text=half))
