"""`Program`: a kernel ready to run on the emulator."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from gemmkit.diskcache import DiskCache, default_cache_directory
from gemmkit.emulator.codegen.compiled import CompiledKernel, KernelText
from gemmkit.emulator.codegen.kernel import LoadedKernel, load_kernel
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine import scheduler
from gemmkit.emulator.machine.memory import Allocation, DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.names import kernel_name, source_name
from gemmkit.errors import DeviceError

if TYPE_CHECKING:
    from gemmkit.emulator.counters.accesses import Accesses
    from gemmkit.emulator.oracle.chunk import Watcher
    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.ptx.module import Kernel, Module
    from gemmkit.emulator.sanitized_runs import SanitizedRuns
    from gemmkit.emulator.schedule import Schedule
    from gemmkit.emulator.watching import SharedContent, Watched

CACHE_KIND = "objects"

# Once a kernel has run for so long, compiling it anew for speed takes less time than that saves.
QUICK_SECONDS = 2.0


class Program:
    """One kernel, compiled when it is needed.

    Args:
        text: the kernel.
        objects: the cache of compiled objects.
        sanitize: whether its first run uses the sanitizers.
    """

    def __init__(self, text: KernelText, objects: DiskCache, *, sanitize: bool = False) -> None:
        self._text, self._sanitize = text, sanitize
        self._load = cache(partial(load_kernel, text, objects))
        self._variables: WeakKeyDictionary[DeviceMemory, Allocation] = WeakKeyDictionary()
        # Workers of finished launches, by their code and the shape of their blocks.
        self._spare: dict[tuple[int, ...], list[Worker]] = {}
        self._sanitized_runs: SanitizedRuns | None = None
        # The names of variables that the host sets.
        self._set: set[str] = set()
        # How long it has run, without sanitizers.
        self._seconds = 0.0
        self._objects = objects

    @cached_property
    def shared_bytes(self) -> int:
        """The static shared memory of a block."""
        kernel = self._load(sanitize=True) if self._sanitize else self._plain()
        return kernel.compiled.shared_bytes

    def _plain(self) -> LoadedKernel:
        """The kernel without sanitizers: compiled quickly at first, and for speed if it is worth
        it."""
        return self._load(quick=self._seconds < QUICK_SECONDS)

    @property
    def module(self) -> Module:
        """The parsed PTX text."""
        return self._text.module

    @property
    def flow(self) -> ControlFlow:
        """Its instructions; counts refer to them by number."""
        return self._text.flow

    @cached_property
    def with_stops(self) -> Program:
        """The same kernel, compiled so that its warps can follow a schedule."""
        found = Program(self._text.with_stops(), self._objects, sanitize=self._sanitize)
        found._variables = self._variables
        return found

    @cached_property
    def accesses(self) -> Accesses:
        """Its memory instructions; they give the counts of a launch's tally."""
        from gemmkit.emulator.counters.accesses import Accesses

        return Accesses(self.flow)

    def run(
        self,
        request: LaunchRequest,
        memory: DeviceMemory,
        *,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
        max_steps: int | None = None,
        warp_seed: int = 0,
        sanitize: bool = False,
        schedule: Schedule | None = None,
        interleavings: bool = False,
    ) -> Execution:
        """Run all blocks and wait.

        Args:
            request: grid, block, parameters.
            memory: all memory that the kernel may access besides its shared and local memory.
            threads: host threads, by default one per core; results and counts are the same for any
                number. Blocks that synchronize with each other run on one, in order.
            progress: called now and then with the fraction of blocks done.
            max_steps: warp instructions, counted in loops, after which a block that has not ended
                counts as endless.
            warp_seed: shuffles the order in which the warps of a block take turns, the same way for
                the same seed (0 to 2^31 - 1); with 0 they run in the order of their numbers.
            sanitize: look for faults; they are the `findings` of the result.
            schedule: what the warps and copies of one block, or of its cluster, do first, and in
                which order.
            interleavings: also find the shortest order of execution in which each finding about the
                order of an asynchronous kernel goes wrong, by running its block or cluster once
                more.

        Raises:
            DeviceError: a bad launch, a schedule that is not possible; unless sanitizing, also a
                bad access, a deadlock, an endless kernel, a trap.
        """
        if schedule is not None and not self._text.stops:
            return self.with_stops.run(
                request,
                memory,
                progress=progress,
                max_steps=max_steps,
                sanitize=sanitize,
                schedule=schedule,
                interleavings=interleavings,
            )
        kernel = self._load(sanitize=True) if sanitize else self._plain()
        request = self._checked(request, kernel.compiled)
        if 0 in request.grid:
            return scheduler.empty_execution(self.flow)
        addressed = kernel.compiled.addresses_parameters
        with request.resident(memory, addressed=addressed) as request:
            run = partial(
                scheduler.run,
                request=request,
                memory=memory,
                globals_at=self._variables_of(kernel, memory),
                threads=threads,
                progress=progress,
                max_steps=max_steps,
                warp_seed=warp_seed,
                schedule=schedule,
            )
            if sanitize:
                return self._run_sanitized(run, kernel, request, memory, interleavings)
            execution = run(kernel)
        self._seconds += execution.seconds
        return execution

    def execute(
        self,
        request: LaunchRequest,
        memory: DeviceMemory,
        *,
        threads: int | None = None,
        max_steps: int | None = None,
        only: range | None = None,
    ) -> None:
        """Run all blocks, or `only` those with these numbers (x fastest), and wait, as `run` does,
        for their results: nothing is counted.

        Raises:
            DeviceError: as `run`, when it does not look for faults.
        """
        kernel = self._plain()
        request = self._checked(request, kernel.compiled)
        if 0 in request.grid:
            return
        if only is not None and request.cluster_blocks > 1:
            raise DeviceError("blocks of a cluster run together, not one by one")
        shape = (kernel.warp_function, *request.block, request.shared_bytes)
        started = time.perf_counter()
        addressed = kernel.compiled.addresses_parameters
        with request.resident(memory, addressed=addressed) as request:
            scheduler.execute(
                kernel,
                request,
                memory,
                self._variables_of(kernel, memory),
                self._spare.setdefault(shape, []),
                threads=threads,
                max_steps=max_steps,
                only=only,
            )
        self._seconds += time.perf_counter() - started

    def set_variable(self, memory: DeviceMemory, name: str, data: bytes) -> None:
        """Set a module-scope variable from its start, as `cudaMemcpyToSymbol` does.

        Raises:
            DeviceError: the kernel has no variable of that symbol, or a smaller one.
        """
        variable = self.module.globals.get(name)
        if variable is None or len(data) > variable.size:
            if variable is None:
                raise DeviceError(f"the kernel has no variable '{name}'")
            raise DeviceError(f"the kernel's variable '{name}' has only {variable.size} bytes")
        self._set.add(source_name(name))
        start = self._variables_in(memory) + variable.offset
        memory.view(start, len(data))[:] = np.frombuffer(data, np.uint8)

    def prepare(self, *, sanitize: bool) -> None:
        """Compile the kernel, with or without sanitizers, before it runs.

        Raises:
            PtxSyntaxError: the text cannot be read.
            UnsupportedInstruction: it has an instruction that the emulator cannot execute.
            DeviceError: this host cannot run the emulator.
        """
        if sanitize:
            self._load(sanitize=True)
        else:
            self._plain()

    def _checked(self, request: LaunchRequest, kernel: CompiledKernel | Kernel) -> LaunchRequest:
        """The request with the kernel's clusters.

        Raises:
            DeviceError: the kernel cannot be launched so.
        """
        name = kernel_name(self._text.entry)
        return request.checked(name, kernel.parameter_bytes).in_clusters(kernel.cluster, name)

    @property
    def _sanitized(self) -> SanitizedRuns:
        """The runs with the sanitizers."""
        if self._sanitized_runs is None:
            from gemmkit.emulator.sanitized_runs import SanitizedRuns

            variables = {source_name(name): each for name, each in self.module.globals.items()}
            self._sanitized_runs = SanitizedRuns(self._load, self.flow, variables, self._set)
        return self._sanitized_runs

    def _run_sanitized(
        self,
        run: Callable[..., Execution],
        kernel: LoadedKernel,
        request: LaunchRequest,
        memory: DeviceMemory,
        interleavings: bool,
    ) -> Execution:
        """Run with sanitizers, and again for what else there is to say."""
        sanitized = self._sanitized
        found, before, explains = sanitized.run(run, kernel, request, memory)
        kept = self._kept_variables(memory)
        execution = sanitized.decide_flags(run, kernel, found, before, request, memory, kept)
        if interleavings and explains and execution.findings:
            program = self.with_stops if not self._text.stops else self
            return program._sanitized.explain(run, execution, before, request, memory)
        # Else a second launch has been made.
        if interleavings and kept and not found.findings:
            return sanitized.launch_again(run, execution, before, request, memory, kept)
        return execution

    def _kept_variables(self, memory: DeviceMemory) -> dict[str, Allocation]:
        """The module's variables, in a memory, that kernels may write and that the host does not
        set."""
        start = self._variables_in(memory)
        found = {}
        for name, each in self.module.globals.items():
            own = source_name(name)
            if not each.constant and own not in self._set and each.size:
                found[own] = Allocation(start + each.offset, each.size, own)
        return found

    def watch(self, request: LaunchRequest, memory: DeviceMemory, blocks: range) -> Watched:
        """Run some blocks on the oracle and return what their warps access, in order; results need
        not be right. Blocks that wait for others run until then.

        Raises:
            DeviceError: a bad launch or access, a deadlock, a trap.
        """
        from gemmkit.emulator.oracle.repeats import PolledInVain
        from gemmkit.emulator.oracle.watch import Watch
        from gemmkit.emulator.watching import Watched

        watch = Watch(self.flow, memory)
        with suppress(PolledInVain):
            self._run_watched(request, memory, blocks, watch)
        return Watched(tuple(watch.accesses), tuple(watch.copies), tuple(watch.signals))

    def read_shared(
        self, request: LaunchRequest, memory: DeviceMemory, block: int, barriers: int
    ) -> SharedContent:
        """Run a block on the oracle until its warps have arrived at so many barriers, and return
        what its shared memory holds; 0 stands for the block's end, or where it waits for others.

        Raises:
            DeviceError: a bad launch or access, a deadlock, a trap.
        """
        from gemmkit.emulator.oracle.repeats import PolledInVain
        from gemmkit.emulator.oracle.shared_reading import Reached, SharedReading
        from gemmkit.emulator.watching import SharedContent

        reading, kernel = SharedReading(block, barriers), self.flow.kernel
        with suppress(Reached, PolledInVain):
            self._run_watched(request, memory, range(block, block + 1), reading)
        end = kernel.shared_base + kernel.shared_bytes + request.shared_bytes
        variables = {
            # An `extern` array, which has no size of its own, takes what is left.
            source_name(name): (each.offset, each.size or end - each.offset)
            for name, each in kernel.shared.items()
        }
        return SharedContent(kernel.shared_base, reading.data, variables)

    def _run_watched(
        self, request: LaunchRequest, memory: DeviceMemory, blocks: range, watch: Watcher
    ) -> None:
        from gemmkit.emulator import oracle

        request = self._checked(request, self.flow.kernel)
        base = self._variables_in(memory)
        symbols = {name: base + each.offset for name, each in self.module.globals.items()}
        oracle.run(self.flow, request, memory, symbols, only=blocks, watch=watch)

    def _variables_of(self, kernel: LoadedKernel, memory: DeviceMemory) -> int:
        return self._variables_in(memory) if kernel.compiled.uses_variables else 0

    def _variables_in(self, memory: DeviceMemory) -> int:
        """The address of the module's variables, which keep their values between launches."""
        variables = self.module.globals
        if not variables:
            return 0
        if memory not in self._variables:
            allocation = memory.allocate(self.module.globals_bytes, "module variables")
            self._variables[memory] = allocation
            for each in variables.values():
                start = allocation.address + each.offset
                memory.view(start, len(each.data))[:] = np.frombuffer(each.data, np.uint8)
            memory.divide(
                allocation,
                (
                    Allocation(allocation.address + each.offset, each.size, source_name(name))
                    for name, each in variables.items()
                    if each.size
                ),
            )
        return self._variables[memory].address


def load(
    ptx: str,
    entry: str,
    *,
    name: str = "",
    cache_dir: Path | None = None,
    sanitize: bool = False,
    capability: tuple[int, int] | None = None,
) -> Program:
    """A kernel of a PTX text, compiled for this host or taken from the cache.

    Args:
        ptx: the text.
        entry: the kernel's symbol in it.
        name: the name of the text in messages, if it has no line information of its own.
        cache_dir: where compiled objects are kept; by default in the user's cache folder.
        sanitize: whether it first runs with sanitizers; to run it the other way compiles it again.
        capability: compute capability of the board that it runs on, which decides how tensor cores
            round; by default that of the PTX's target.
    """
    folder = default_cache_directory(CACHE_KIND) if cache_dir is None else cache_dir / CACHE_KIND
    text = KernelText.of(ptx, entry, name, capability)
    program = Program(text, DiskCache(folder), sanitize=sanitize)
    program.prepare(sanitize=sanitize)
    return program
