"""Runs small CUDA kernels with the sanitizers on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.launch import Dim3, Execution
from gemmkit.emulator.machine.memory import Allocation
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.names import source_name
from gemmkit.emulator.ptx.parser import parse
from gemmkit.findings import Finding
from gemmkit.jit.compiler import compile_kernel

WORDS = np.zeros(64, np.float32)
# Without what these kernels do not use, NVRTC takes a quarter less for the same code.
MINIMAL = ("--minimal",)


@dataclass(frozen=True)
class Outcome:
    """The findings, and the arrays after the launch."""

    execution: Execution
    arrays: Mapping[str, NDArray[np.generic]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.execution.findings

    @property
    def kinds(self) -> set[tuple[str, str]]:
        return {(each.check, each.kind) for each in self.findings}

    @property
    def only(self) -> Finding:
        assert len(self.findings) == 1, self.findings
        return self.findings[0]


@cache
def compiled(source: str, arch: str = "sm_86") -> str:
    """PTX of a kernel `k` whose text begins after `__global__ void`; line numbers start at 1."""
    return compile_kernel(
        'extern "C" __global__ void ' + source.strip(), "k", arch, options=MINIMAL, assemble=False
    ).ptx


def run(
    source: str,
    arguments: Mapping[str, NDArray[np.generic] | np.generic] | None = None,
    *,
    grid: Dim3 = (1, 1, 1),
    block: Dim3 = (64, 1, 1),
    shared_bytes: int = 0,
    threads: int = 1,
    max_steps: int | None = None,
    unwritten: Collection[str] = (),
    warp_seed: int = 0,
    sanitize: bool = True,
    arch: str = "sm_86",
    at_once: int = 1,
    explain: bool = False,
    host_sets: Mapping[str, bytes] | None = None,
    not_written_before: Collection[str] = (),
) -> Outcome:
    """Run a kernel on arrays of these names; `unwritten` ones count as never written. So many
    blocks are on the board `at_once`. With `explain` also find what takes further runs. The host
    sets variables of the module to these bytes before. No earlier launch writes arrays and
    variables of some names.

    Without arguments it gets one array, `out`, of 64 words.
    """
    memory, request, held = _placed(arguments, grid, block, shared_bytes, unwritten)
    names = frozenset(not_written_before)
    request = replace(request, at_once=at_once, not_written_before=names)
    program = load(compiled(source, arch), "k")
    for name, data in (host_sets or {}).items():
        (symbol,) = (each for each in program.module.globals if source_name(each) == name)
        program.set_variable(memory, symbol, data)
    execution = program.run(
        request,
        memory,
        threads=threads,
        max_steps=max_steps,
        warp_seed=warp_seed,
        sanitize=sanitize,
        interleavings=explain,
    )
    arrays = {name: memory.view(each.address, each.nbytes).copy() for name, each in held.items()}
    return Outcome(execution, arrays)


def by_oracle(
    source: str,
    arguments: Mapping[str, NDArray[np.generic] | np.generic] | None = None,
    *,
    grid: Dim3 = (1, 1, 1),
    block: Dim3 = (64, 1, 1),
    shared_bytes: int = 0,
    unwritten: Collection[str] = (),
) -> tuple[Finding, ...]:
    """The oracle's findings in a kernel: uses of undefined bits."""
    memory, request, _ = _placed(arguments, grid, block, shared_bytes, unwritten)
    module = parse(compiled(source))
    flow = ControlFlow.of(module.kernels["k"])
    return oracle.run(flow, request, memory, track=True).findings


def _placed(
    arguments: Mapping[str, NDArray[np.generic] | np.generic] | None,
    grid: Dim3,
    block: Dim3,
    shared_bytes: int,
    unwritten: Collection[str],
) -> tuple[DeviceMemory, LaunchRequest, dict[str, Allocation]]:
    """Memory with the arrays in it, by name, and a launch that takes them."""
    memory, packed, held = DeviceMemory(), b"", {}
    for name, value in ({"out": WORDS} if arguments is None else arguments).items():
        size = 8 if isinstance(value, np.ndarray) else value.nbytes
        packed += b"\0" * (-len(packed) % size)
        if isinstance(value, np.ndarray):
            held[name] = memory.allocate(value.nbytes, name, initialized=name not in unwritten)
            data = memory.view(held[name].address, value.nbytes)
            data[:] = np.frombuffer(value.tobytes(), np.uint8)
            packed += held[name].address.to_bytes(8, "little")
        else:
            packed += value.tobytes()
    return memory, LaunchRequest(grid, block, packed, shared_bytes), held
