"""Bytes that a launch moves from the L2 and from DRAM, by the reuse that its block order allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.occupancy import Occupancy
from gemmkit.analysis.roofline import WAVEFRONT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.problem import GemmProblem

# k steps per cache line of A; what the resident blocks read in them must fit in the L1, or else
# sectors that one warp has fetched are evicted before the next one requests them.
_LINE_STEPS = 32
# The share of the L2 that keeps operands from wave to wave; the rest holds results and what a
# split L2 duplicates.
_L2_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one launch: in shared memory, between L2 and the SMs, and between L2 and DRAM.

    Those of shared memory are what its wavefronts could have moved, 128 bytes each. `tma_bytes` are
    those of `l2_bytes` that the TMA reads. `reread` is the share of L2 reads, 0 to 1, that miss to
    DRAM after the first wave.
    """

    shared_bytes: float
    l2_bytes: float
    tma_bytes: float
    dram_bytes: float
    reread: float


def traffic(
    profile: BlockProfile, problem: GemmProblem, spec: GpuSpec, occupied: Occupancy
) -> Traffic:
    """Traffic of a launch.

    L2 traffic is what each block reads: each sector once if the L1 can hold a line of every row in
    use, otherwise as often as warps request it; what the TMA copies, each time. DRAM traffic is
    each operand once if the L2 can keep both; otherwise each wave of blocks fetches the rows and
    columns that it covers.
    """
    blocks = profile.plan.blocks
    resident = max(occupied.blocks_per_sm, 1)
    depth = problem.mean_k
    loaded = profile.loaded_bytes(depth)
    window = resident * profile.loaded_bytes_per_k * _LINE_STEPS
    if window > machine_of(spec).l1_bytes:
        loaded = max(loaded, profile.requested_bytes(depth))
    # The TMA bypasses the L1.
    copied = profile.copied_bytes(depth)
    loaded += copied
    compulsory = float(problem.minimal_bytes)
    operands = problem.item_bytes * problem.k * (problem.m + problem.n)
    dram, reread = compulsory, 0.0
    # The blocks of a group run concurrently: what they share is still in L2. Those of a batch run
    # product by product.
    if problem.groups is None and operands > _L2_SHARE * spec.l2_bytes and blocks:
        places = resident * spec.sm_count
        waves = _waves_bytes(profile, problem.single, blocks / problem.batch, places)
        dram = max(compulsory, problem.batch * waves)
        reread = min(1.0, dram / (loaded * blocks)) if loaded else 0.0
    return Traffic(
        shared_bytes=WAVEFRONT_BYTES * blocks * profile.shared_wavefronts(depth),
        l2_bytes=blocks * (loaded + profile.stored_bytes),
        tma_bytes=blocks * copied,
        dram_bytes=dram,
        reread=reread,
    )


def _waves_bytes(profile: BlockProfile, problem: GemmProblem, blocks: float, places: int) -> float:
    """Operands that all waves of one product's `blocks` fetch if nothing stays in the L2 between
    waves, plus C and what the epilogue reads and writes."""
    across, down, along_x = profile.columns, profile.rows, problem.n
    if not profile.columns_on_x:
        across, down, along_x = down, across, problem.m
    # Blocks of a cluster may follow one another on x and be below one another.
    grid_wide = min(profile.plan.grid[0], math.ceil(along_x / across))
    if profile.tiles != 1:
        grid_wide = math.ceil(problem.n / across)
    # Blocks that share a tile may run in different waves; blocks with several tiles make as many
    # waves.
    depth, turns = problem.k * min(profile.tiles, 1.0), max(profile.tiles, 1.0)
    in_wave = min(places, blocks)
    wide = min(in_wave, grid_wide)
    high = math.ceil(in_wave / wide)
    once = problem.item_bytes * depth * (wide * across + high * down)
    return turns * blocks / in_wave * once + problem.added_bytes + problem.written_bytes
