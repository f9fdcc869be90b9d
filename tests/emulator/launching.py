"""Runs PTX and CUDA C++ on the emulator's executors, on plain NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator import oracle
from gemmkit.emulator.counters.metrics import summarise
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.launch import Dim3, Execution, LaunchRequest
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Kernel, Module
from gemmkit.emulator.ptx.parser import parse

Argument = NDArray[np.generic] | np.generic


@dataclass(frozen=True)
class Allocation:
    address: int
    nbytes: int


class FlatMemory:
    """Global memory: aligned copies of arrays, each with 256 forbidden bytes around it."""

    def __init__(self) -> None:
        self._allocations: list[tuple[Allocation, NDArray[np.uint8]]] = []

    def upload(self, data: bytes) -> int:
        padded = np.zeros(len(data) + 1024, np.uint8)
        start = 256 + -padded.ctypes.data % 256
        view = padded[start : start + len(data)]
        view[:] = np.frombuffer(data, np.uint8)
        allocation = Allocation(padded.ctypes.data + start, len(data))
        self._allocations.append((allocation, view))
        return allocation.address

    def find(self, address: int) -> Allocation | None:
        held = (each for each, _ in self._allocations)
        return next((each for each in held if 0 <= address - each.address < each.nbytes), None)

    def view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        allocation = self.find(address)
        data = next(data for each, data in self._allocations if each == allocation)
        start = address - allocation.address
        return data[start : start + nbytes]


@dataclass(frozen=True)
class Outcome:
    """Arrays after the launch, in the order of the arguments that are arrays."""

    arrays: list[NDArray[np.generic]]
    execution: Execution
    flow: ControlFlow

    @property
    def tally(self) -> Tally:
        return self.execution.tally

    @property
    def metrics(self) -> dict[str, float]:
        return summarise(self.flow, self.tally)

    def count(self, field: str, opcode: str) -> int:
        """A count of the tally, summed over the instructions with this opcode."""
        numbers = [n for n, form in enumerate(self.flow.forms) if form.opcode == opcode]
        return int(getattr(self.tally, field)[numbers].sum())


Executor = Callable[[Module, ControlFlow, Sequence[Argument], LaunchRequest], Outcome]


def _pack(kernel: Kernel, values: Sequence[np.generic]) -> bytes:
    data = bytearray(kernel.parameter_bytes)
    for variable, value in zip(kernel.parameters.values(), values, strict=True):
        raw = value.tobytes()
        assert len(raw) == variable.size, "an argument has another size than its parameter"
        data[variable.offset : variable.offset + len(raw)] = raw
    return bytes(data)


def _globals_image(module: Module) -> bytes:
    data = bytearray(module.globals_bytes)
    for variable in module.globals.values():
        data[variable.offset : variable.offset + len(variable.data)] = variable.data
    return bytes(data)


def on_oracle(
    module: Module, flow: ControlFlow, arguments: Sequence[Argument], request: LaunchRequest
) -> Outcome:
    memory = FlatMemory()
    addresses = {
        number: memory.upload(each.tobytes())
        for number, each in enumerate(arguments)
        if isinstance(each, np.ndarray)
    }
    values = [np.uint64(addresses.get(n, 0)) if n in addresses else each
              for n, each in enumerate(arguments)]  # fmt: skip
    start = memory.upload(_globals_image(module)) if module.globals_bytes else 0
    symbols = {name: start + variable.offset for name, variable in module.globals.items()}
    filled = LaunchRequest(
        request.grid, request.block, _pack(flow.kernel, values), request.shared_bytes
    )
    execution = oracle.run(flow, filled, memory, symbols)
    arrays = [
        memory.view(addresses[n], each.nbytes).view(each.dtype).reshape(each.shape).copy()
        for n, each in enumerate(arguments)
        if n in addresses
    ]
    return Outcome(arrays, execution, flow)


EXECUTORS: Mapping[str, Executor] = {"oracle": on_oracle}


def launch(
    executor: Executor,
    ptx: str,
    *arguments: Argument,
    grid: Dim3 | int = 1,
    block: Dim3 | int = 32,
    shared_bytes: int = 0,
) -> Outcome:
    """Run the only kernel of a PTX text."""
    module = parse(ptx)
    (kernel,) = module.kernels.values()
    request = LaunchRequest(_dim3(grid), _dim3(block), b"", shared_bytes)
    return executor(module, ControlFlow.of(kernel), arguments, request)


def _dim3(size: Dim3 | int) -> Dim3:
    return (size, 1, 1) if isinstance(size, int) else size


def kernel_ptx(
    body: str,
    *,
    pointers: int = 1,
    declarations: str = "",
    outside: str = "",
    target: str = "sm_80",
) -> str:
    """A PTX module with one kernel `k` of pointer parameters p0, p1, …

    Loaded at its start: `%rd0`, `%rd1` … the pointers as global addresses, `%tid` the thread's
    number in x, `%at` = p0 + 4 * tid. Every line of the body is a line of `kernel.cu`, from 1.
    """
    parameters = ", ".join(f".param .u64 p{n}" for n in range(pointers))
    loads = "\n".join(
        f"ld.param.u64 %rd{n}, [p{n}]; cvta.to.global.u64 %rd{n}, %rd{n};" for n in range(pointers)
    )
    lines = "\n".join(f".loc 1 {n} 1\n{line}" for n, line in enumerate(body.strip().split("\n"), 1))
    return f"""
.version 8.5
.target sm_90
.address_size 64
.file 1 "kernel.cu"
{outside}
.visible .entry k({parameters})
{{
    .reg .pred %p<16>;
    .reg .b16 %h<16>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<32>;
    .reg .f32 %f<32>;
    .reg .f64 %fd<16>;
    .reg .b32 %tid;
    .reg .b64 %at;
    {declarations}
    {loads}
    mov.u32 %tid, %tid.x;
    mul.wide.u32 %at, %tid, 4;
    add.s64 %at, %at, %rd0;
{lines}
    ret;
}}
"""
