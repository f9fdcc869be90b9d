"""How `gemm_fp16x3_fused` is launched: fp32 on Hopper's tensor cores, by three products of fp16, of
operands that the kernel itself splits."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import rules, warpgroups
from gemmkit.kernels.copying import copying
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import aligned_copies, moved_bytes
from gemmkit.kernels.plan import LAYOUTS, MAP_ARGUMENTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import gemm_fp16x3, result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.splitting import GROUP
from gemmkit.kernels.warpgroups import LINE_BYTES, WARPGROUP
from gemmkit.kernels.work import VECTOR_BYTES, WORD_BYTES, Work
from gemmkit.problem import GemmProblem
from gemmkit.split_products import CHUNK_SCALED_PRODUCTS, LONGEST_CHUNK, PRODUCTS, SHORTEST_CHUNK

# Of k, in one wgmma of fp16.
DEPTH = 16
# Lines that a warp splits at a time, one for each lane.
LINES = WARP_SIZE
# Instructions of a lane for each element: its magnitude, its scale, half of two conversions, the
# high part back to fp32, the rest; halves of two elements leave in a vector for each part. Beside
# these, those of a line: its scale, addresses, the loop; and of each wgmma: its descriptors.
OF_ELEMENT, OF_LINE, OF_PRODUCT = 5.25, 45.0, 10.0
# Instructions that promote a sum: its factor, and the multiply-add.
OF_SUM = 2
# Slots of a scheduler that an instruction takes, and instructions that a load of a single element
# across k counts as; cycles of a step in which no warp can issue: at its barriers, and for each
# element of a line, since one or two warps for a scheduler do not hide latencies. Fitted, with the
# cycles of tiles, to 13 configurations at 50 problems on an H100: the median error is 3.6 % if
# products and splitting add up.
SLOTS, LOAD_ACROSS, OF_BARRIERS, WAITS = 1.2, 1.9, 456.0, 9.5
# Registers of a thread for the chunk of a line, besides those that hold an element each.
OF_PARTS = 20


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B in place, or copies where TMA cannot load them; boxes across k have no more of it
    than a line of parts, in whose place they are."""
    own = LoadedOperands.in_place(problem, aligned_copies(problem))
    return replace(own, box_depth=GROUP, scaled_on_chip=True)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the copies of operands that need them."""
    shape = wgmma_tiles.launch_shape(problem, config, gpu, operands(problem))
    return with_copies_made(shape, problem, gpu, copying)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_fp16x3`, with tiles of whole groups of lines, one at a time."""
    return rules.first_reason(
        lambda: gemm_fp16x3.rule(config, gpu),
        lambda: rules.divides(config, LINES, "BM"),
        lambda: rules.divides(config, LINES, "BN"),
        lambda: (
            f"pingpong = {config['pingpong']}: use 1, as all consumers split the operands of a tile"
            if config["pingpong"] > 1
            else None
        ),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results."""
    return result_boxes.room(problem, config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, whose consumers split the operands of each step."""
    own = operands(problem)
    found = gemm_fp16x3.in_parts(wgmma_tiles.work(problem, config, gpu, own))
    demands = found.demands
    lines, BK = config["BM"] + config["BN"], config["BK"]
    warps = config["consumers"] * WARPGROUP // WARP_SIZE
    # Vectors of lines along k, and single elements across it.
    loaded = sum(
        (config[side] / lines) * (WORD_BYTES / VECTOR_BYTES if along_k else LOAD_ACROSS)
        for side, along_k in (("BM", own.a_along_k), ("BN", own.b_along_k))
    )
    splitting = ceil_div(lines // LINES, warps) * ((OF_ELEMENT + loaded) * BK + OF_LINE)
    issued = splitting + OF_SUM * demands.results + OF_PRODUCT * PRODUCTS * BK / DEPTH
    demands = replace(
        demands,
        # Of the warps that split, not all of the block's.
        issue=SLOTS * issued * warps * WARP_SIZE / found.threads,
        in_turn=True,
        exposed=OF_BARRIERS + WAITS * BK,
        # TMA writes each element, a lane reads it, and writes both of its parts.
        wavefronts=demands.wavefronts + 3 * lines * BK * ITEM_BYTES["float32"] / LINE_BYTES,
        other_registers=demands.other_registers + BK + OF_PARTS,
    )
    return found._replace(demands=demands, copied_bytes=moved_bytes(problem, own.copies))


KERNEL = Kernel(
    name="gemm_fp16x3_fused",
    rung=None,
    idea="Consumers split fp32 tiles into fp16 parts in shared memory, in the launch that "
    "multiplies them: for few rows with a large B, which is read once, as exact as by FFMA.",
    default=TileConfig(
        BM=64,
        BN=64,
        BK=64,
        stages=4,
        consumers=1,
        pingpong=1,
        cluster_m=1,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (32, 64, 96, 128, 192),
        "BN": (32, 64, 96, 128, 160, 192),
        "BK": (SHORTEST_CHUNK, LONGEST_CHUNK),
        "stages": (2, 3, 4, 5, 6, 8),
        "consumers": (1, 2),
        "pingpong": (1,),
        "cluster_m": (1, 2, 4),
        "cluster_n": (1, 2, 4),
        "cluster_k": (1, 2, 4),
    },
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    signature=(*MAP_ARGUMENTS, *SIGNATURE),
    layouts=LAYOUTS,
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="fp32",
    condition=gemm_fp16x3.condition,
    pairing=pairing,
    compute_dtype=CHUNK_SCALED_PRODUCTS,
)
