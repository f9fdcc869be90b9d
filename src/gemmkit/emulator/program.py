"""`Program`: a kernel ready to run on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from gemmkit.diskcache import DiskCache, default_cache_directory
from gemmkit.emulator import oracle
from gemmkit.emulator.codegen.kernel import LoadedKernel, load_kernel
from gemmkit.emulator.counters.accesses import Accesses
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine import scheduler
from gemmkit.emulator.machine.memory import Allocation, DeviceMemory
from gemmkit.emulator.oracle.watch import Watch
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Module
from gemmkit.emulator.ptx.parser import parse
from gemmkit.emulator.watching import WatchedAccess, watched_access
from gemmkit.errors import DeviceError

CACHE_KIND = "objects"

MAX_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)


class Program:
    """One kernel; `flow` holds its instructions, which counts refer to by number."""

    def __init__(
        self, module: Module, flow: ControlFlow, load_kernel: Callable[[bool], LoadedKernel]
    ) -> None:
        self.module = module
        self.flow = flow
        self._load = cache(load_kernel)
        self._variables: WeakKeyDictionary[DeviceMemory, Allocation] = WeakKeyDictionary()

    @cached_property
    def accesses(self) -> Accesses:
        """Its memory instructions, whose counts a launch's tally gives."""
        return Accesses(self.flow)

    def run(
        self,
        request: LaunchRequest,
        memory: DeviceMemory,
        *,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
        max_steps: int | None = None,
        sanitize: bool = False,
    ) -> Execution:
        """Run all blocks and wait.

        Args:
            request: grid, block, parameters.
            memory: all that the kernel may touch besides its shared and local memory.
            threads: host threads, by default one for each core; results and counts are the same
                for any number. Blocks that order themselves by fences run on one, in their order.
            progress: called now and then with the fraction of blocks done.
            max_steps: warp instructions, counted in loops, after which a block that has not ended
                counts as endless.
            sanitize: look for faults; they are the `findings` of what is returned.

        Raises:
            DeviceError: a bad launch; unless sanitizing, also a bad access, a deadlock, an
                endless kernel, a trap.
        """
        _check(request, self.flow)
        if 0 in request.grid:
            return scheduler.empty_execution(self.flow)
        run = partial(
            scheduler.run,
            flow=self.flow,
            request=request,
            memory=memory,
            globals_at=self._variables_in(memory),
            threads=threads,
            progress=progress,
            max_steps=max_steps,
        )
        kernel = self._load(sanitize)
        return self._run_sanitized(run, kernel, request, memory) if sanitize else run(kernel)

    def prepare(self, *, sanitize: bool) -> None:
        """Compile the kernel, with or without sanitizers, before it runs.

        Raises:
            UnsupportedInstruction: it has an instruction that the emulator cannot execute.
            DeviceError: this host cannot run the emulator.
        """
        self._load(sanitize)

    def _run_sanitized(
        self,
        run: Callable[..., Execution],
        kernel: LoadedKernel,
        request: LaunchRequest,
        memory: DeviceMemory,
    ) -> Execution:
        """Run with sanitizers, again from the start where these must know more from there on."""
        from gemmkit.emulator.sanitizer.monitor import Sanitizer

        readers: frozenset[int] = frozenset()
        before = memory.snapshot()
        while True:
            sanitizer = Sanitizer(kernel, self.flow, request, memory, readers)
            execution = run(kernel, sanitizer=sanitizer)
            if not sanitizer.readers_wanted:
                return execution
            readers |= sanitizer.readers_wanted
            memory.restore(before)

    def watch(
        self, request: LaunchRequest, memory: DeviceMemory, blocks: range
    ) -> tuple[WatchedAccess, ...]:
        """Run some blocks on the oracle and return each memory request of their warps, in order.

        Raises:
            DeviceError: a bad launch or access, a deadlock, a trap.
        """
        _check(request, self.flow)
        base = self._variables_in(memory)
        symbols = {name: base + each.offset for name, each in self.module.globals.items()}
        watch = Watch()
        oracle.run(self.flow, request, memory, symbols, only=blocks, watch=watch)
        return tuple(watched_access(touch, self.flow, memory) for touch in watch.touches)

    def _variables_in(self, memory: DeviceMemory) -> int:
        """The address of the module's variables, which keep their values between launches."""
        if not self.module.globals_bytes:
            return 0
        if memory not in self._variables:
            allocation = memory.allocate(self.module.globals_bytes, "module variables")
            self._variables[memory] = allocation
            data = memory.view(allocation.address, allocation.nbytes)
            for variable in self.module.globals.values():
                end = variable.offset + len(variable.data)
                data[variable.offset : end] = np.frombuffer(variable.data, np.uint8)
        return self._variables[memory].address


def load(
    ptx: str,
    entry: str,
    *,
    name: str = "",
    cache_dir: Path | None = None,
    sanitize: bool = False,
) -> Program:
    """A kernel of a PTX text, compiled for this host or taken from the cache.

    Args:
        ptx: the text.
        entry: the kernel's symbol in it.
        name: how messages call the text, where it has no line information of its own.
        cache_dir: where compiled objects are kept; by default in the user's cache folder.
        sanitize: whether it will run with sanitizers; run the other way, it is compiled again.

    Raises:
        PtxSyntaxError: the text cannot be read.
        UnsupportedInstruction: the kernel has an instruction that is not in the table.
        DeviceError: there is no such kernel, or this host cannot run the emulator.
    """
    module, flow = _read(ptx, entry, name)
    folder = default_cache_directory(CACHE_KIND) if cache_dir is None else cache_dir / CACHE_KIND
    objects = DiskCache(folder)

    def compiled(flavour: bool) -> LoadedKernel:
        return load_kernel(flow, module, ptx, objects, sanitize=flavour)

    program = Program(module, flow, compiled)
    program.prepare(sanitize=sanitize)
    return program


def _read(ptx: str, entry: str, name: str) -> tuple[Module, ControlFlow]:
    module = parse(ptx, name)
    if entry not in module.kernels:
        known = ", ".join(module.kernels) or "none"
        raise DeviceError(f"the PTX has no kernel '{entry}'; it has: {known}")
    return module, ControlFlow.of(module.kernels[entry])


def _check(request: LaunchRequest, flow: ControlFlow) -> None:
    threads = request.block[0] * request.block[1] * request.block[2]
    if min(request.block) < 1 or threads > MAX_THREADS:
        raise DeviceError(f"a block of {request.block} threads: it must have 1 to {MAX_THREADS}")
    limits = zip(request.grid, MAX_GRID, strict=True)
    if any(not 0 <= blocks <= limit for blocks, limit in limits):
        raise DeviceError(f"a grid of {request.grid} blocks: at most {MAX_GRID} are possible")
    wanted = flow.kernel.parameter_bytes
    if len(request.parameters) < wanted:
        raise DeviceError(
            f"kernel '{flow.kernel.name}' takes {wanted} bytes of parameters, not "
            f"{len(request.parameters)}"
        )
