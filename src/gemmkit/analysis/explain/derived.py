"""Metrics besides the emulator's counters: launch, occupancy, loads per result, predictions.

Nsight Compute's names have the same meaning as there; gemmkit's own start with `gemmkit__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemmkit.analysis import roofline
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.loads import (
    GLOBAL_BYTES,
    GLOBAL_REQUESTS,
    SHARED_BYTES,
    TMA_BYTES,
    WORD_BYTES,
    count_loads,
)
from gemmkit.analysis.occupancy import Limiter
from gemmkit.analysis.roofline import Level, intensities
from gemmkit.gpu import WARP_SIZE
from gemmkit.kernels.loads import Words
from gemmkit.kernels.plan import OFFSETS, TABLE_ARGUMENTS

STATIC = "static: from the compiler, the launch and the board's limits"
COUNTED = "derived from counters, and as exact as they are"
FORMULA = "by formula, for any sizes; without what the epilogue and a table of groups take"
BOUND = "by rounding error analysis, for any order of summation"
PREDICTED = "predicted by a model of the board, neither counted nor measured"

OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
TAIL_IDLE = "gemmkit__last_wave_idle_pct"
GLOBAL_LOADS = "gemmkit__global_loads_per_result"
SHARED_LOADS = "gemmkit__shared_loads_per_result"
TABLE_LOADS = "gemmkit__table_loads_per_result"
GLOBAL_FORMULA = f"{GLOBAL_LOADS}_by_formula"
SHARED_FORMULA = f"{SHARED_LOADS}_by_formula"
STAGES = "gemmkit__stages"
RESULTS_PER_THREAD = "gemmkit__results_per_thread"
RESULTS_IN_FLIGHT = "gemmkit__results_in_flight_per_sm"
FMA_PER_SHARED_LOAD = "gemmkit__fma_per_shared_load"
GLOBAL_WIDTH = "gemmkit__bytes_per_lane_global_op_ld"
SHARED_WIDTH = "gemmkit__bytes_per_lane_shared_op_ld"
CONFLICT_SHARE = "gemmkit__bank_conflict_share_pct"
ASYNC_SHARE = "gemmkit__cp_async_share_pct"
TMA_SHARE = "gemmkit__tma_share_pct"
INSTRUCTIONS_PER_FMA = "gemmkit__ptx_inst_per_fma"
SPILLS = "gemmkit__spill_bytes_per_thread"
TFLOPS = "gemmkit__predicted_tflops"
MICROSECONDS = "gemmkit__predicted_time_us"
PEAK_SHARE = "gemmkit__predicted_peak_pct"

BUSY = "gemmkit__predicted_busy_sm_pct"
PREDICTED_TERM = "gemmkit__predicted_term_us"
ERROR_PART = "gemmkit__error_bound_part_u"
IDEAL_SECTORS = "gemmkit__ideal_sectors_per_request"

SECTORS_PER_REQUEST = {
    "load": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
}
INTENSITY = "gemmkit__predicted_flop_per_byte"
SHARED_LOAD_INSTRUCTIONS = "smsp__sass_inst_executed_op_shared_ld.sum"
MATRIX_LOADS = "smsp__sass_inst_executed_op_ldsm.sum"
MATRIX_STORES = "smsp__sass_inst_executed_op_shared_stsm.sum"
SHARED_WAVEFRONTS = roofline.SHARED_WAVEFRONTS
COPY_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"
SHARED_CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
)
FMA = "ptx__inst_executed_op_fma.sum"
SHARED_LOAD_COUNT = "smsp__sass_inst_executed_op_shared_ld.sum"
# The array of the table of groups.
TABLES = (TABLE_ARGUMENTS[0], OFFSETS)
_INSTRUCTIONS = "ptx__inst_executed.sum"


@dataclass(frozen=True, slots=True)
class Derived:
    """A metric and its definition; `value` returns None if it does not apply."""

    name: str
    description: str
    basis: str
    value: Callable[[Facts], float | None]


def _ratio(numerator: float, denominator: float, scale: float = 1.0) -> float | None:
    return scale * numerator / denominator if denominator else None


def _counter(facts: Facts, *metrics: str) -> float:
    return sum(facts.counters.get(metric, 0.0) for metric in metrics)


def _limit(limiter: Limiter) -> Callable[[Facts], float | None]:
    return lambda facts: facts.occupancy.limits[limiter] if facts.occupancy else None


def _barrier_limit(facts: Facts) -> float | None:
    """As in Nsight Compute: never more than the board's blocks per SM."""
    if facts.occupancy is None:
        return None
    return min(facts.occupancy.limits["barriers"], facts.occupancy.limits["blocks"])


