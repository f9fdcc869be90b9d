"""The metrics of a kernel, in sections with Nsight Compute's names."""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.explanation import Figure, Section
from gemmkit.analysis.explain.facts import Facts
from gemmkit.errors import UsageError
from gemmkit.verify.budget import error_budget

_MEMORY: tuple[tuple[str, str, str], ...] = (
    ("Global-load requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", ""),
    ("Global-load sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", ""),
    ("Sectors per load request", derived.SECTORS_PER_REQUEST["load"], ""),
    ("Global-store requests", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", ""),
    ("Sectors per store request", derived.SECTORS_PER_REQUEST["store"], ""),
    ("Global loads per result", derived.GLOBAL_LOADS, "words"),
    ("Of these, the table of groups", derived.TABLE_LOADS, "words"),
    ("Global loads, by formula", derived.GLOBAL_FORMULA, "words"),
    ("Copied by cp.async", derived.ASYNC_SHARE, "%"),
    ("Copied by TMA", derived.TMA_SHARE, "%"),
    ("Shared-memory load instructions", derived.SHARED_LOAD_INSTRUCTIONS, ""),
    ("ldmatrix instructions", derived.MATRIX_LOADS, ""),
    ("stmatrix instructions", derived.MATRIX_STORES, ""),
    ("Shared-memory load wavefronts", derived.SHARED_WAVEFRONTS[0], ""),
    ("Shared-memory store wavefronts", derived.SHARED_WAVEFRONTS[1], ""),
    ("Wavefronts of cp.async", derived.COPY_WAVEFRONTS, ""),
    ("Wavefronts due to bank conflicts", derived.CONFLICT_SHARE, "%"),
    ("Shared loads per result", derived.SHARED_LOADS, "words"),
    ("Shared loads, by formula", derived.SHARED_FORMULA, "words"),
    ("Multiply-adds per shared load", derived.FMA_PER_SHARED_LOAD, ""),
)
_OCCUPANCY: tuple[tuple[str, str, str], ...] = (
    ("Theoretical occupancy", derived.OCCUPANCY, "%"),
    ("Block limit, registers", "launch__occupancy_limit_registers", "blocks"),
    ("Block limit, shared memory", "launch__occupancy_limit_shared_mem", "blocks"),
    ("Block limit, warps", "launch__occupancy_limit_warps", "blocks"),
    ("Block limit, SM", "launch__occupancy_limit_blocks", "blocks"),
    ("Block limit, barriers", "launch__occupancy_limit_barriers", "blocks"),
    ("Results in flight per SM", derived.RESULTS_IN_FLIGHT, ""),
)
_LAUNCH: tuple[tuple[str, str, str], ...] = (
    ("Grid size", "launch__grid_size", "blocks"),
    ("Block size", "launch__block_size", "threads"),
    ("Registers per thread", derived.REGISTERS, ""),
    ("Spilled per thread", derived.SPILLS, "bytes"),
    ("Static shared memory per block", "launch__shared_mem_per_block_static", "bytes"),
    ("Dynamic shared memory per block", "launch__shared_mem_per_block_dynamic", "bytes"),
    ("Stages along k", derived.STAGES, ""),
    ("Results per thread", derived.RESULTS_PER_THREAD, ""),
    ("Waves per SM", derived.WAVES, ""),
    ("Idle in the last wave", derived.TAIL_IDLE, "%"),
)


def sections(facts: Facts, metrics: Mapping[str, float]) -> tuple[Section, ...]:
    """The sections in Nsight Compute's order, without rows that have no value."""
    found = (
        Section(title="GPU Speed Of Light (predicted)", figures=_speed(facts, metrics)),
        Section(title="Memory Workload Analysis", figures=_memory(facts, metrics)),
        Section(title="Occupancy", figures=(*_rows(_OCCUPANCY, metrics), *_limited(facts))),
        Section(title="Launch Statistics", figures=(*_rows(_LAUNCH, metrics), *_before(facts))),
        Section(title="Error bound", figures=_errors(facts)),
    )
    return tuple(section for section in found if section.figures)


def _rows(
    rows: tuple[tuple[str, str, str], ...], metrics: Mapping[str, float]
) -> tuple[Figure, ...]:
    return tuple(
        Figure(label=label, metric=metric, value=metrics[metric], unit=unit)
        for label, metric, unit in rows
        if metric in metrics
    )


def _memory(facts: Facts, metrics: Mapping[str, float]) -> tuple[Figure, ...]:
    """The rows, with the reason where there is no formula for the loads; those of matrices and of
    the TMA only for kernels that use them."""
    some = derived.MATRIX_LOADS, derived.MATRIX_STORES, derived.TMA_SHARE
    unused = {each for each in some if not metrics.get(each)}
    metrics = {name: value for name, value in metrics.items() if name not in unused}
    reason = derived.words_by_formula(facts)
    if not isinstance(reason, str):
        return _rows(_MEMORY, metrics)
    return (*_rows(_MEMORY, metrics), Figure(label="No formula for loads", metric="", value=reason))


def _limited(facts: Facts) -> tuple[Figure, ...]:
    if facts.occupancy is None:
        return ()
    return (Figure(label="Limited by", metric="", value=facts.occupancy.limiter),)


def _before(facts: Facts) -> tuple[Figure, ...]:
    """The launch that comes first, if there is one."""
    before = facts.plan.before
    if before is None:
        return ()
    return (
        Figure(label="Launch before", metric="", value=before.kernel),
        Figure(
            label="Grid size of the launch before", metric="", value=before.blocks, unit="blocks"
        ),
    )


def _errors(facts: Facts) -> tuple[Figure, ...]:
    """What the error bound is made of, of the requested problem."""
    if facts.arithmetic is None:
        return ()
    try:
        parts = error_budget(facts.problem, facts.arithmetic)
    except UsageError:
        # So many roundings leave no digit that is sure to be right.
        return ()
    return tuple(
        Figure(label=each.name, metric=derived.ERROR_PART, value=each.units, unit="u")
        for each in parts
    )


def _speed(facts: Facts, metrics: Mapping[str, float]) -> tuple[Figure, ...]:
    prediction = facts.prediction
    if prediction is None:
        return ()
    rows = (
        ("Duration", derived.MICROSECONDS, "µs"),
        ("Speed", derived.TFLOPS, "TFLOP/s"),
        (f"Of the {prediction.pipe} peak{prediction.pipe.sums}", derived.PEAK_SHARE, "%"),
        ("SMs busy", derived.BUSY, "%"),
        ("Arithmetic intensity, DRAM", f"{derived.INTENSITY}_dram", "FLOP/B"),
        ("Arithmetic intensity, L2", f"{derived.INTENSITY}_l2", "FLOP/B"),
        ("Arithmetic intensity, shared memory", f"{derived.INTENSITY}_shared", "FLOP/B"),
    )
    terms = sorted(prediction.terms, key=lambda term: -term.microseconds)
    return (
        *_rows(rows, metrics),
        Figure(label="Limited by", metric="", value=prediction.limiter),
        *(
            Figure(
                label=f"{term.name[0].upper()}{term.name[1:]}, alone",
                metric=derived.PREDICTED_TERM,
                value=term.microseconds,
                unit="µs",
            )
            for term in terms
        ),
    )
