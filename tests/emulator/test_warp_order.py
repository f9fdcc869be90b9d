"""Kernels whose threads cooperate are correct in every order of their warps, on each executor."""

from __future__ import annotations

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor, launch

from gemmkit.emulator import load
from gemmkit.jit.compiler import compile_kernel

SOURCES = {
    "exchange": """(float* out, float* tmp, const float* in) {
        __shared__ float As[128], Bs[128];
        tmp[threadIdx.x] = in[threadIdx.x];
        As[threadIdx.x] = 2 * in[threadIdx.x];
        __syncthreads();
        Bs[threadIdx.x] = tmp[127 - threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x ^ 64] + Bs[threadIdx.x ^ 32];
    }""",
    "partial sums": """(float* out, float* tmp, const float* in) {
        float sum = in[threadIdx.x];
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (threadIdx.x % 32 == 0) tmp[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) out[0] = tmp[0] + tmp[1] + tmp[2] + tmp[3];
    }""",
    "last warp": """(float* out, float* tmp, const float* in) {
        tmp[threadIdx.x] = in[threadIdx.x];
        __threadfence();
        __syncwarp();
        unsigned before = 0;
        if (threadIdx.x % 32 == 0) before = atomicInc((unsigned*)out + 64, 3);
        before = __shfl_sync(~0u, before, 0);
        __threadfence();
        if (before == 3)
            out[threadIdx.x % 32] = tmp[threadIdx.x % 32] + tmp[threadIdx.x % 32 + 96];
    }""",
}


def shuffled(seed: int) -> Executor:
    """The engine with warps in another order."""
    return Executor(
        f"seed {seed}",
        lambda ptx, flow, request, memory: load(ptx, flow.kernel.name).run(
            request, memory, warp_seed=seed
        ),
    )


@pytest.mark.parametrize("name", SOURCES)
def test_all_orders_give_the_same_bits(name: str) -> None:
    ptx = compile_kernel(
        f'extern "C" __global__ void k{SOURCES[name]}', "k", "sm_86", assemble=False
    ).ptx
    zeros = np.zeros(128, np.float32)
    values = np.random.default_rng(1).standard_normal(128).astype(np.float32)
    executors = (ORACLE, ENGINE, shuffled(1), shuffled(2))
    outcomes = [launch(each, ptx, zeros, zeros, values, block=128) for each in executors]
    assert any(outcomes[0].arrays[0])
    for outcome in outcomes[1:]:
        for mine, oracles in zip(outcome.arrays, outcomes[0].arrays, strict=True):
            assert mine.tobytes() == oracles.tobytes()
        assert (outcome.tally.executed == outcomes[0].tally.executed).all()
        assert (outcome.tally.sectors == outcomes[0].tally.sectors).all()