def _stages(facts: Facts) -> float | None:
    fewer = facts.plan.fewer_stages
    return facts.config.as_dict().get("stages") if fewer is None else fewer.number


def _results_per_thread(facts: Facts) -> float | None:
    if not facts.plan.blocks:
        return None
    each = facts.kernel.work(facts.problem, facts.config, facts.gpu).results_per_thread
    # The work of a user's kernel is that of its grid, whose blocks may take several tiles in turn.
    if facts.kernel.user_defined and facts.profile is not None:
        return each / facts.profile.tiles
    return each


def _results_in_flight(facts: Facts) -> float | None:
    each = _results_per_thread(facts)
    if facts.occupancy is None or each is None:
        return None
    return facts.occupancy.blocks_per_sm * facts.plan.threads_per_block * each


def _loads(facts: Facts, kind: str) -> float | None:
    loads = count_loads(facts.counters, facts.counted.results)
    return getattr(loads, f"{kind}_per_result") if loads is not None else None


def _table_loads(facts: Facts) -> float | None:
    """Of the array `groups`, or of where ragged ones end, where the launch has a table of them."""
    if facts.plan.table is None:
        return None
    read = sum(each.data_bytes for each in facts.of("global", "load") if each.array in TABLES)
    return _ratio(read / WORD_BYTES, facts.counted.results)


def words_by_formula(facts: Facts) -> Words | str | None:
    """What the kernel says that threads load, or why it cannot; None where nothing is known."""
    if facts.kernel.loads is None or not facts.plan.blocks:
        return None
    return facts.kernel.loads(facts.counted, facts.config, facts.gpu)


def _formula(facts: Facts, place: int) -> float | None:
    found = words_by_formula(facts)
    return _ratio(found[place], facts.counted.results) if isinstance(found, Words) else None


def level_intensities(facts: Facts) -> dict[Level, float]:
    """FLOP per byte that the model moves at each level; empty without a prediction."""
    moved = facts.prediction
    if moved is None:
        return {}
    return intensities(
        facts.problem,
        {},
        dram_bytes=moved.dram_bytes,
        l2_bytes=moved.l2_bytes,
        shared_bytes=moved.shared_bytes,
    )


def _intensity(level: Level) -> Callable[[Facts], float | None]:
    return lambda facts: level_intensities(facts).get(level)


def _multiply_adds(facts: Facts) -> int:
    return facts.counted.flops // 2


