"""`EmulatedDevice`: runs kernels on the CPU and counts what a GPU would have counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.cores import usable_cores
from gemmkit.devices.device import Buffer, Launch, Value
from gemmkit.devices.host import host_environment, package_version
from gemmkit.devices.limits import refusal
from gemmkit.devices.packing import (
    address_names,
    bound_values,
    launch_before,
    packed,
    preparing_launches,
    with_tensor_maps,
)
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.setmaxnreg import setmaxnreg_ignored
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.loading import load

if TYPE_CHECKING:
    from gemmkit.emulator import Allocation, DeviceMemory, LaunchRequest, Program
    from gemmkit.emulator.counters.tally import Tally
    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.schedule import Schedule
    from gemmkit.emulator.watching import SharedContent, Watched
    from gemmkit.tensor_maps import MapFormat

_POISON = 0xFF
# Steps of a block, far more than a matrix product needs.
_ENDLESS = 1_000_000_000


class EmulatedBuffer:
    """Memory of the emulated device, freed with this object."""

    def __init__(self, memory: DeviceMemory, allocation: Allocation) -> None:
        self.address = allocation.address
        self.nbytes = allocation.nbytes
        # Not when the process ends: a daemon thread's kernel may be at work in it.
        weakref.finalize(self, memory.free, allocation).atexit = False


class EmulatedDevice:
    """A CPU that stands for a board: results and counters as on the GPU, no time.

    Args:
        spec: the board; it decides what a launch may ask for.
        threads: host threads, by default one for each core.
        progress: called during a launch with the fraction of its blocks that are done.
        cache_dir: where compiled objects are kept; by default in the user's cache folder.
        sanitize: look for faults while kernels run; `Launch.findings` holds them, and what is a
            `DeviceError` without it (a bad access, a deadlock, an endless kernel) is one of them.
        max_steps: warp instructions, counted in loops, after which a block counts as endless; by
            default a billion (some ten seconds) when sanitizing, and else none.
        warp_seed: shuffles the order in which the warps of a block run; 0 leaves it as it is.
        schedule: what the warps and copies of one block of each launch, or of its cluster, do
            first, and in which order.
        not_written_before: the names of arrays and variables that no earlier launch writes: a
            dependent launch may read them before it waits for that.
    """

    kind = "emulator"

    def __init__(
        self,
        spec: GpuSpec,
        *,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
        cache_dir: Path | None = None,
        sanitize: bool = False,
        max_steps: int | None = None,
        warp_seed: int = 0,
        schedule: Schedule | None = None,
        not_written_before: Collection[str] = (),
    ) -> None:
        load("gemmkit.emulator", "gemmkit.emulator.isa.tensor_maps")
        from gemmkit.emulator import DeviceMemory
        from gemmkit.emulator.isa.tensor_maps import EMULATED_MAPS

        self.spec = spec
        self.maps: MapFormat = EMULATED_MAPS
        self.threads = threads or usable_cores()
        self.memory = DeviceMemory()
        self.sanitize = sanitize
        self._max_steps = max_steps or (_ENDLESS if sanitize else None)
        self._warp_seed = warp_seed
        self._schedule = schedule
        self._not_written_before = frozenset(not_written_before)
        self._progress = progress
        self._cache_dir = cache_dir
        self._programs: dict[tuple[str, str], Program] = {}

    def with_own_memory(self) -> EmulatedDevice:
        """The same device with other memory, so that its launches may overlap those of this one.

        Compiled kernels are shared. Allocations are packed more closely, by which counters of the
        L1's tag stage may differ.
        """
        from gemmkit.emulator.machine.memory import LEAST_ALIGNMENT, DeviceMemory

        other = copy(self)
        other.memory = DeviceMemory(LEAST_ALIGNMENT)
        return other

    def empty(self, nbytes: int) -> EmulatedBuffer:
        """Device memory; its content is NaN as float32, so that reading it shows.

        Raises:
            DeviceError: the host has not enough memory.
        """
        allocation = self.memory.allocate(nbytes, initialized=False)
        self.memory.view(allocation.address, nbytes)[:] = _POISON
        return EmulatedBuffer(self.memory, allocation)

    def upload(self, array: NDArray[Any], *, initialized: bool = True) -> EmulatedBuffer:
        """A device copy of a C-contiguous array.

        Without `initialized` its bytes are there, and yet count as never written: a sanitizer
        reports a kernel that reads them before it writes them.
        """
        allocation = self.memory.allocate(array.nbytes, initialized=initialized)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory.view(allocation.address, array.nbytes)[:] = flat
        return EmulatedBuffer(self.memory, allocation)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """Fill a C-contiguous array from the start of a buffer."""
        if not out.flags.c_contiguous or out.nbytes > buffer.nbytes:
            raise ValueError(f"cannot copy {buffer.nbytes} bytes into {out.nbytes} of this array")
        out.reshape(-1).view(np.uint8)[:] = self.memory.view(buffer.address, out.nbytes)

    def launch(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> Launch:
        """Run the plan's grid and wait; the counters are named as Nsight Compute names them.

        They are of the plan's own kernel; findings are also of a launch before it.

        Raises:
            DeviceError: the board cannot take the launch, or the kernel failed.
            UnsupportedInstruction: the kernel has an instruction that the emulator lacks.
        """
        from gemmkit.emulator.counters.metrics import summarise, summarise_lines

        def array(number: int) -> str:
            found = self.memory.find(execution.regions.get(number, 0))
            return found.name if found is not None else ""

        earlier = [
            self.launch(code, other, arguments) for other, code in _earlier_launches(plan, binary)
        ]
        program, request = self._prepare(binary, plan, arguments)
        execution = program.run(
            request,
            self.memory,
            threads=self.threads,
            progress=self._progress,
            max_steps=self._max_steps,
            warp_seed=self._warp_seed,
            sanitize=self.sanitize,
            schedule=self._schedule,
            interleavings=self.sanitize and self._schedule is None,
        )
        findings = (*(found for each in earlier for found in each.findings), *execution.findings)
        if self.sanitize:
            from gemmkit.devices.unset_variables import compiler_findings

            findings += compiler_findings(binary.log, program.flow.kernel.body, findings)
        return Launch(
            counters=summarise(program.flow, execution.tally),
            line_counters=summarise_lines(program.flow, execution.tally),
            accesses=program.accesses.counts(execution.tally, array),
            findings=findings,
            printed=(*(line for each in earlier for line in each.printed), *execution.printed),
            emulation_seconds=execution.seconds
            + sum(each.emulation_seconds or 0.0 for each in earlier),
        )

    def execute(
        self,
        binary: Binary,
        plan: LaunchPlan,
        arguments: Mapping[str, Value],
        *,
        only: range | None = None,
    ) -> None:
        """Run the plan's grid, or `only` some blocks by their numbers (x fastest), for what they
        compute alone: nothing is counted, no fault looked for.

        Raises:
            DeviceError: the board cannot take the launch, or the kernel failed.
            UnsupportedInstruction: the kernel has an instruction that the emulator lacks.
        """
        self._execute_before(binary, plan, arguments)
        program, request = self._prepare(binary, plan, arguments)
        program.execute(
            request, self.memory, threads=self.threads, max_steps=self._max_steps, only=only
        )

    def count(
        self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]
    ) -> tuple[ControlFlow, Tally]:
        """Run the plan's grid; the kernel's instructions, and the raw counts of each.

        Raises:
            DeviceError: the board cannot take the launch, or the kernel failed.
            UnsupportedInstruction: the kernel has an instruction that the emulator lacks.
        """
        self._execute_before(binary, plan, arguments)
        program, request = self._prepare(binary, plan, arguments)
        execution = program.run(request, self.memory, threads=self.threads)
        return program.flow, execution.tally

    def watch(
        self,
        binary: Binary,
        plan: LaunchPlan,
        arguments: Mapping[str, Value],
        blocks: range,
    ) -> Watched:
        """Run some blocks of the grid alone, slowly, and return what their warps access; results
        need not be right.

        Raises:
            DeviceError: the board cannot take the launch, or the kernel failed.
            UnsupportedInstruction: the kernel has an instruction that the emulator lacks.
        """
        self._execute_before(binary, plan, arguments)
        program, request = self._prepare(binary, plan, arguments)
        return program.watch(request, self.memory, blocks)

    def read_shared(
        self,
        binary: Binary,
        plan: LaunchPlan,
        arguments: Mapping[str, Value],
        block: int,
        barriers: int,
    ) -> SharedContent:
        """Run a block alone, slowly, until its warps have arrived at so many barriers, and return
        what its shared memory holds; 0 stands for the block's end.

        Raises:
            DeviceError: the board cannot take the launch, or the kernel failed.
            UnsupportedInstruction: the kernel has an instruction that the emulator lacks.
        """
        self._execute_before(binary, plan, arguments)
        program, request = self._prepare(binary, plan, arguments)
        return program.read_shared(request, self.memory, block, barriers)

    def environment(self) -> dict[str, Any]:
        """The host, the threads used, and the code generator."""
        return {
            "emulated_gpu": self.spec.name,
            "threads": self.threads,
            "llvmlite": package_version("llvmlite"),
        } | host_environment()

    def _execute_before(
        self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]
    ) -> None:
        """Run the launches before a plan's own, for what they leave in the workspace and in memory
        of prepared operands."""
        for other, code in _earlier_launches(plan, binary):
            self.execute(code, other, arguments)

    def _prepare(
        self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]
    ) -> tuple[Program, LaunchRequest]:
        from gemmkit.emulator import LaunchRequest
        from gemmkit.emulator.isa.tensor_maps import encoded

        program = self._program(binary, plan)
        self._check(binary, plan, program)
        arguments = with_tensor_maps(plan, arguments, encoded)
        parameters = packed(binary, bound_values(binary, plan, arguments))
        if plan.constants:
            self._set_variables(program, plan)
        for name in address_names(plan):
            address = arguments.get(name, 0)
            if not isinstance(address, bytes):
                self.memory.rename(int(address), name)
        cluster = plan.cluster if plan.cluster != (1, 1, 1) else None
        request = LaunchRequest(
            plan.grid,
            plan.block,
            parameters,
            plan.shared_bytes,
            cluster=cluster,
            registers=binary.resources.registers if binary.resources is not None else None,
            setmaxnreg_ignored=setmaxnreg_ignored(
                binary.ptx, binary.entry, binary.log, plan.threads_per_block
            ),
            # Each SM holds at least one block of a launch that the board accepts.
            at_once=self.spec.sm_count,
            not_written_before=self._not_written_before,
        )
        return program, request

    def _set_variables(self, program: Program, plan: LaunchPlan) -> None:
        """Fill `__constant__` and `__device__` variables, as `cudaMemcpyToSymbol` does."""
        from gemmkit.devices.variables import find_symbol

        for name, data in plan.constants:
            symbol = find_symbol(name, program.module.globals) if data else None
            # What the kernel does not use is not in its PTX.
            if symbol is not None:
                program.set_variable(self.memory, symbol, data)

    def _program(self, binary: Binary, plan: LaunchPlan) -> Program:
        from gemmkit.emulator import load

        key = binary.key, binary.entry
        if key not in self._programs:
            self._programs[key] = load(
                binary.ptx,
                binary.entry,
                # Only what was written as PTX is quoted by its PTX lines.
                name=plan.source.name if plan.source.language == "ptx" else "",
                cache_dir=self._cache_dir,
                sanitize=self.sanitize,
                capability=(self.spec.capability.major, self.spec.capability.minor),
            )
        return self._programs[key]

    def _check(self, binary: Binary, plan: LaunchPlan, program: Program) -> None:
        reason = refusal(self.spec, binary, plan, program.shared_bytes)
        if reason is not None:
            raise DeviceError(reason)


def _earlier_launches(plan: LaunchPlan, binary: Binary) -> list[tuple[LaunchPlan, Binary]]:
    """What is launched before a plan's own kernel, in its order."""
    first = launch_before(plan, binary)
    return [*preparing_launches(plan, binary), *(() if first is None else (first,))]
