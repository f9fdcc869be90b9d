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
  kernel.numBlockBarriers = 1;
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  int sms, limit, reserved, threads, shared;
  while (scanf("%d %d %d %d %d %d %d %d %d", &gpu.computeMajor, &gpu.computeMinor,
               &gpu.maxThreadsPerMultiprocessor, &sms, &limit, &reserved, &kernel.numRegs,
               &threads, &shared) == 9) {
    gpu.sharedMemPerMultiprocessor = sms;
    gpu.sharedMemPerBlockOptin = kernel.maxDynamicSharedSizeBytes = limit;
    gpu.reservedSharedMemPerBlock = reserved;
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads,
                                                         shared);
    printf("%d\n", status ? -status : result.activeBlocksPerMultiprocessor);
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
        cases.append((capability, draw.randint(1, 255), threads, draw.randint(0, most)))
    lines = [
        f"{c.major} {c.minor} {c.max_threads_per_sm} {c.shared_per_sm} {c.max_shared_per_block} "
        f"{c.shared_reserved_per_block} {registers} {threads} {shared}"
        for c, registers, threads, shared in cases
    ]
    done = subprocess.run(
        [calculator], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = [int(line) for line in done.stdout.split()]
    assert len(theirs) == len(cases)
    for (capability, registers, threads, shared), blocks in zip(cases, theirs, strict=True):
        spec = GpuSpec("any", capability, 1, 1.0, 1.0, 1)
        ours = occupancy(spec, registers=registers, threads=threads, shared_bytes=shared, blocks=1)
        assert ours.blocks_per_sm == blocks, (capability.arch, registers, threads, shared)
