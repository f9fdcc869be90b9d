"""Derives metrics from a `Tally`: the table of names, and sums per kernel and per source line.

A name of Nsight Compute stands for the same quantity as there. What PTX cannot tell (executed
machine instructions, caches, time) is not included. Counts of PTX instructions, and of the bytes
that each thread requests (Nsight Compute counts a word that several threads share once), have the
prefix `ptx__`, which no profiler uses.

ptxas merges adjacent accesses to shared memory into wider ones. The metrics of shared memory are
those after merging, by the rule of `counters.merging`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.counters.asynchronous_metrics import ASYNCHRONOUS_METRICS, work_of
from gemmkit.emulator.counters.metric import Basis, Metric
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.tally import Counts, Tally
from gemmkit.emulator.counters.tensor_pipe import tensor_work
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import has_rows
from gemmkit.emulator.ptx.cfg import ControlFlow

OPCODE_CLASSES = (
    *("atomic", "bits", "cache", "compare", "control", "convert", "fma", "fp16", "fp32", "fp64"),
    *("integer", "load", "move", "special", "store", "synchronize", "tensor", "warp"),
)
_GLOBAL_LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
_GLOBAL_STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"

METRICS: tuple[Metric, ...] = (
    Metric(_GLOBAL_LOADS, "global-load requests of warps, cp.async included", Basis.EXACT,
           "requests", "global read"),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
           "32-byte sectors of global loads and cp.async", Basis.EXACT, "sectors", "global read"),
    Metric("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
           "sectors per global-load request", Basis.EXACT, "sectors", "global read",
           per=_GLOBAL_LOADS),
    Metric("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum",
           "bytes of the sectors of global loads and cp.async", Basis.EXACT, "sectors",
           "global read", scale=SECTOR_BYTES),
    Metric("l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_ld.sum",
           "wavefronts of the L1's tag stage for global loads and cp.async", Basis.WARM,
           "tag_wavefronts", "global read"),
    Metric("ptx__data_bytes_mem_global_op_ld.sum",
           "bytes that threads requested in global loads, without cp.async", Basis.PTX,
           "data_bytes", "global load"),
    Metric("smsp__inst_executed_op_ldgsts.sum",
           "cp.async instructions executed by warps", Basis.EXACT, "executed", "global copy"),
    Metric("smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
           "requests of warps for cp.async.ca, through the L1 cache", Basis.EXACT, "requests",
           "global copy ca"),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
           "32-byte sectors of cp.async.ca", Basis.EXACT, "sectors", "global copy ca"),
    Metric("smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
           "requests of warps for cp.async.cg, bypassing the L1 cache", Basis.EXACT, "requests",
           "global copy cg"),
    Metric("smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
           "32-byte sectors of cp.async.cg", Basis.EXACT, "sectors", "global copy cg"),
    Metric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
           "wavefronts of the banks of the L1 and of shared memory that cp.async needs",
           Basis.COPIED, "wavefronts", "global copy"),
    Metric("ptx__data_bytes_mem_global_op_ldgsts.sum",
           "bytes that threads requested by cp.async", Basis.PTX, "data_bytes",
           "global copy"),
    Metric(_GLOBAL_STORES, "global-store requests of warps", Basis.EXACT, "requests",
           "global store"),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
           "32-byte sectors of global stores", Basis.EXACT, "sectors", "global store"),
    Metric("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
           "sectors per global-store request", Basis.EXACT, "sectors", "global store",
           per=_GLOBAL_STORES),
    Metric("l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum",
           "bytes of the sectors of global stores", Basis.EXACT, "sectors", "global store",
           scale=SECTOR_BYTES),
    Metric("l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_st.sum",
           "wavefronts of the L1's tag stage for global stores", Basis.WARM,
           "tag_wavefronts", "global store"),
    Metric("ptx__data_bytes_mem_global_op_st.sum",
           "bytes that threads wrote in global stores", Basis.PTX, "data_bytes",
           "global store"),
    Metric("smsp__sass_inst_executed_op_shared_ld.sum",
           "shared-memory loads executed by warps", Basis.MERGED, "own_requests", "shared load"),
    Metric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
           "wavefronts that the addresses of shared-memory loads need", Basis.MERGED,
           "wavefronts", "shared load"),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
           "wavefronts of shared memory for shared-memory loads", Basis.PATTERN, "wavefronts",
           "shared read"),
    Metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
           "wavefronts that bank conflicts add to shared-memory loads", Basis.PATTERN, "conflicts",
           "shared read"),
    Metric("ptx__data_bytes_mem_shared_op_ld.sum",
           "bytes that threads requested in shared-memory loads", Basis.PTX, "data_bytes",
           "shared read"),
    Metric("smsp__sass_inst_executed_op_ldsm.sum",
           "ldmatrix instructions executed by warps, also for wmma", Basis.EXACT, "requests",
           "shared matrix load"),
    Metric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum",
           "wavefronts that the rows of ldmatrix need", Basis.EXACT, "wavefronts",
           "shared matrix load"),
    Metric("smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
           "wavefronts that bank conflicts add to ldmatrix", Basis.EXACT, "conflicts",
           "shared matrix load"),
    Metric("smsp__sass_inst_executed_op_shared_st.sum",
           "shared-memory stores executed by warps", Basis.MERGED, "own_requests", "shared store"),
    Metric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
           "wavefronts that the addresses of shared-memory stores need", Basis.MERGED,
           "wavefronts", "shared store"),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
           "wavefronts of shared memory for shared-memory stores", Basis.PATTERN, "wavefronts",
           "shared write"),
    Metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
           "wavefronts that bank conflicts add to shared-memory stores", Basis.PATTERN, "conflicts",
           "shared write"),
    Metric("ptx__data_bytes_mem_shared_op_st.sum",
           "bytes that threads wrote in shared-memory stores", Basis.PTX, "data_bytes",
           "shared write"),
    Metric("smsp__sass_inst_executed_op_shared_stsm.sum",
           "stmatrix instructions executed by warps", Basis.EXACT, "requests",
           "shared matrix store"),
    Metric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_stsm.sum",
           "wavefronts that the rows of stmatrix need", Basis.EXACT, "wavefronts",
           "shared matrix store"),
    Metric("smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_stsm.sum",
           "wavefronts that bank conflicts add to stmatrix", Basis.EXACT, "conflicts",
           "shared matrix store"),
    *ASYNCHRONOUS_METRICS,
    Metric("ptx__branches_divergent.sum", "branches at which the threads of a warp diverged",
           Basis.PTX, "divergent", "all"),
    Metric("ptx__inst_executed.sum", "PTX instructions executed by warps", Basis.PTX, "executed",
           "all"),
    Metric("ptx__thread_inst_executed.sum",
           "PTX instructions executed by threads whose guard holds",
           Basis.PTX, "lanes", "all"),
    *(
        Metric(f"ptx__inst_executed_op_{each}.sum",
               f"PTX instructions of class '{each}' executed by warps", Basis.PTX, "executed",
               each)
        for each in OPCODE_CLASSES
    ),
)  # fmt: skip


def access(form: Form, generic: str = "global") -> str | None:
    """The kind of memory access of a form, such as `global load`; None if it makes none.

    `generic` is the space of an access whose opcode names none. cp.async is a `global copy ca` or
    `cg`, by its caching; ldmatrix is a `shared matrix load`.
    """
    if form.operation == "copy_async":
        return f"global copy {form['C']}"
    if form.operation not in ("load", "store", "atomic", "compare_and_swap", "reduction"):
        return None
    space = form.modifiers.get("S", "").removesuffix("::cta") or generic
    kind = "atomic" if form.operation == "compare_and_swap" else form.operation
    return f"{space} matrix {kind}" if has_rows(form) else f"{space} {kind}"


def groups(form: Form, generic: str = "global") -> tuple[str, ...]:
    """Every value of `of` that includes a form; `generic` as for `access`."""
    kind = access(form, generic)
    found = ("all", form.opcode_class, *work_of(form))
    if kind is None:
        return found
    general = kind.removesuffix(" ca").removesuffix(" cg")
    return (*found, *{kind, general}, *_INCLUDED_IN.get(general, ()))


# Some of the hardware's counters include several kinds of accesses.
_INCLUDED_IN = {
    **dict.fromkeys(("global load", "global copy"), ("global read",)),
    **dict.fromkeys(("shared load", "shared matrix load"), ("shared read",)),
    **dict.fromkeys(("shared store", "shared matrix store"), ("shared write",)),
}


def counts_of(flow: ControlFlow, tally: Tally) -> dict[str, Counts]:
    """The fields of the tally and what follows from them, for each instruction.

    `own_requests` are those without a lane that accesses a peer's shared memory; the others are
    what matrix products ask of the tensor pipe.
    """
    work = [tensor_work(form) for form in flow.forms]
    instructions, operations, sixteenths, shared_bytes = (
        np.array([getattr(each, name, 0) for each in work], np.int64)
        for name in ("instructions", "operations", "wavefront_sixteenths", "shared_bytes")
    )
    return {
        **{each.name: getattr(tally, each.name) for each in fields(tally)},
        "own_requests": tally.requests - tally.peer_requests,
        "tensor_instructions": tally.executed * instructions,
        "tensor_operations": tally.executed * operations,
        "matrix_wavefronts": tally.executed * sixteenths // 16,
        "matrix_bytes": tally.executed * shared_bytes,
    }


def summarise(flow: ControlFlow, tally: Tally) -> dict[str, float]:
    """All metrics of a launch, in the order of `METRICS`."""
    return _metrics(flow, tally, np.zeros(len(flow.forms), np.int64), 1)[0]


def summarise_lines(flow: ControlFlow, tally: Tally) -> dict[tuple[str, int], dict[str, float]]:
    """All metrics for each source line (file, line) of a kernel compiled with line information."""
    at = [
        None if instruction.source is None else (instruction.source.file, instruction.source.line)
        for instruction in flow.kernel.body
    ]
    lines = sorted({line for line in at if line is not None})
    rows = {line: row for row, line in enumerate(lines)}
    # Instructions without a line are added up in a row of their own, which is left out.
    of = np.array([len(lines) if line is None else rows[line] for line in at], np.int64)
    return dict(zip(lines, _metrics(flow, tally, of, len(lines) + 1), strict=False))


def _metrics(
    flow: ControlFlow, tally: Tally, rows: NDArray[np.int64], count: int
) -> list[dict[str, float]]:
    """The metrics of `count` sets of instructions; `rows` is the set of each instruction."""
    # All accesses of an instruction with generic addresses are taken to be to one space.
    in_shared = (tally.wavefronts > 0) | (tally.peer_requests > 0)
    members = _members(flow, (in_shared & (tally.sectors == 0)).tobytes())
    counts = counts_of(flow, tally)
    sums: dict[str, Sequence[float]] = {}
    for metric in METRICS:
        total = np.zeros(count, np.int64)
        if metric.of in members:
            numbers = members[metric.of]
            of_each = counts[metric.count][numbers]
            if count == 1:
                total[0] = of_each.sum()
            else:
                np.add.at(total, rows[numbers], of_each)
        found = sums[metric.name] = (total * metric.scale).tolist()
        if metric.per is not None:
            pairs = zip(found, sums[metric.per], strict=True)
            sums[metric.name] = [part / whole if whole else 0.0 for part, whole in pairs]
    return [dict(zip(sums, row, strict=True)) for row in zip(*sums.values(), strict=True)]


# A launch asks twice, for all of the kernel and for each line.
@lru_cache(maxsize=2)
def _members(flow: ControlFlow, only_shared: bytes) -> dict[str, NDArray[np.intp]]:
    """The instructions of each group; `only_shared` holds a byte for each instruction, 1 where all
    of its accesses were to shared memory."""
    of: dict[tuple[int, int], tuple[str, ...]] = {}
    chosen: defaultdict[str, list[int]] = defaultdict(list)
    for number, (form, shared) in enumerate(zip(flow.forms, only_shared, strict=True)):
        key = id(form), shared
        if key not in of:
            of[key] = groups(form, "shared" if shared else "global")
        for group in of[key]:
            chosen[group].append(number)
    return {group: np.array(numbers, np.intp) for group, numbers in chosen.items()}
