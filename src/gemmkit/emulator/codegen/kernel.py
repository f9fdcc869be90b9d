"""Loads a kernel's native code, from the cache if it was compiled before.

The data that a launch needs is cached with the object, so that a cached kernel runs without parsing
its PTX; `KernelText` parses it if counts, messages or sanitizers need the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from gemmkit.decoding import from_msgpack
from gemmkit.diskcache import DiskCache
from gemmkit.emulator.codegen.compiled import WARP_FUNCTION, CompiledKernel, KernelText
from gemmkit.emulator.codegen.native import LoadedCode, host, runtime
from gemmkit.loading import first_use, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemmkit.emulator.codegen.areas import Areas
    from gemmkit.emulator.codegen.flag_tests import FlagWait
    from gemmkit.emulator.codegen.operands import Action
    from gemmkit.emulator.ptx.cfg import ControlFlow

RUN, RUN_SANITIZED = "gemmkit.run", "gemmkit.sanitized_run"


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that is ready to run; `run` names the runtime function that runs its blocks."""

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
        """The offsets of each instruction's data in a worker's buffer."""
        return self.text.areas

    @property
    def actions(self) -> tuple[Action, ...]:
        """What each instruction reads and writes."""
        return self.text.actions

    @property
    def orders_blocks(self) -> bool:
        """Whether its blocks may synchronize with each other."""
        return self.compiled.orders_blocks

    @cached_property
    def updates_global(self) -> bool:
        """Whether it has atomics, or bulk reductions, through which blocks may share global
        memory."""
        from gemmkit.emulator.codegen.ordering import ATOMICS, Ordering

        return self.compiled.reduces_in_bulk or any(
            each.operation in ATOMICS and Ordering.of(each).between_blocks.strong
            for each in self.actions
        )

    @cached_property
    def mixes_stores(self) -> bool:
        """Whether it writes global memory both by bulk copies and by ordinary stores."""
        from gemmkit.emulator.codegen.addresses import space_of

        bulk = any(
            each.operation in ("bulk_copy", "bulk_tensor") and each.form["D"] == "global"
            for each in self.actions
        )
        return bulk and any(
            each.operation == "store" and space_of(each) in ("global", "generic")
            for each in self.actions
        )

    @cached_property
    def has_fences(self) -> bool:
        """Whether it has fences, by themselves or as part of an access."""
        from gemmkit.emulator.codegen.ordering import Ordering

        return any(Ordering.of(each).fence for each in self.actions)

    @cached_property
    def orders_within_blocks(self) -> bool:
        """Whether it has fences or strong accesses that order the warps of a block alone."""
        from gemmkit.emulator.codegen.ordering import Ordering

        roles = map(Ordering.of, self.actions)
        return any(each.in_block and (each.strong or each.fence) for each in roles)

    @cached_property
    def flag_waits(self) -> Mapping[int, FlagWait]:
        """The loads of flags by which threads wait, by the number of the instruction."""
        from gemmkit.emulator.codegen.flag_waits import flag_waits

        return flag_waits(self.flow, self.actions)

    @cached_property
    def data_loads(self) -> frozenset[int]:
        """The numbers of the volatile and relaxed loads of data that flags may announce."""
        from gemmkit.emulator.codegen.data_loads import data_loads

        return data_loads(self.flow, self.actions, self.flag_waits)

    @cached_property
    def strong_in_global(self) -> bool:
        """Whether plain accesses to global memory may race with others than plain ones: atomics, or
        volatile and relaxed stores of blocks that synchronize, or loads of data of that kind."""
        from gemmkit.emulator.codegen.ordering import Ordering

        stores = self.orders_blocks and any(
            each.operation == "store" and Ordering.of(each).between_blocks.strong
            for each in self.actions
        )
        return stores or self.updates_global or bool(self.data_loads)

    @property
    def follows_blocks(self) -> bool:
        """Whether the sanitizers track its blocks one after the other."""
        return self.orders_blocks or self.updates_global or bool(self.data_loads)

    @cached_property
    def overwrites(self) -> frozenset[int]:
        """The numbers of the atomics that write memory without reading it."""
        from gemmkit.emulator.codegen.tracking import overwrites

        return overwrites(self.actions)

    @property
    def warp_function(self) -> int:
        """The address of the function that runs a warp."""
        return self.code.addresses[WARP_FUNCTION]


def load_kernel(
    text: KernelText,
    cache: DiskCache,
    *,
    sanitize: bool = False,
    track: bool | None = None,
    quick: bool = False,
) -> LoadedKernel:
    """Load a kernel from the cache, or compile it.

    With `sanitize` its code reports to the sanitizers; with `track` it also reports uses of
    undefined bits, by default where registers or local memory may hold some from the start. With
    `quick` it is compiled in a quarter of the time, unless the cache has faster code.

    Raises:
        PtxSyntaxError: the PTX cannot be read.
        UnsupportedInstruction: it has an instruction that the emulator cannot execute.
        DeviceError: there is no such kernel, or this host cannot run the emulator.
    """
    with first_use():
        return _loaded(text, cache, sanitize=sanitize, track=track, quick=quick)


def _loaded(
    text: KernelText, cache: DiskCache, *, sanitize: bool, track: bool | None, quick: bool
) -> LoadedKernel:
    kernel = f"{text.key}/{host().key}"
    run = RUN if not sanitize else RUN_SANITIZED
    # With sanitizers most of the time is spent in the runtime, which is compiled apart.
    quick = quick or sanitize
    if sanitize:
        flavour = {None: "sanitized", False: "untracked", True: "tracked"}[track]
    else:
        flavour = "quick" if quick else "kernel"
    faster = cache.get(f"kernel/{kernel}") if flavour == "quick" else None

    def make() -> bytes:
        load("gemmkit.emulator.codegen.compile", "gemmkit.emulator.ptx.parsed")
        from gemmkit.emulator.codegen.compile import compile_kernel

        compiled = compile_kernel(text, run, sanitize=sanitize, track=track, quick=quick)
        return msgspec.msgpack.encode(compiled)

    data = faster or cache.get_or_create(f"{flavour}/{kernel}", make)
    compiled = from_msgpack(data, CompiledKernel)
    runtime().require(compiled.modules, (*compiled.calls, run), cache)
    return LoadedKernel(text, compiled, LoadedCode(compiled.code, [WARP_FUNCTION]), run)
