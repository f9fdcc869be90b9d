"""Occupancy against NVIDIA's own calculator, `cuda_occupancy.h`, where a toolkit has it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gemmkit.analysis import occupancy
from gemmkit.gpu import CAPABILITIES, GpuSpec

PROGRAM = r"""
#include <cstdio>
#include "cuda_occupancy.h"

int main() {
  cudaOccDeviceProp gpu;
  cudaOccFuncAttributes kernel;
  cudaOccDeviceState state;
  gpu.numSms = 1;
  gpu.warpSize = 32;
  gpu.maxThreadsPerBlock = kernel.maxThreadsPerBlock = 1024;
  gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536;
  gpu.sharedMemPerBlock = 49152;
  kernel.sharedSizeBytes = 0;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  int sms, limit, reserved, threads, shared;
  while (scanf("%d %d %d %d %d %d %d %d %d %d", &gpu.computeMajor, &gpu.computeMinor,
               &gpu.maxThreadsPerMultiprocessor, &sms, &limit, &reserved, &kernel.numRegs,
               &threads, &shared, &kernel.numBlockBarriers) == 10) {
    gpu.sharedMemPerMultiprocessor = sms;
    gpu.sharedMemPerBlockOptin = kernel.maxDynamicSharedSizeBytes = limit;
    gpu.reservedSharedMemPerBlock = reserved;
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads,
                                                         shared);
    if (status) {
      printf("%d\n", -status);
      continue;
    }
    printf("%d %d %d %d %d %d\n", result.activeBlocksPerMultiprocessor, result.blockLimitWarps,
           result.blockLimitBlocks, result.blockLimitRegs, result.blockLimitSharedMem,
           result.blockLimitBarriers);
  }
}
"""


@pytest.fixture(scope="module")
def calculator(tmp_path_factory) -> Path:
    compiler = shutil.which("c++")
    include = pytest.importorskip("cuda.pathfinder").find_nvidia_header_directory("cudart")
    if compiler is None or include is None or not Path(include, "cuda_occupancy.h").is_file():
        pytest.skip("needs a C++ compiler and a CUDA toolkit")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "main.cpp").write_text(PROGRAM)
    command = [compiler, f"-I{include}", "main.cpp", "-o", "calculator"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "calculator"


def test_blocks_per_sm_of_random_launches(calculator):
    draw = random.Random(1)
    cases = []
    for _ in range(20_000):
        capability = draw.choice(list(CAPABILITIES.values()))
        threads = draw.choice([draw.randint(1, 1024), 32 * draw.randint(1, 32)])
        most = draw.choice([0, 48 * 1024, capability.max_shared_per_block])
        barriers = draw.choice([1, draw.randint(0, 16)])
        if (capability.major, capability.minor) == (10, 3):
            barriers = 1  # releases of the header disagree on how many there are
        cases.append((capability, draw.randint(1, 255), threads, draw.randint(0, most), barriers))
    lines = [
        f"{c.major} {c.minor} {c.max_threads_per_sm} {c.shared_per_sm} {c.max_shared_per_block} "
        f"{c.shared_reserved_per_block} {registers} {threads} {shared} {barriers}"
        for c, registers, threads, shared, barriers in cases
    ]
    done = subprocess.run(
        [calculator], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(theirs) == len(cases)
    for case, (blocks, *limits) in zip(cases, theirs, strict=True):
        capability, registers, threads, shared, barriers = case
        spec = GpuSpec("any", capability, 1, 1.0, 1.0, 1)
        ours = occupancy(
            spec,
            registers=registers,
            threads=threads,
            shared_bytes=shared,
            blocks=1,
            barriers=barriers,
        )
        assert ours.blocks_per_sm == blocks, case
        # What does not limit is a very large number there, and the most blocks of an SM here.
        most = capability.max_blocks_per_sm
        for mine, limit in zip(ours.limits.values(), limits, strict=True):
            assert min(mine, most) == min(limit, most), (case, ours.limits, limits)
