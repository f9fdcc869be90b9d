"""A small source to compile, and Python processes to compile it in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from gemmkit.jit.nvrtc import compiler_version


@dataclass(frozen=True)
class Sample:
    """A source with the headers that it may include."""

    source: str
    headers: Mapping[str, str]
    entry: str
    file_name: str


@pytest.fixture(autouse=True)
def _needs_nvrtc() -> None:
    if compiler_version() is None:
        pytest.skip("needs NVRTC, which is not on this machine")


@pytest.fixture(scope="session")
def sample() -> Sample:
    """Compiles within some 30 ms; one header includes another, and a third is not included."""
    return Sample(
        source="""#include "scale.cuh"

template <int N>
__global__ void scaled(float* values) {
  __shared__ float tile[N];
  tile[threadIdx.x] = scale(values[threadIdx.x]);
  __syncthreads();
  values[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

extern "C" __global__ void plain(float* values) { values[threadIdx.x] = 1.0f; }
""",
        headers={
            "scale.cuh": """#pragma once
#include "square.cuh"
__device__ inline float scale(float x) {
  return 3.0f * square(x) + x;
}
""",
            "square.cuh": """#pragma once
__device__ inline float square(float x) {
  return x * x;
}
""",
            "unused.cuh": "#error nobody includes this\n",
        },
        entry="scaled<32>",
        file_name="scaled.cu",
    )


StartPython = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_python() -> StartPython:
    """Start a script in a Python of its own: `start_python(script, *arguments, flags=…, env=…)`."""

    def start(
        script: str, *arguments: str, flags: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )

    return start
