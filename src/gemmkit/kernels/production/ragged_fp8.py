"""How `ragged_fp8` is launched: one A of 8 bits whose rows are divided among groups, by wgmma."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.production import gemm_fp8, ragged_wgmma
from gemmkit.kernels.production.grouped_fp8 import PER_SCALE
from gemmkit.kernels.production.grouped_wgmma import no_shared_k
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# The kernel whose mainloop it has.
SINGLE = gemm_fp8.KERNEL


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As `ragged_wgmma`, with sums and scales."""
    tile, types = replace(config, accumulators=None), gemm_fp8.types_argument(problem, config)
    shape = ragged_wgmma.launch_shape(problem, tile, gpu, types)
    return replace(shape, entry="ragged_fp8_scaled") if problem.scales else shape


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_fp8`, with what else `ragged_wgmma` asks for."""
    return no_shared_k(config) or ragged_wgmma.besides(config) or SINGLE.rule(config, gpu)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Registers for sums and scales; and as `ragged_wgmma`."""
    reason = gemm_fp8.registers(problem, config, gpu, PER_SCALE)
    return reason or ragged_wgmma.pairing(problem, config, gpu)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """As `ragged_wgmma`, with promoted sums."""
    return gemm_fp8.promoted(ragged_wgmma.work(problem, config, gpu), problem, config)


KERNEL = replace(
    SINGLE,
    name="ragged_fp8",
    idea="Groups that share one A and one C, as in `ragged_wgmma`, of 8 bits: sums are promoted, "
    "and scales of each row, or of each chunk of it, follow the rows whatever group has them.",
    default=replace(SINGLE.default, cluster_m=1),
    space={**SINGLE.space, "cluster_k": (1,)},
    launch=launch,
    work=work,
    mainloop=SINGLE,
    signature=ragged_wgmma.signature(),
    # wgmma reads operands of 8 bits along k.
    layouts=("nt",),
    rule=rule,
    condition=ragged_wgmma.condition,
    pairing=pairing,
)
