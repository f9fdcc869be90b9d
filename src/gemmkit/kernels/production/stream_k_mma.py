"""How `stream_k_mma` is launched: a grid as large as the board, with even shares of `gemm_mma`'s
work."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads, tensor_cores
from gemmkit.kernels.copying import copying
from gemmkit.kernels.cut import Cut, even_shares, steps_of, whole_tiles
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import (
    COPY_ALIGNMENT,
    WORKSPACE,
    rounded_up,
    workspace_bytes,
)
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import gemm_mma
from gemmkit.kernels.production.arguments import (
    SPLIT_SIGNATURE,
    launch_shape,
)
from gemmkit.kernels.production.gemm_stream_k import LEAST_STEPS, split_tiles
from gemmkit.kernels.production.schedule import RASTER_ROWS
from gemmkit.kernels.rules import blocks_that_fit
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Registers of a thread besides sums and two sets of fragments, for which launch bounds leave room.
OTHER_REGISTERS = 32


def resident_blocks(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> int:
    """Blocks that an SM holds at once, as their launch bounds see to it."""
    own = gemm_mma.work(problem, config, gpu)
    registers = own.demands.registers + OTHER_REGISTERS
    return blocks_that_fit(own.threads, registers, gpu, own.shared_bytes)


def shares_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Cut:
    """As many blocks as the board holds, but none with less than `LEAST_STEPS` of work."""
    whole = whole_tiles(problem, config, config["BM"], config["BN"])
    shares = whole.tiles * max(1, steps_of(problem, config) // LEAST_STEPS)
    blocks = min(gpu.sm_count * resident_blocks(problem, config, gpu), shares)
    return even_shares(whole, blocks, split_tiles(whole.tiles, blocks))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """That of `gemm_mma`, in even shares."""
    found, cut = gemm_mma.work(problem, config, gpu), shares_of(problem, config, gpu)
    return found._replace(cut=cut, ctas=cut.ctas, tiles=cut.tiles, steps=cut.steps)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Blocks on x as `shares_of` has them, each of which leaves at most the last part of one tile
    and the first of another in the workspace, behind the copies of operands."""
    cut, resident = shares_of(problem, config, gpu), resident_blocks(problem, config, gpu)
    slots = 2 * cut.ctas if cut.cut_tiles else 0
    copies = gemm_mma.copied(problem) if problem.flops else ()
    copied = workspace_bytes(copies)
    start = rounded_up(copied, COPY_ALIGNMENT)
    shape = launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            *gemm_mma.tile_arguments(problem, config, RASTER_ROWS, min_blocks=resident),
        ),
        (cut.ctas, 1, 1),
        tensor_cores.thread_count(config),
        gemm_mma.shared_bytes(problem, config),
    )
    sums = slots * config["BM"] * config["BN"] * ITEM_BYTES[problem.sum_dtype]
    shape = replace(
        shape,
        workspace_bytes=start - copied + sums,
        semaphores=cut.cut_tiles,
        rasterized=True,
        copies=copies,
        in_place=True,
        signature=tuple(
            f"{WORKSPACE} + {start}" if start and name == WORKSPACE else name
            for name in SPLIT_SIGNATURE
        ),
    )
    return with_copies_made(shape, problem, gpu, copying)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words | str:
    """Those of whole tiles, unless blocks share some."""
    if shares_of(problem, config, gpu).cut_tiles:
        return loads.EVEN_SHARES
    return tensor_cores.words(problem, config, gpu)


KERNEL = Kernel(
    name="stream_k_mma",
    rung=None,
    idea="There are as many blocks as the board holds and each gets an even share of all steps of "
    "k of `gemm_mma`'s tiles, so that no SM waits for a last wave.",
    default=TileConfig(BM=128, BN=128, BK=16, WM=64, WN=32, stages=4),
    space=gemm_mma.KERNEL.space,
    mainloop=gemm_mma.KERNEL,
    launch=launch,
    work=work,
    loads=words,
    rule=gemm_mma.rule,
    signature=SPLIT_SIGNATURE,
    layouts=LAYOUTS,
    dtypes=("float64", *tensor_cores.HALVES),
    result_dtypes=gemm_mma.KERNEL.result_dtypes,
    condition=gemm_mma.condition,
    pairing=gemm_mma.pairing,
)
