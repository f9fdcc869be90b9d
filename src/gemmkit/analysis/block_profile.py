"""`BlockProfile`: the work of one block of a kernel, from short emulated runs.

Two runs with different depths give every count as `a + b·K`; one traced block gives the cost of
each memory instruction and the bytes that the block needs. If the numbers of blocks and tiles of C
differ, the runs keep their ratio, and a block's depth is K times its number of tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.access_costs import AccessCost, access_costs
from gemmkit.analysis.block_share import block_share
from gemmkit.analysis.block_tiles import (
    columns_on_x,
    goes_on,
    in_turn,
    tile_sides,
    tiles_per_block,
    visited,
)
from gemmkit.analysis.copy_pipeline import CopyPipeline
from gemmkit.analysis.depth_runs import Profiled, depth_runs, executed
from gemmkit.analysis.machine import MEASURED_FFMA_ISSUE
from gemmkit.analysis.smaller import short_runs, takes_squares_only
from gemmkit.analysis.trace import trace
from gemmkit.analysis.traced_block import copied_bytes, loaded_bytes, turns, written
from gemmkit.analysis.traced_pipeline import traced_pipeline
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.emulator.codegen.operands import Action, actions_of
from gemmkit.emulator.counters.merging import merged_accesses
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.jit.ffma import MultiplyAdds, multiply_adds
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem


@dataclass(frozen=True, slots=True, eq=False)
class BlockProfile:
    """The work of one block, for any depth K.

    `executed_at` are the instructions that its warps execute, per PTX instruction, at the two
    `depths` (of a block), with `tiles_at` tiles; `executed_per_tile` are those that each further
    tile adds, whatever its depth. `costs` maps memory instructions to their cost; of shared
    accesses that ptxas merges, the first stands for all, and the others are in `merged_away`.
    `rows` and `columns` are those of C that the block computes, `tiles` the mean number of tiles
    per block: less than one if blocks share a tile, more than one in a persistent kernel, whose
    busiest block has `visits`; `teams` of its warps take tiles in turn. `loaded_bytes_per_k` are
    distinct bytes, in whole sectors, that its threads read from A and B per k step of a tile,
    `copied_bytes_per_k` those of the copies that it has the TMA make, which bypass the L1,
    `added_bytes` those that the write-back of a tile reads, of C, bias and residual, and
    `copied_added_bytes` what the TMA brings of these; `stored_bytes` are those that it writes, plus
    its traffic to and from a workspace.
    `moved_before` are bytes that a launch before the kernel's own moves to make copies of operands,
    at `copy_share` of the speed of a copy.
    `columns_on_x` says whether consecutive blocks compute adjacent columns. `unroll` is the unroll
    factor of a short loop by ptxas, `ffma_issue` the issue cycles of its multiply-adds,
    `shared_load_share` the shared-memory loads of its main loop over those of the PTX after
    merging: less than 1 if ptxas merges loads of several iterations. All three come from the
    machine code, whose `main_loop` is None if it cannot be read. `turns_of_warps` and
    `turns_of_schedulers` are more than 1 if barriers make warps take turns: the maximum of shared
    loads per warp (or scheduler) between two barriers, over the mean. `buffer` is what bulk copies
    of operands fill, if there is one.
    """

    plan: LaunchPlan
    binary: Binary
    flow: ControlFlow
    actions: tuple[Action, ...]
    warps: int
    depths: tuple[float, float]
    executed_at: tuple[NDArray[np.float64], NDArray[np.float64]]
    tiles_at: float
    executed_per_tile: NDArray[np.float64]
    costs: dict[int, AccessCost]
    merged_away: frozenset[int]
    rows: int
    columns: int
    tiles: float
    visits: float
    teams: int
    loaded_bytes_per_k: float
    copied_bytes_per_k: float
    added_bytes: float
    copied_added_bytes: float
    stored_bytes: float
    moved_before: float
    copy_share: float
    columns_on_x: bool
    unroll: int
    ffma_issue: float
    shared_load_share: float
    main_loop: MultiplyAdds | None
    turns_of_warps: float
    turns_of_schedulers: float
    buffer: CopyPipeline | None

    def executed(self, k: int, tiles: float | None = None) -> NDArray[np.float64]:
        """Executions of each instruction by the block's warps, at depth k, with so many tiles: by
        default the mean number."""
        tiles = self.tiles if tiles is None else tiles
        (low, high), (at_low, at_high) = self.depths, self.executed_at
        found = at_low + (tiles - self.tiles_at) * self.executed_per_tile
        if high == low:
            return found
        return np.maximum(found + (at_high - at_low) * (k * tiles - low) / (high - low), 0.0)

    def loaded_bytes(self, k: int) -> float:
        """Distinct bytes of matrices and bias that the block's threads read, at depth k."""
        return (self.loaded_bytes_per_k * k + self.added_bytes) * self.tiles

    def copied_bytes(self, k: int) -> float:
        """Bytes that the TMA reads for the block, at depth k."""
        return (self.copied_bytes_per_k * k + self.copied_added_bytes) * self.tiles

    def requested_bytes(self, k: int) -> float:
        """Bytes of the sectors that its warps request in global loads, with repetitions."""
        executed = self.executed(k)
        return SECTOR_BYTES * sum(
            float(executed[number]) * cost.sectors
            for number, cost in self.costs.items()
            if cost.space == "global" and cost.kind in ("load", "copy")
        )

    def shared_wavefronts(self, k: int) -> float:
        """Shared-memory wavefronts, at depth k."""
        executed = self.executed(k)
        return sum(
            float(executed[number]) * cost.data_cycles
            for number, cost in self.costs.items()
            if cost.space == "shared" and number not in self.merged_away
        )


