"""From a kernel's PTX to loaded native code, through a cache of objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from gemmkit.diskcache import DiskCache
from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import WORKER
from gemmkit.emulator.codegen.native import LoadedCode, compile_ir, host, runtime
from gemmkit.emulator.codegen.operands import Action, actions_of
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.warp import WARP_FUNCTION, write_warp
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Module

RUN, RUN_SANITIZED = "gemmkit.run", "gemmkit.sanitized_run"


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds of a kernel: object code and how to run it. Sizes are in bytes."""

    code: bytes
    calls: tuple[str, ...]
    worker_bytes: int
    warp_bytes: int
    scratch_bytes: int
    clears_registers: bool
    outside: dict[int, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that can run; `run` names the runtime's function that runs its blocks."""

    compiled: CompiledKernel
    code: LoadedCode
    areas: Areas
    actions: tuple[Action, ...]
    run: str

    @cached_property
    def orders_blocks(self) -> bool:
        """Whether blocks may make an order among themselves: none can without fences."""
        return any(Ordering.of(action).fence for action in self.actions)

    @property
    def warp_function(self) -> int:
        """The address of the function that runs a warp."""
        return self.code.address(WARP_FUNCTION)


def load_kernel(
    flow: ControlFlow, module: Module, text: str, cache: DiskCache, *, sanitize: bool = False
) -> LoadedKernel:
    """Compile a kernel, or take its object from the cache, and load it.

    With `sanitize` its code tells the sanitizers what it does.

    Raises:
        UnsupportedInstruction: it has an instruction that the emulator cannot execute.
        DeviceError: this host cannot run the emulator.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    flavour = "sanitized" if sanitize else "kernel"
    key = f"{flavour}/{digest}/{flow.kernel.name}/{host().key}"
    actions = actions_of(flow)
    areas = Areas(flow, actions)

    def make() -> bytes:
        return msgspec.msgpack.encode(_compile(flow, module, actions, sanitize))

    compiled = msgspec.msgpack.decode(cache.get_or_create(key, make), type=CompiledKernel)
    run = RUN if not sanitize else RUN_SANITIZED
    runtime().require((*compiled.calls, run), cache)
    return LoadedKernel(compiled, LoadedCode(compiled.code), areas, actions, run)


def _compile(
    flow: ControlFlow, module: Module, actions: tuple[Action, ...], sanitize: bool
) -> CompiledKernel:
    analysis = Analysis(flow, actions, arithmetic.scalar_native)
    code = write_warp(analysis, actions, _symbols(flow, module), sanitize=sanitize)
    return CompiledKernel(
        code=compile_ir(code.text, clean=False),
        calls=code.calls,
        worker_bytes=code.areas.size,
        warp_bytes=code.warp_bytes,
        scratch_bytes=code.scratch_bytes,
        clears_registers=code.clears_registers,
        outside=code.outside,
    )


def _symbols(flow: ControlFlow, module: Module) -> Callable[[Function, str], Value | None]:
    """Addresses of variables: offsets in shared and local memory, sums in global memory."""
    kernel = flow.kernel

    def find(f: Function, name: str) -> Value | None:
        for space in (kernel.shared, kernel.local):
            if name in space:
                return literal("i64", space[name].offset)
        if name not in module.globals:
            return None
        start = f.load("i64", Value("ptr", "%c"), WORKER["globals"])
        return f.add(start, module.globals[name].offset)

    return find
