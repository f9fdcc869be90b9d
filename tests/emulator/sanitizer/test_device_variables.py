"""memcheck between module-scope variables: an access past one of them hits no other."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run

TWO_VARIABLES = """k(float* out, int reach);
__device__ float first[64];
__device__ float second[64];
__constant__ float table[64];
extern "C" __global__ void k(float* out, int reach) {
    first[int(threadIdx.x) + reach] = 1;
    second[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}"""


@pytest.mark.parametrize(
    ("reach", "count", "place"),
    [
        (1, 1, "0 bytes past the end of 'first' (256 bytes)"),
        (64, 64, "0 bytes past the end of 'first' (256 bytes)"),
        (4096, 64, "16128 bytes past the end of 'first' (256 bytes)"),
    ],
)
def test_a_variable_overruns(reach: int, count: int, place: str) -> None:
    found = run(TWO_VARIABLES, {"out": WORDS, "reach": np.int32(reach)}).only
    assert (found.check, found.kind, found.array) == ("memcheck", "out of bounds", "first")
    assert found.count == count
    assert place in found.message


def test_variables_within_their_bounds() -> None:
    outcome = run(TWO_VARIABLES, {"out": WORDS, "reach": np.int32(0)})
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [1.0] * 64