def profile_block(
    kernel: Kernel,
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    config: TileConfig | None = None,
    binary: Binary | None = None,
    cache_dir: Path | None = None,
) -> BlockProfile:
    """Profile the first block of a launch, without residue tiles.

    For groups it is a block of `GemmProblem.typical`, for a batch one of a single product.

    Args:
        kernel: the kernel to profile.
        problem: what it computes; the runs are reduced in all three sizes.
        spec: the board to compile for.
        config: by default the kernel's own.
        binary: the kernel, if it is already compiled for this problem and configuration.
        cache_dir: root of the compiler's cache; by default the user's.

    Raises:
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        DeviceError: the kernel failed, or the problem is empty.
    """
    config = config or kernel.default
    if problem.count > 1:
        one = problem.typical.single
        of_one = _profile_one(kernel, one, spec, config, None, cache_dir, one_of_many=True)
        return _of_many(of_one, kernel, config, problem, spec, binary, cache_dir)
    return _profile_one(kernel, problem, spec, config, binary, cache_dir)


def _profile_one(
    kernel: Kernel,
    problem: GemmProblem,
    spec: GpuSpec,
    config: TileConfig,
    binary: Binary | None,
    cache_dir: Path | None,
    *,
    one_of_many: bool = False,
) -> BlockProfile:
    """The profile of one product's block, also where it is one of many that blocks go through."""
    rows_left, columns_left = kernel.plan(problem, config, spec).residue
    problem = replace(problem, m=problem.m - rows_left, n=problem.n - columns_left)
    whole = kernel.plan(problem, config, spec)
    given = binary or compile_plan(whole, spec.arch, cache_dir=cache_dir)
    tiles = tiles_per_block(kernel, config, problem, spec, whole)
    square = takes_squares_only(kernel, problem, config, spec)

    def compiled(plan: LaunchPlan) -> Binary:
        """The same code if it is the same instance: compilation is not always repeatable."""
        same = plan.instances == whole.instances
        return given if same else compile_plan(plan, spec.arch, cache_dir=cache_dir)

    profiled = Profiled(
        kernel=kernel,
        config=config,
        problem=problem,
        tiles=tiles,
        compiled=compiled,
        square=square,
        cache_dir=cache_dir,
    )
    runs = depth_runs(profiled, spec)
    (small, plan, at_low), (deep, deep_plan, at_high) = runs.low, runs.high
    flow, board, binary = runs.flow, runs.board, compiled(plan)
    visits, teams = in_turn(kernel, config, problem, spec, tiles)
    tiles_at = tiles_per_block(kernel, config, small, board, plan)
    per_tile = np.zeros_like(at_low)
    if (visits > 1 or one_of_many) and goes_on(kernel):
        # Twice the rows on a board that has room for no more blocks.
        more = replace(small, m=2 * small.m, lda=0, ldc=0)
        full = replace(board, sm_count=min(plan.blocks, board.sm_count))
        several = kernel.plan(more, config, full)
        further = visited(kernel, config, more, full) - tiles_at
        if further > 0 and several.instances == plan.instances:
            device = EmulatedDevice(board, cache_dir=cache_dir)
            _, at_more = executed(device, compiled(several), several, more)
            of_depth = (at_high - at_low) / max((deep.k - small.k) * tiles_at, 1.0)
            per_tile = (at_more - at_low) / further - of_depth * small.k
    traced, parts = small, whole.grid[2]
    if kernel.user_defined and not square and plan.grid[2] == parts > 1:
        # If blocks along z share k, each has some of this one.
        traced, _ = short_runs(problem, 1 / parts, kernel, square=square, apart=runs.apart)
        binary = compiled(kernel.plan(traced, config, board))
    seen = trace(
        kernel,
        traced,
        board,
        config=config,
        binary=binary,
        cache_dir=cache_dir,
        reduced=traced == small,
    )
    actions = actions_of(flow)
    merged = merged_accesses(flow)
    rows, columns, stored = written(seen)
    depths = (
        small.k * tiles_at,
        deep.k * tiles_per_block(kernel, config, deep, board, deep_plan),
    )
    seen_tiles = tiles_per_block(kernel, config, seen.problem, spec, seen.plan)
    if kernel.user_defined and problem.groups is None:
        share = block_share(
            (problem, whole),
            (small, plan),
            (deep, deep_plan),
            (seen.problem, seen.plan),
            rows * columns,
        )
        tiles, depths, seen_tiles = share.tiles, share.depths, share.seen_tiles
        visits = tiles_at = tiles
        at_low, at_high = at_low * share.more, at_high * share.more
        if tiles > 1:
            stored = _stored_bytes(problem, rows, columns, tiles, whole)
    elif kernel.shares_tiles or tiles > 1:
        rows, columns = tile_sides(kernel, config, problem, spec)
        stored = _stored_bytes(problem, rows, columns, tiles, whole)
    gone = frozenset(number for group in merged for number in group.numbers[1:])
    found = multiply_adds(binary.cubin, binary.entry, binary.arch)
    (operands, added), (copied, copied_added) = loaded_bytes(seen), copied_bytes(seen)
    copied_per_k = copied / (max(seen.problem.k, 1) * seen_tiles)
    turns_of_warps, turns_of_schedulers = turns(seen, spec.pipes.issue)
    unroll, ffma_issue, loads_share = _machine_code(found, flow, at_high - at_low, gone)
    moved, copy_share = _moved_before(kernel, config, problem, spec, whole)
    profile = BlockProfile(
        plan=whole,
        binary=binary,
        flow=flow,
        actions=actions,
        warps=seen.warps,
        depths=depths,
        executed_at=(at_low, at_high),
        tiles_at=tiles_at,
        executed_per_tile=per_tile,
        costs=access_costs(seen, {group.numbers[0]: group.nbytes for group in merged}),
        merged_away=gone,
        rows=rows,
        columns=columns,
        tiles=tiles,
        visits=visits,
        teams=teams,
        loaded_bytes_per_k=operands / (max(seen.problem.k, 1) * seen_tiles),
        copied_bytes_per_k=copied_per_k,
        added_bytes=added / seen_tiles,
        copied_added_bytes=copied_added / seen_tiles,
        stored_bytes=stored,
        moved_before=moved,
        copy_share=copy_share,
        columns_on_x=columns_on_x(kernel, config, spec, rows, columns),
        unroll=unroll,
        ffma_issue=ffma_issue,
        shared_load_share=loads_share,
        main_loop=found,
        turns_of_warps=turns_of_warps,
        turns_of_schedulers=turns_of_schedulers,
        buffer=traced_pipeline(replace(profiled, tiles=tiles), seen, copied_per_k, board),
    )
    if not kernel.user_defined:
        return profile
    # The traced block may do more than an average one, as where k is split into few whole steps.
    asked = profile.requested_bytes(problem.k) / (max(problem.k, 1) * tiles)
    return replace(profile, loaded_bytes_per_k=min(profile.loaded_bytes_per_k, asked))


