"""How `gemm_tf32_rs` is launched: fp32 on Hopper's tensor cores, rounded to TF32, with an operand
that lies across k in registers."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec, MathPipe
from gemmkit.kernels import loads, rules, warpgroups
from gemmkit.kernels.copying import copying
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import aligned_copies, moved_bytes
from gemmkit.kernels.plan import MAP_ARGUMENTS, LaunchShape, TileConfig
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import gemm_tf32, result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.warpgroups import ROWS, WARPGROUP, line
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Elements along k of a wgmma, registers of a thread for a fragment of so many and 64 rows, and the
# halves of a step, which take turns: a thread has registers for the fragments of both.
DEPTH, FRAGMENT, HALVES = 8, 4, 2
# Registers of a thread for its sums and its fragments: with 160 and 32, or 128 and 64, none spill.
MOST_REGISTERS = 192
# Instructions of a lane for a fragment: four loads, and four selections among them.
OF_FRAGMENT = 8
# Cycles from the end of a half's products to where those of the half after next may begin: a load
# from shared memory, which takes some 30, and the wait, the selections, the fence and the issue
# around it. Not measured.
READING = 90.0


def operands(problem: GemmProblem) -> LoadedOperands:
    """One along k and one across it: in place, or copies where TMA cannot load them; of two across
    k, one is a turned copy."""
    turned = turned_operand(problem)
    return LoadedOperands(
        problem.item_bytes,
        not problem.transa or turned == "A",
        problem.transb or turned == "B",
        aligned_copies(problem, along_k=turned),
        element="tfloat32",
        from_registers=True,
    )


def turned_operand(problem: GemmProblem) -> str:
    """The operand of which a copy along k is made, of two across k: one that is prepared, or that
    is to be copied anyway, or the smaller one. Empty where one lies along k."""
    if not problem.transa or problem.transb:
        return ""
    copied = {each.operand for each in aligned_copies(problem)}
    sizes = {"A": problem.m, "B": problem.n}
    if problem.batch != 1:
        for name, stride in zip("AB", problem.strides, strict=False):
            sizes[name] *= problem.batch if stride else 1

    def costs(operand: str) -> tuple[bool, bool, int]:
        return operand.lower() not in problem.prepared, operand not in copied, sizes[operand]

    return min("AB", key=costs)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the copies of operands that need them."""
    shape = wgmma_tiles.launch_shape(problem, config, gpu, operands(problem))
    return with_copies_made(shape, problem, gpu, copying)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As all kernels of wgmma, with lines of 32 elements along k, for A or for B in registers."""
    reasons = [_tiles(config, gpu, swapped=swapped) for swapped in (True, False)]
    return None if None in reasons else reasons[0]


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """A wgmma's rows along the operand in registers; room for the stages and for results."""
    own = operands(problem)
    return rules.first_reason(
        lambda: _tiles(config, gpu, swapped=own.a_along_k),
        lambda: result_boxes.room(problem, config, gpu, own),
    )


def _tiles(config: TileConfig, gpu: GpuSpec, *, swapped: bool) -> str | None:
    depth = line(ITEM_BYTES["float32"])
    return rules.first_reason(
        lambda: wgmma_tiles.tiles(config, gpu, depth, swapped=swapped),
        lambda: _registers(config, swapped=swapped),
    )


def _registers(config: TileConfig, *, swapped: bool) -> str | None:
    """Registers for the sums and the fragments of a consumer's thread."""
    row_tiles, columns = _row_tiles(config, swapped=swapped)
    sums, fragments = row_tiles * columns // 2, FRAGMENT * _fragments(config, row_tiles)
    if sums + fragments <= MOST_REGISTERS:
        return None
    return (
        f"{sums} sums and {fragments} registers of fragments per thread do not fit its registers, "
        f"which have room for {MOST_REGISTERS}: choose a smaller BM, BN or BK"
    )


def _fragments(config: TileConfig, row_tiles: int) -> int:
    """Fragments of a step that a consumer's warp reads."""
    return row_tiles * config["BK"] // DEPTH


def _row_tiles(config: TileConfig, *, swapped: bool) -> tuple[int, int]:
    """A consumer's tiles of 64 rows, and their columns."""
    rows, columns = warpgroups.product_sides(config, swapped=swapped)
    return rows // (ROWS * config["consumers"] // config["pingpong"]), columns


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """As of `gemm_tf32`, for the product that is computed."""
    return warpgroups.words(problem, config, gpu, swapped=operands(problem).swapped)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, whose consumers read one operand's fragments themselves."""
    own = operands(problem)
    found = wgmma_tiles.work(problem, config, gpu, own)
    row_tiles, columns = _row_tiles(config, swapped=own.a_along_k)
    math, consumers = MathPipe("tfloat32", tensor=True), config["consumers"]
    fragments = _fragments(config, row_tiles)
    # While the tensor cores have products of a half, of all consumers, these read the next one's.
    products = consumers * fragments * ROWS * columns * DEPTH / HALVES
    exposed = HALVES * max(0.0, READING - products / gpu.pipes.multiply_adds(math))
    demands = replace(
        found.demands,
        math=math,
        # Of the warps that multiply, not of all.
        issue=OF_FRAGMENT * fragments * consumers * WARPGROUP / found.threads,
        exposed=exposed,
        registers=found.demands.registers + FRAGMENT * fragments,
    )
    return found._replace(demands=demands, copied_bytes=moved_bytes(problem, own.copies))


KERNEL = Kernel(
    name="gemm_tf32_rs",
    rung=None,
    idea="wgmma takes the operand that lies across k from registers: TF32 products of row-major "
    "matrices need no transposed copy of B.",
    default=TileConfig(
        BM=128,
        BN=128,
        BK=32,
        stages=4,
        consumers=2,
        pingpong=1,
        cluster_m=1,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (8, 16, 32, 64, 80, 96, 112, 128, 144, 160, 192, 256),
        "BN": (32, 64, 80, 96, 128, 144, 160, 192, 256),
        "BK": (32, 64),
        "stages": (3, 4, 5, 6, 7, 8, 12),
        "consumers": (1, 2),
        "pingpong": (1, 2),
        "cluster_m": (1, 2, 4),
        "cluster_n": (1, 2, 4),
        "cluster_k": (1, 2, 4),
    },
    launch=launch,
    work=work,
    loads=words,
    mainloop=gemm_tf32.KERNEL,
    rule=rule,
    signature=(*MAP_ARGUMENTS, *SIGNATURE),
    layouts=("nn", "tn", "tt"),
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="tf32",
    compute_dtype="tf32",
    condition=wgmma_tiles.condition,
    pairing=pairing,
)
