"""How `grouped_fp8` is launched: groups of 8 bits on Hopper's tensor cores."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.production import gemm_fp8, grouped, grouped_wgmma
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# The kernel whose configurations and mainloop it has.
SINGLE = gemm_fp8.KERNEL

# Registers for a scale of a chunk: ptxas keeps its address from chunk to chunk.
PER_SCALE = 3


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As `grouped_wgmma`, with sums; scales stand in the table."""
    tile, types = replace(config, accumulators=None), gemm_fp8.types_argument(problem, config)
    shape = grouped_wgmma.launch_shape(problem, tile, gpu, types)
    return replace(shape, entry="grouped_fp8_scaled") if problem.scales else shape


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_fp8`, but that no blocks share the k of a tile."""
    return grouped_wgmma.no_shared_k(config) or SINGLE.rule(config, gpu)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Registers for sums and scales; and as `grouped_wgmma`."""
    reason = gemm_fp8.registers(problem, config, gpu, PER_SCALE)
    return reason or grouped_wgmma.pairing(problem, config, gpu)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """As `grouped_wgmma`, with promoted sums."""
    return gemm_fp8.promoted(grouped_wgmma.work(problem, config, gpu), problem, config)


KERNEL = replace(
    SINGLE,
    name="grouped_fp8",
    idea="Products of different shapes in one launch, as in `grouped_wgmma`, of 8 bits: sums are "
    "promoted, and the scales of each product stand in the table beside its tensor maps.",
    default=replace(SINGLE.default, cluster_m=1),
    space={**SINGLE.space, "cluster_k": (1,)},
    launch=launch,
    work=work,
    mainloop=SINGLE,
    signature=grouped.SIGNATURE,
    # wgmma reads operands of 8 bits along k.
    layouts=("nt",),
    rule=rule,
    condition=grouped_wgmma.condition,
    pairing=pairing,
)