def _of_many(
    of_one: BlockProfile,
    kernel: Kernel,
    config: TileConfig,
    problem: GemmProblem,
    spec: GpuSpec,
    binary: Binary | None,
    cache_dir: Path | None,
) -> BlockProfile:
    """The profile of one product's block in a launch of all products; blocks may share tiles."""
    plan = kernel.plan(problem, config, spec)
    if binary is None:
        binary = compile_plan(plan, spec.arch, cache_dir=cache_dir)
    moved, share = _moved_before(kernel, config, problem, spec, plan)
    of_one = replace(of_one, plan=plan, binary=binary, moved_before=moved, copy_share=share)
    if plan.table is not None:
        # Those of a cluster are in one of the table's.
        tiles = plan.table.tiles * plan.cluster[0] / max(plan.blocks, 1)
        return replace(of_one, tiles=tiles, visits=tiles)
    if not kernel.shares_tiles:
        tiles = visited(kernel, config, problem, spec)
        visits, teams = in_turn(kernel, config, problem, spec, tiles)
        stored = of_one.stored_bytes / max(of_one.tiles, 1.0) * tiles
        return replace(of_one, tiles=tiles, visits=visits, teams=teams, stored_bytes=stored)
    tiles = problem.batch * tiles_per_block(kernel, config, problem, spec, plan)
    stored = _stored_bytes(problem, of_one.rows, of_one.columns, tiles, plan)
    return replace(of_one, tiles=tiles, visits=tiles, stored_bytes=stored)


