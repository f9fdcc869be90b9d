"""Resource figures: ptxas's log against the cubin, over kernels that use each kind."""

from __future__ import annotations

import contextlib
import io

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.errors import CompileError
from gemmkit.jit.nvrtc import compile_program
from gemmkit.jit.resources import registers_from_cubin, resources_from_log

# Spilling: 96 live values under a limit of 32 registers. Local: an array indexed at run time.
# Calling: a device function with a stack of its own.
SOURCE = """
template <int N>
__global__ void __launch_bounds__(1024, 2) spilling(float* x) {
  float held[N];
#pragma unroll
  for (int i = 0; i < N; ++i) held[i] = x[i * blockDim.x + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = held[i] * held[N - 1 - i];
}

template <int N>
__global__ void shared(float* x) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

__global__ void local(float* x, int step) {
  float table[64];
  for (int i = 0; i < 64; ++i) table[i] = x[i * step];
  for (int i = 0; i < 64; ++i) x[i] = table[(i * step) & 63];
}

__device__ __noinline__ float lookup(const float* x, int step) {
  float table[32];
  for (int i = 0; i < 32; ++i) table[i] = x[i * step];
  return table[step & 31];
}

__global__ void calling(float* x, int step) { x[0] = lookup(x, step); }

extern "C" __global__ void plain(float* x) { x[0] = 1.0f; }
"""
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
ENTRIES = ["spilling<96>", "shared<1000>", "local", "calling", "plain"]


def compile_entry(entry, arch="sm_80"):
    return compile_program(SOURCE, entry, arch, headers={}, file_name="resources.cu")


def resources_of(entry, arch="sm_80"):
    program = compile_entry(entry, arch)
    return resources_from_log(program.log, program.entry)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.sample
def test_log_and_cubin_agree(arch, entry) -> None:
    program = compile_entry(entry, arch)
    resources = resources_from_log(program.log, program.entry)
    assert resources.registers == registers_from_cubin(program.cubin, program.entry)

    section = ELFFile(io.BytesIO(program.cubin)).get_section_by_name(f".nv.shared.{program.entry}")
    # From sm_90 on the section holds the system's 1,024 bytes too.
    reserved = 1024 if arch in ("sm_90a", "sm_100a", "sm_120a") else 0
    assert resources.shared_bytes == (section["sh_size"] - reserved if section else 0)


def test_figures_of_each_kind() -> None:
    spilling = resources_of("spilling<96>")
    assert spilling.registers == 32
    assert spilling.spill_bytes > 0
    assert spilling.local_bytes > 0

    shared = resources_of("shared<1000>")
    assert (shared.shared_bytes, shared.spill_bytes, shared.local_bytes) == (4000, 0, 0)

    local = resources_of("local")
    assert (local.local_bytes, local.spill_bytes) == (256, 0)

    plain = resources_of("plain")
    assert (plain.spill_bytes, plain.shared_bytes, plain.local_bytes) == (0, 0, 0)


def test_a_called_function_s_stack_counts() -> None:
    assert resources_of("calling").local_bytes >= 128


LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 48 bytes cumulative stack size, 512 bytes smem
ptxas info    : Function properties for helper
ptxas         .     32 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, 400 bytes cmem[0]
"""


def test_each_kernel_gets_its_own_block() -> None:
    first = resources_from_log(LOG, "first")
    assert (first.registers, first.spill_bytes) == (32, 24 + 40 + 4 + 8)
    assert (first.shared_bytes, first.local_bytes) == (512, 48)
    second = resources_from_log(LOG, "second")
    assert (second.registers, second.spill_bytes) == (255, 0)
    assert (second.shared_bytes, second.local_bytes) == (0, 8)


@pytest.mark.parametrize("log", [LOG, "", LOG.replace("registers", "things")])
def test_a_log_without_the_figures_is_an_error(log) -> None:
    with pytest.raises(CompileError, match="no resource figures for 'firs'"):
        resources_from_log(log, "firs")


@pytest.fixture(scope="module")
def cubin() -> bytes:
    return compile_entry("plain").cubin


def test_a_cubin_without_the_kernel_is_an_error(cubin) -> None:
    with pytest.raises(CompileError, match="holds no kernel 'other'"):
        registers_from_cubin(cubin, "other")


@given(data=st.data())
def test_a_damaged_cubin_is_read_or_refused(cubin, data) -> None:
    damaged = bytearray(cubin[: data.draw(st.integers(0, len(cubin)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CompileError):
        assert registers_from_cubin(bytes(damaged), "plain") >= 0
