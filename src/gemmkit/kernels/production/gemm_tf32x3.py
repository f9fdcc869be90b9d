"""How `gemm_tf32x3` is launched: fp32 on tensor cores by mma.sync, in three products of TF32."""

from __future__ import annotations

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LAYOUTS, TileConfig
from gemmkit.kernels.production import gemm_mma, tf32_mma
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.problem import GemmProblem
from gemmkit.split_products import LEAST_K, PRODUCTS, TF32_CHUNK, TF32_PRODUCTS

# Results of a lane; more leave no registers for parts and the sums of a chunk.
MOST_RESULTS = 64
# Registers of the parts of B and of 16 rows of A, and of a chunk's sums.
OF_PARTS = 48


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A board with cp.async, and where fp32's bound must hold, a k so long that it is the larger
    one."""
    if (reason := tf32_mma.condition(problem, gpu)) is not None:
        return reason
    if problem.k < LEAST_K and problem.precision != "tf32":
        return f"k = {problem.k} is less than {LEAST_K}, from where on sums are as exact as fp32's"
    return None


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_mma`, with fewer results of a lane."""
    results = config["WM"] * config["WN"] // WARP_SIZE
    return rules.first_reason(
        lambda: gemm_mma.rule(config, gpu),
        lambda: (
            f"WM*WN leaves each lane {results} results, and the parts of operands have registers "
            f"beside {MOST_RESULTS}"
            if results > MOST_RESULTS
            else None
        ),
    )


def promotions(config: TileConfig) -> float:
    """Additions of a warp in a step, to promote the sums of chunks."""
    return config["WM"] * config["WN"] // WARP_SIZE * config["BK"] / TF32_CHUNK


KERNEL = Kernel(
    name="gemm_tf32x3",
    rung=None,
    idea="Warps split fragments of fp32 into two TF32 parts, of whose products mma.sync computes "
    "three: as exact as FFMA, at 2.7 times its peak on an A100.",
    default=TileConfig(BM=128, BN=128, BK=16, WM=64, WN=32, stages=4),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (16, 32),
        "WM": (16, 32, 64, 128),
        "WN": (16, 32, 64, 128),
        "stages": (2, 3, 4, 5, 6),
    },
    launch=gemm_mma.tile_launch,
    work=tf32_mma.work_of(PRODUCTS, promotions, OF_PARTS),
    loads=tensor_cores.words,
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="fp32",
    compute_dtype=TF32_PRODUCTS,
    condition=condition,
    pairing=tf32_mma.pairing,
)
