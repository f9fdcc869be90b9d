"""Runs PTX and CUDA C++ on the emulator's executors, on plain NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, load, oracle
from gemmkit.emulator.counters.metrics import summarise
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.launch import Dim3, Execution, LaunchRequest
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Kernel, Module
from gemmkit.emulator.ptx.parser import parse
from gemmkit.emulator.schedule import Schedule

# What an argument is made of where arrays lie: given an array, the function has its address.
Placed = Callable[[Callable[[NDArray[np.generic]], int]], bytes]
Argument = NDArray[np.generic] | np.generic | Placed


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


@lru_cache(maxsize=4)
def parsed(ptx: str) -> tuple[Module, ControlFlow]:
    """A PTX text and the instructions of its only kernel: engine and oracle run the same text."""
    module = parse(ptx)
    (kernel,) = module.kernels.values()
    return module, ControlFlow.of(kernel)


Run = Callable[[str, ControlFlow, LaunchRequest, DeviceMemory], Execution]


@dataclass(frozen=True)
class Executor:
    """A way to run a kernel of a PTX text."""

    name: str
    run: Run


def _run_oracle(
    ptx: str, flow: ControlFlow, request: LaunchRequest, memory: DeviceMemory
) -> Execution:
    module, _ = parsed(ptx)
    start = memory.allocate(module.globals_bytes).address
    for variable in module.globals.values():
        if variable.data:
            image = np.frombuffer(variable.data, np.uint8)
            memory.view(start + variable.offset, len(image))[:] = image
    symbols = {name: start + variable.offset for name, variable in module.globals.items()}
    return oracle.run(flow, request, memory, symbols)


def _run_engine(
    ptx: str, flow: ControlFlow, request: LaunchRequest, memory: DeviceMemory
) -> Execution:
    return load(ptx, flow.kernel.name).run(request, memory)


ORACLE, ENGINE = Executor("oracle", _run_oracle), Executor("engine", _run_engine)
EXECUTORS = (ORACLE, ENGINE)


def following(schedule: Schedule) -> tuple[Executor, Executor]:
    """The engine and the oracle, as they follow a schedule."""

    def engine(
        ptx: str, flow: ControlFlow, request: LaunchRequest, memory: DeviceMemory
    ) -> Execution:
        return load(ptx, flow.kernel.name).run(request, memory, schedule=schedule)

    def plain(_: str, flow: ControlFlow, request: LaunchRequest, memory: DeviceMemory) -> Execution:
        return oracle.run(flow, request, memory, schedule=schedule)

    return Executor("engine", engine), Executor("oracle", plain)


def _pack(kernel: Kernel, values: Sequence[np.generic]) -> bytes:
    data = bytearray(kernel.parameter_bytes)
    for variable, value in zip(kernel.parameters.values(), values, strict=True):
        raw = value.tobytes()
        assert len(raw) == variable.size, "an argument has another size than its parameter"
        data[variable.offset : variable.offset + len(raw)] = raw
    return bytes(data)


def launch(
    executor: Executor,
    ptx: str,
    *arguments: Argument,
    grid: Dim3 | int = 1,
    block: Dim3 | int = 32,
    shared_bytes: int = 0,
    cluster: Dim3 | None = None,
) -> Outcome:
    """Run the only kernel of a PTX text; arrays are copied to device memory and back."""
    _, flow = parsed(ptx)
    kernel, memory = flow.kernel, DeviceMemory()
    values: list[np.generic] = []
    outputs, places = [], {}

    def place(array: NDArray[np.generic]) -> int:
        if id(array) not in places:
            held = places[id(array)] = memory.allocate(array.nbytes)
            memory.view(held.address, held.nbytes)[:] = np.frombuffer(array.tobytes(), np.uint8)
        return places[id(array)].address

    for each in arguments:
        if isinstance(each, np.ndarray):
            # The same array twice is two arrays in memory; structs refer to the last one.
            places.pop(id(each), None)
            values.append(np.uint64(place(each)))
            outputs.append((places[id(each)], each))
        elif isinstance(each, np.generic):
            values.append(each)
        else:
            values.append(np.void(each(place)))
    request = LaunchRequest(
        _dim3(grid), _dim3(block), _pack(kernel, values), shared_bytes, cluster=cluster
    )
    execution = executor.run(ptx, flow, request, memory)
    arrays = [
        memory.view(held.address, held.nbytes).view(each.dtype).reshape(each.shape).copy()
        for held, each in outputs
    ]
    return Outcome(arrays, execution, flow)


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
.target {target}
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
