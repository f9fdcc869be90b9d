"""Compiles a kernel to the object code of its warp function and the data that a launch needs."""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.compiled import CompiledKernel, KernelText
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import REACHES_PEERS, WORKER, counted_wavefronts
from gemmkit.emulator.codegen.native import compile_ir
from gemmkit.emulator.codegen.operands import Action, access_bytes, addresses_parameters
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.polls import polls
from gemmkit.emulator.codegen.runtime.modules import modules_for
from gemmkit.emulator.codegen.tracking import shadows
from gemmkit.emulator.codegen.warp import write_warp
from gemmkit.emulator.isa.cluster import reaches_peers
from gemmkit.emulator.isa.matrix_access import has_rows

# Of how many instructions quick code is combined: that makes the code of small kernels up to twice
# as fast, which spend their time in it, and not that of large ones, of which more is calls of the
# runtime. With sanitizers nearly all the time is spent in the runtime, which is compiled apart.
COMBINED_INSTRUCTIONS = 512

_WORD = 4


def compile_kernel(
    text: KernelText, run: str, *, sanitize: bool, track: bool | None = None, quick: bool = False
) -> CompiledKernel:
    """Compile a kernel; `run` is the runtime function that runs its blocks.

    With `track` the code tracks undefined bits; by default it does with `sanitize` where registers
    or local memory may hold some from the start. `quick` is as for `compile_ir`.

    Raises:
        UnsupportedInstruction: it has an instruction that the emulator cannot execute.
    """
    flow, actions, kernel = text.flow, text.actions, text.flow.kernel
    analysis = Analysis(flow, actions, arithmetic.scalar_native)
    if track is None:
        loads_local = kernel.local_bytes > 0 and any(map(_loads_local, actions))
        track = sanitize and (bool(analysis.unset) or loads_local)
    if track:
        followed = shadows(actions, analysis.unset)
        analysis = Analysis(flow, actions, arithmetic.scalar_native, followed)
    used: set[str] = set()
    compact = sanitize or (quick and len(flow.forms) > COMBINED_INSTRUCTIONS)
    code = write_warp(
        analysis,
        actions,
        _symbols(text, used),
        text.areas.without_patterns(),
        sanitize=sanitize,
        compact=compact,
    )
    return CompiledKernel(
        code=compile_ir(code.text, quick=quick, combine=not compact),
        calls=code.calls,
        modules=tuple(modules_for((*code.calls, run))),
        worker_bytes=code.areas.size,
        warp_bytes=code.warp_bytes,
        scratch_bytes=code.scratch_bytes,
        shared_base=kernel.shared_base,
        shared_bytes=kernel.shared_bytes,
        local_bytes=kernel.local_bytes,
        cluster=kernel.cluster,
        parameter_bytes=kernel.parameter_bytes,
        uses_variables=bool(used),
        addresses_parameters=addresses_parameters(actions, kernel),
        sites_start=code.areas.sites_start,
        counts_as=tuple(_counts_as(text)),
        turn_cost=len(flow.forms),
        exit_block=len(flow.blocks),
        clears_registers=code.clears_registers,
        orders_blocks=any(Ordering.of(action).between_blocks.fence for action in actions),
        polls=any(map(polls, actions)),
        reduces_in_bulk=any(map(_reduces_in_bulk, actions)),
        tracks=track,
        outside=code.outside,
    )


def _reduces_in_bulk(action: Action) -> bool:
    return action.operation in ("bulk_copy", "bulk_tensor") and "O" in action.form.modifiers


def _loads_local(action: Action) -> bool:
    return action.operation == "load" and action.form["S"] in ("local", "")


def _counts_as(text: KernelText) -> list[int]:
    """For each memory instruction, what its shared accesses count as after merging."""
    found = []
    for number in text.areas.sites:
        action = text.actions[number]
        nbytes = text.areas.merging.width.get(number, access_bytes(action))
        start = 0
        if nbytes >= _WORD:
            apart = action.operation != "load" or has_rows(action.form)
            start = nbytes << 32 | counted_wavefronts(nbytes, store=apart)
        found.append(start | REACHES_PEERS * reaches_peers(action.form))
    return found


def _symbols(text: KernelText, used: set[str]) -> Callable[[Function, str], Value | None]:
    """A function that emits the address of a variable or parameter: an offset in shared or local
    memory, or a sum in global memory.

    The module-scope variables that are asked for are added to `used`.
    """
    kernel, variables = text.flow.kernel, text.module.globals

    def find(f: Function, name: str) -> Value | None:
        for space in (kernel.shared, kernel.local):
            if name in space:
                return literal("i64", space[name].offset)
        if name in kernel.parameters:
            start = f.load("i64", Value("ptr", "%c"), WORKER["parameters"])
            return f.add(start, kernel.parameters[name].offset)
        if name not in variables:
            return None
        used.add(name)
        start = f.load("i64", Value("ptr", "%c"), WORKER["globals"])
        return f.add(start, variables[name].offset)

    return find