def _moved_before(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, spec: GpuSpec, plan: LaunchPlan
) -> tuple[float, float]:
    """Bytes that the launch before a plan's own reads and writes, 0 where there is none, and the
    share of a copy's speed at which it does."""
    if plan.before is None:
        return 0.0, 1.0
    found = kernel.work(problem, config, spec)
    return float(found.copied_bytes), found.copy_share


def _stored_bytes(
    problem: GemmProblem, rows: int, columns: int, tiles: float, plan: LaunchPlan
) -> float:
    """Bytes that a block writes to C and an auxiliary output, and to and from the workspace."""
    of_result = problem.written_bytes / max(problem.results, 1)
    return of_result * rows * columns * tiles + 2 * plan.workspace_bytes / max(plan.blocks, 1)


def _machine_code(
    found: MultiplyAdds | None,
    flow: ControlFlow,
    per_depth: NDArray[np.float64],
    merged_away: frozenset[int],
) -> tuple[int, float, float]:
    """Unroll factor of short loops by ptxas, cycles per multiply-add, remaining shared loads.

    `per_depth` are the additional executions of each instruction with a deeper k.
    """
    if found is None or not found.total:
        return 1, MEASURED_FFMA_ISSUE, 1.0
    written = sum(form.opcode_class == "fma" for form in flow.forms)
    times = found.total / max(written, 1)
    unroll = 2 ** int(math.log2(times)) if times >= 1 else 1
    adds = loads = 0.0
    for number, (form, more) in enumerate(zip(flow.forms, per_depth, strict=True)):
        if form.opcode_class == "fma":
            adds += more
        elif form.operation == "load" and form["S"].startswith("shared") and not is_matrix(form):
            loads += more * (number not in merged_away)
    share = 1.0
    if found.count and adds and loads:
        share = min(1.0, float(found.shared_loads / found.count * adds / loads))
    return unroll, found.issue_cycles, share
