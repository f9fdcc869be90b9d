"""From a kernel's PTX to loaded native code, through a cache of objects.

What a launch needs is kept with the object, so that a kernel from the cache runs without its PTX
being parsed; `KernelText` parses it where counts, messages or sanitizers ask for instructions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from gemmkit.diskcache import DiskCache
from gemmkit.emulator.codegen.compiled import WARP_FUNCTION, CompiledKernel, KernelText
from gemmkit.emulator.codegen.native import LoadedCode, host, runtime
from gemmkit.loading import first_use, load

if TYPE_CHECKING:
    from gemmkit.emulator.codegen.areas import Areas
    from gemmkit.emulator.codegen.operands import Action
    from gemmkit.emulator.ptx.cfg import ControlFlow

RUN, RUN_SANITIZED = "gemmkit.run", "gemmkit.sanitized_run"


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that can run; `run` names the runtime's function that runs its blocks."""

    text: KernelText
    compiled: CompiledKernel
    code: LoadedCode
    run: str

    @property
    def flow(self) -> ControlFlow:
        """Its instructions."""
        return self.text.flow

    @property
    def areas(self) -> Areas:
        """Which part of a worker's memory belongs to which instruction."""
        return self.text.areas

    @property
    def actions(self) -> tuple[Action, ...]:
        """What each instruction reads and writes."""
        return self.text.actions

    @property
    def orders_blocks(self) -> bool:
        """Whether blocks may make an order among themselves."""
        return self.compiled.orders_blocks

    @cached_property
    def updates_global(self) -> bool:
        """Whether it has atomics that blocks may share memory by."""
        from gemmkit.emulator.codegen.ordering import ATOMICS, Ordering

        return any(
            each.operation in ATOMICS and Ordering.of(each).between_blocks.strong
            for each in self.actions
        )

    @property
    def follows_blocks(self) -> bool:
        """Whether sanitizers follow what its blocks do one after the other."""
        return self.orders_blocks or self.updates_global

    @cached_property
    def overwrites(self) -> frozenset[int]:
        """The numbers of atomics that write memory without reading it."""
        from gemmkit.emulator.codegen.tracking import overwrites

        return overwrites(self.actions)

    @property
    def warp_function(self) -> int:
        """The address of the function that runs a warp."""
        return self.code.addresses[WARP_FUNCTION]


def load_kernel(
    text: KernelText, cache: DiskCache, *, sanitize: bool = False, track: bool = False
) -> LoadedKernel:
    """Compile a kernel, or take its object from the cache, and load it.

    With `sanitize` its code reports to the sanitizers what it does, with `track` also where it uses
    bits that are not defined.

    Raises:
        PtxSyntaxError: the PTX cannot be read.
        UnsupportedInstruction: it has an instruction that the emulator cannot execute.
        DeviceError: there is no such kernel, or this host cannot run the emulator.
    """
    with first_use():
        return _loaded(text, cache, sanitize=sanitize, track=track)


def _loaded(text: KernelText, cache: DiskCache, *, sanitize: bool, track: bool) -> LoadedKernel:
    digest = hashlib.sha256(text.ptx.encode()).hexdigest()
    flavour = "tracked" if track else "sanitized" if sanitize else "kernel"
    key = f"{flavour}/{digest}/{text.entry}/{host().key}"
    run = RUN if not sanitize else RUN_SANITIZED

    def make() -> bytes:
        load("gemmkit.emulator.codegen.compile", "gemmkit.emulator.ptx.parser")
        from gemmkit.emulator.codegen.compile import compile_kernel

        return msgspec.msgpack.encode(compile_kernel(text, run, sanitize=sanitize, track=track))

    compiled = msgspec.msgpack.decode(cache.get_or_create(key, make), type=CompiledKernel)
    runtime().require(compiled.modules, (*compiled.calls, run), cache)
    return LoadedKernel(text, compiled, LoadedCode(compiled.code, [WARP_FUNCTION]), run)