DERIVED: tuple[Derived, ...] = (
    Derived("launch__grid_size", "blocks in the grid", STATIC, lambda f: f.plan.blocks),
    Derived("launch__block_size", "threads per block", STATIC,
            lambda f: f.plan.threads_per_block),
    Derived(REGISTERS, "registers per thread, from ptxas", STATIC,
            lambda f: f.binary.resources.registers if f.binary.resources else None),
    Derived(SPILLS, "bytes per thread spilled to local memory and read back, from ptxas", STATIC,
            lambda f: f.binary.resources.spill_bytes if f.binary.resources else None),
    Derived("launch__shared_mem_per_block_static", "bytes of static shared memory per block",
            STATIC, lambda f: f.binary.resources.shared_bytes if f.binary.resources else None),
    Derived("launch__shared_mem_per_block_dynamic", "bytes of dynamic shared memory per block",
            STATIC, lambda f: f.plan.shared_bytes),
    Derived(WAVES, "blocks in the grid over those that the whole board holds at once", STATIC,
            lambda f: f.occupancy.waves_per_sm if f.occupancy else None),
    Derived(TAIL_IDLE, "share of the block slots that are empty in the last wave", STATIC,
            lambda f: 100 * f.occupancy.tail_idle if f.occupancy else None),
    Derived(OCCUPANCY, "theoretical occupancy: resident warps over the maximum per SM", STATIC,
            lambda f: 100 * f.occupancy.theoretical if f.occupancy else None),
    Derived("launch__occupancy_limit_warps", "blocks per SM that warps allow", STATIC,
            _limit("warps")),
    Derived("launch__occupancy_limit_blocks", "blocks per SM that the board allows", STATIC,
            _limit("blocks")),
    Derived("launch__occupancy_limit_registers", "blocks per SM that registers allow", STATIC,
            _limit("registers")),
    Derived("launch__occupancy_limit_shared_mem", "blocks per SM that shared memory allows; Nsight "
            "Compute's counts only the part that the driver configured for the launch", STATIC,
            _limit("shared memory")),
    Derived("launch__occupancy_limit_barriers", "blocks per SM that barriers allow, at most those "
            "that the board allows", STATIC, _barrier_limit),
    Derived(STAGES, "tiles along k for which the launch has buffers", STATIC, _stages),
    Derived(RESULTS_PER_THREAD, "elements of C of which a thread keeps sums at once; for a user's "
            "kernel, elements of C over threads in the grid and tiles of a block", STATIC,
            _results_per_thread),
    Derived(RESULTS_IN_FLIGHT,
            "sums that the resident threads of an SM keep at once: independent work",
            STATIC, _results_in_flight),
    Derived(GLOBAL_LOADS, "words that threads and the TMA load from global memory per element of C",
            COUNTED, lambda f: _loads(f, "global")),
    Derived(TABLE_LOADS, "those of them that are of the table of groups", COUNTED, _table_loads),
    Derived(SHARED_LOADS, "words that threads and wgmma load from shared memory per element of C",
            COUNTED, lambda f: _loads(f, "shared")),
    Derived(GLOBAL_FORMULA, "the same of A, B and partial sums: k/BM + k/BN with whole tiles, 2k "
            "without tiles", FORMULA,
            lambda f: _formula(f, 0)),
    Derived(SHARED_FORMULA, "the same of tiles and sums: k/TM + k/TN with whole tiles", FORMULA,
            lambda f: _formula(f, 1)),
    Derived(FMA_PER_SHARED_LOAD, "multiply-adds per word loaded from shared memory", COUNTED,
            lambda f: _ratio(_multiply_adds(f), _counter(f, *SHARED_BYTES) / WORD_BYTES)),
    Derived(GLOBAL_WIDTH, "bytes per lane that a global-load request loads",
            COUNTED, lambda f: _ratio(_counter(f, *GLOBAL_BYTES[:2]),
                                      WARP_SIZE * _counter(f, *GLOBAL_REQUESTS))),
    Derived(SHARED_WIDTH, "bytes per lane that a shared-memory load instruction loads",
            COUNTED, lambda f: _ratio(_counter(f, SHARED_BYTES[0]),
                                      WARP_SIZE * _counter(f, SHARED_LOAD_INSTRUCTIONS,
                                                           MATRIX_LOADS))),
    Derived(CONFLICT_SHARE, "share of the wavefronts of shared loads and stores that is due to "
            "bank conflicts", COUNTED,
            lambda f: _ratio(_counter(f, *SHARED_CONFLICTS), _counter(f, *SHARED_WAVEFRONTS), 100)),
    Derived(ASYNC_SHARE, "share of the bytes loaded from global memory by cp.async",
            COUNTED, lambda f: _ratio(_counter(f, GLOBAL_BYTES[1]), _counter(f, *GLOBAL_BYTES),
                                      100)),
    Derived(TMA_SHARE, "share of the bytes loaded from global memory by the TMA", COUNTED,
            lambda f: _ratio(_counter(f, TMA_BYTES), _counter(f, *GLOBAL_BYTES), 100)),
    Derived(INSTRUCTIONS_PER_FMA, "PTX instructions per fused multiply-add", COUNTED,
            lambda f: _ratio(_counter(f, _INSTRUCTIONS), _counter(f, FMA))),
    Derived(MICROSECONDS, "time of the launch", PREDICTED,
            lambda f: f.prediction.microseconds if f.prediction else None),
    Derived(TFLOPS, "speed of the launch, in TFLOP/s", PREDICTED,
            lambda f: f.prediction.tflops if f.prediction else None),
    Derived(BUSY, "share of time in which the SMs have a block to run", PREDICTED,
            lambda f: 100 * f.prediction.busy_share if f.prediction else None),
    Derived(f"{INTENSITY}_dram", "FLOP per byte that DRAM moves", PREDICTED,
            _intensity("DRAM")),
    Derived(f"{INTENSITY}_l2", "FLOP per byte that L2 moves", PREDICTED, _intensity("L2")),
    Derived(f"{INTENSITY}_shared", "FLOP per byte that shared-memory wavefronts could move",
            PREDICTED, _intensity("shared memory")),
    Derived(PEAK_SHARE, "speed over the board's peak, of the pipe that multiplies", PREDICTED,
            lambda f: _ratio(f.prediction.tflops, f.gpu.peak(f.prediction.pipe), 100)
            if f.prediction else None),
)  # fmt: skip


def figures(facts: Facts) -> Mapping[str, float]:
    """All metrics that have a value: first counters, then derived ones."""
    derived = {each.name: each.value(facts) for each in DERIVED}
    found = {name: value for name, value in derived.items() if value is not None}
    return {**facts.counters, **found}
