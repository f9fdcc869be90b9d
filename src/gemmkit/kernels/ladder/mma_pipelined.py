"""Rung 16: mma.sync with a pipeline of stages, filled by cp.async."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import mma_sync
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Template parameters of the `.cu` file after the type.
TEMPLATE = ("BM", "BN", "BK", "WM", "WN", "STAGES", "VEC")


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of the circular buffer."""
    return config["stages"] * tensor_cores.stage_bytes(config)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The tiles of `mma_sync`, with their stages in dynamic shared memory."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: mma_sync.tiles(config, gpu),
        lambda: rules.enough_stages(config),
        lambda: rules.dynamic_shared(shared_bytes(config), gpu),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A block per tile."""
    return tensor_cores.launch(problem, config, TEMPLATE, shared_bytes(config))


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores."""
    return tensor(tensor_cores.thread_count(config), shared_bytes(config), problem, config)


KERNEL = Kernel(
    name="mma_pipelined",
    rung=16,
    idea="cp.async copies tiles several stages ahead of the products without passing through "
    "registers, which leaves room for 64×64 results per warp.",
    default=TileConfig(BM=128, BN=256, BK=32, WM=64, WN=64, stages=4),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (16, 32, 64),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "stages": (2, 3, 4, 5),
    },
    launch=launch,
    work=work,
    loads=tensor_cores.words,
    rule=rule,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=tensor_cores.condition,
)
