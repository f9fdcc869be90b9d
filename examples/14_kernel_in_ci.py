"""A kernel of your own in your tests: results, races and memory traffic, with no GPU.

    pytest examples/14_kernel_in_ci.py
    pytest examples/14_kernel_in_ci.py --gemmkit-gpu h100

The fixture `gemm_kernel` comes with gemmkit. docs/check-your-kernel-in-ci.md has a workflow for
GitHub Actions.
"""

import pytest


@pytest.fixture
def sgemm(gemm_kernel):
    """The kernel of sgemm.cu, with the tile sizes that the program uses."""
    return gemm_kernel(
        "sgemm.cu",
        entry="sgemm<64,64,8,8,4>",
        grid="(N+63)/64,(M+63)/64",
        block=128,
    )


@pytest.mark.parametrize("shape", ["64x64x32", "65x33x17", "1x1x1"])
def test_right_and_clean(sgemm, shape):
    """Results are right, and the sanitizers find nothing."""
    sgemm.check([shape])


def test_budget(sgemm):
    """Guard the performance: whole sectors, no bank conflicts, no spills."""
    counters = sgemm.counters(192, 192, 64)
    assert counters.sectors_per_request <= 4
    assert counters.bank_conflicts == 0
    assert counters.spill_bytes == 0
    assert counters.occupancy >= 0.4


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
