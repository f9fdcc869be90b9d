"""Rung 15: mma.sync and ldmatrix, out of swizzled tiles."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Template parameters of the `.cu` file after the type.
TEMPLATE = ("BM", "BN", "BK", "WM", "WN", "VEC")


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of two stages."""
    return 2 * tensor_cores.stage_bytes(config)


def tiles(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of whole ldmatrix, in swizzled tiles whose rows are powers of two."""
    return rules.first_reason(
        lambda: tensor_cores.warp_tiles(config, gpu, tensor_cores.WIDE_COLUMNS),
        lambda: rules.power_of_two(config, "BK"),
        lambda: rules.power_of_two(config, "BN"),
        lambda: tensor_cores.even_shares(config),
    )


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The same in static shared memory."""
    return rules.first_reason(
        lambda: tiles(config, gpu),
        lambda: rules.static_shared(shared_bytes(config)),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A block per tile."""
    return tensor_cores.launch(problem, config, TEMPLATE)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores."""
    return tensor(tensor_cores.thread_count(config), shared_bytes(config), problem, config)


KERNEL = Kernel(
    name="mma_sync",
    rung=15,
    idea="Fragments go from swizzled tiles to known registers by ldmatrix and to C straight from "
    "them, without bank conflicts, padding, or a way through shared memory for the results.",
    default=TileConfig(BM=128, BN=128, BK=32, WM=64, WN=32),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (16, 32, 64),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
    },
    launch=launch,
    work=work,
    loads=tensor_cores.words,
    rule=rule,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=tensor_cores.condition,
)
