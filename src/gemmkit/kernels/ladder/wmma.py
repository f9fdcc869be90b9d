"""Rung 14: tensor cores, through nvcuda::wmma."""

from __future__ import annotations

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads, rules, tensor_cores
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import WORD_BYTES, Work
from gemmkit.problem import GemmProblem

# Template parameters of the `.cu` file after the type.
TEMPLATE = ("BM", "BN", "BK", "WM", "WN", "PAD", "VEC")

# Floats of a warp's 16 × 16 results on their way to the epilogue.
RESULTS = 16 * 16


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of two stages of padded tiles, and of a fragment of results for each warp."""
    warps = tensor_cores.thread_count(config) // WARP_SIZE
    return 2 * tensor_cores.stage_bytes(config, tensor_cores.PAD) + WORD_BYTES * RESULTS * warps


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of whole fragments, in static shared memory."""
    return rules.first_reason(
        lambda: tensor_cores.warp_tiles(config, gpu, tensor_cores.WIDE_COLUMNS),
        lambda: tensor_cores.even_shares(config),
        lambda: rules.static_shared(shared_bytes(config)),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A block per tile."""
    return tensor_cores.launch(problem, config, TEMPLATE)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores."""
    return tensor(tensor_cores.thread_count(config), shared_bytes(config), problem, config)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """The fragments, and each result once on its way to the epilogue."""
    of_tiles = tensor_cores.words(problem, config, gpu)
    results = float(sum(each.m * each.n * each.number for each in loads.products(problem)))
    return of_tiles._replace(from_shared=of_tiles.from_shared + results)


KERNEL = Kernel(
    name="wmma",
    rung=14,
    idea="A warp multiplies 16×16 fragments on the tensor cores in one call, which makes hundreds "
    "of multiply-adds per instruction out of two 16-bit fragments.",
    default=TileConfig(BM=128, BN=128, BK=32, WM=64, WN=32),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (16, 32),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
    },
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=tensor_cores.condition,
)
