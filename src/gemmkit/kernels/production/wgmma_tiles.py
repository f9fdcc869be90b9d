"""What kernels of `wgmma_product.cuh` share: tiles, tensor maps, rules."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.mainloops.wgmma import clusters, line_cost, persistent
from gemmkit.kernels.plan import (
    FURTHER_MAP_ARGUMENTS,
    MAP_ARGUMENTS,
    LaunchShape,
    Signature,
    TileConfig,
)
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, named
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.production.result_boxes import (
    COLUMN_STEP,
    EIGHT,
    Fitted,
    Results,
    boxes_of,
    fit,
    fitted_bytes,
    write_back,
)
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.warpgroups import (
    L2_BYTES,
    L2_BYTES_ACROSS_LINES,
    LINE_BYTES,
    ROWS,
    WARPGROUP,
    has_wgmma,
    is_swapped,
    line,
    product_sides,
)
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# 32-bit registers of a consumer's thread that sums may take: with up to two consumers, and with
# three, of whose blocks ptxas gives 128 to each thread.
SUM_REGISTERS, SUM_REGISTERS_OF_THREE = 192, 96
MOST_CONSUMERS = 3
# Blocks of a cluster that may share operands.
SHARING = (1, 2, 4, 8)
# Largest box of a tensor map along one dimension, and columns of a wgmma.
MOST_LINES = 256


def launch_shape(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    operands: LoadedOperands,
    types: tuple[str, ...] = (),
    entry: str = "",
    signature: Signature = (),
) -> LaunchShape:
    """Persistent clusters, one block per SM; `types` are the kernel's first template arguments,
    `entry` and what follows the maps in its `signature` those of a kernel that fuses."""
    side = "cluster_n" if operands.swapped else "cluster_m"
    threads, rows = thread_count(config), operands.sides(config)[0] * config[side]
    cluster = config["cluster_m"] * config["cluster_n"] * config["cluster_k"]
    results = Results.of(problem)
    fitted = fit(results, config, gpu, operands)
    blocks, way = clusters(problem, config, gpu).ctas, write_back(results, config, operands)
    fused = way == "FUSED_BY_TMA"
    shape = LaunchShape(
        template=(
            *types,
            tile_argument(fitted, operands),
            CUDA_LAYOUTS[operands.layout if operands.from_registers else problem.layout],
            f"WriteBack::{way}",
            schedule_argument(problem, raster=max(1, RASTER_EXTENT // rows)),
        ),
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=fitted.shared_bytes(results, operands),
        rasterized=True,
        tensor_maps=maps(problem, config, operands, fitted.line),
        copies=operands.copies if blocks else (),
        entry=entry + "_fused" * fused,
        signature=(*MAP_ARGUMENTS, *FURTHER_MAP_ARGUMENTS * fused, *signature) if entry else (),
        fewer_stages=fitted.fewer_stages(config),
    )
    return dependent(shape, gpu)


def tile_argument(fitted: Fitted, operands: LoadedOperands) -> str:
    """The template argument `WgmmaTile{…}`, with the buffers of each consumer, and what the lines
    of their boxes have at most."""
    config = fitted.config
    narrower = {} if fitted.line == LINE_BYTES else {"line": fitted.line}
    further = {"BK": operands.depth(config), "buffers": fitted.buffers, **narrower}
    given = {**config.as_dict(), **further, "threads": thread_count(config)}
    return named("WgmmaTile", given)


def thread_count(config: TileConfig) -> int:
    """Threads of a block: its consumers and the producer's warpgroup."""
    return (config["consumers"] + 1) * WARPGROUP


def maps(
    problem: GemmProblem,
    config: TileConfig,
    operands: LoadedOperands,
    box_line: int,
    way: str = "",
) -> tuple[MapRule, ...]:
    """Tensor maps of A and B, and of C if it is stored by TMA; `way` is how results leave where the
    problem does not say."""
    product = (1,) if problem.batch != 1 else ()
    copied, item = {each.operand for each in operands.copies}, operands.item_bytes
    found = []
    for name, operand, ld in (("map_a", "A", problem.lda), ("map_b", "B", problem.ldb)):
        box = (line(item), operands.lines(config, operand), *product)
        in_lines = operand in copied or ld * item % LINE_BYTES == 0
        l2 = L2_BYTES if in_lines else L2_BYTES_ACROSS_LINES
        element = operands.element
        found.append(MapRule(name, operand, box, swizzle=LINE_BYTES, l2=l2, element=element))
    results = Results.of(problem)
    way = way or write_back(results, config, operands)
    if way not in ("BY_TMA", "FUSED_BY_TMA"):
        return tuple(found)
    boxes = boxes_of(results, config, operands, box_line)
    box = (boxes.columns, boxes.lines, *product)
    of_results = [("map_c", "C")]
    if way == "FUSED_BY_TMA":
        wanted = problem.epilogue.residual, problem.epilogue.auxiliary
        named_maps = zip(FURTHER_MAP_ARGUMENTS, ("residual", "auxiliary"), wanted, strict=True)
        of_results += [(name, matrix) for name, matrix, used in named_maps if used]
    found += [MapRule(name, matrix, box, swizzle=boxes.pitch) for name, matrix in of_results]
    return tuple(found)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands) -> Work:
    """A tile of C at a time per block, of operands that are ready."""
    shared = fitted_bytes(Results.of(problem), config, gpu, operands)
    threads, copied = thread_count(config), {each.operand for each in operands.copies}
    line_costs = tuple(
        1.0 if name in copied else line_cost(ld * operands.item_bytes)
        for name, ld in (("A", problem.lda), ("B", problem.ldb))
    )
    across = (not operands.a_along_k, not operands.b_along_k)
    return persistent(
        problem,
        config,
        gpu,
        threads,
        shared,
        line_costs=line_costs,
        across=across,
        swapped=operands.swapped,
    )


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, and something to load."""
    if (reason := has_wgmma(gpu)) is not None:
        return reason
    return "there is nothing to load where k is 0" if problem.k == 0 else None


def tiles(
    config: TileConfig, gpu: GpuSpec, depth: int, sums: int = 1, *, swapped: bool | None = None
) -> str | None:
    """Whole products of wgmma, registers for the results, boxes of at most 256 lines.

    `depth` is what BK is a multiple of; a thread keeps `sums` for each of its results. `swapped` is
    as in `product_sides`.
    """
    consumers, turns = config["consumers"], config["pingpong"]
    transposed = is_swapped(config) if swapped is None else swapped
    rows, columns = product_sides(config, swapped=swapped)
    results = rows * columns // (max(1, consumers // turns) * WARPGROUP)
    sharing, parts = config["cluster_m"] * config["cluster_n"], config["cluster_k"]
    most_sums = SUM_REGISTERS if consumers < MOST_CONSUMERS else SUM_REGISTERS_OF_THREE
    return rules.first_reason(
        lambda: has_wgmma(gpu),
        lambda: rules.positive(config),
        # Counts of few values first: other rules multiply by them.
        lambda: (
            None
            if consumers <= MOST_CONSUMERS
            else f"consumers = {consumers}: the registers of a block are for 1, 2 or 3"
        ),
        lambda: (
            None
            if sharing in SHARING
            else f"cluster_m × cluster_n = {sharing}: operands are shared by 1, 2, 4 or 8 blocks "
            "of a cluster"
        ),
        lambda: (
            None
            if parts in (1, 2, 4) and 1 in (parts, sharing)
            else f"cluster_k = {parts}: 1, 2 or 4 blocks of a cluster share a tile's k, and more "
            "than 1 only with cluster_m = cluster_n = 1"
        ),
        lambda: (
            None
            if turns == 1 or turns == consumers == 2
            else f"pingpong = {turns}: use 1, or 2 for a tile of each of 2 consumers' own"
        ),
        lambda: rules.divides(config, ROWS * consumers // turns, "BN" if transposed else "BM"),
        lambda: _columns(config, transposed),
        lambda: rules.divides(config, depth, "BK"),
        lambda: next(
            (
                f"{key} = {config[key]}: boxes of tensor maps, and a wgmma's columns, are at most "
                f"{MOST_LINES}"
                for key in ("BM", "BN")
                if config[key] > MOST_LINES
            ),
            None,
        ),
        lambda: (
            None
            if sums * results <= most_sums
            else f"{sums * results} sums per thread do not fit its registers, which have room for "
            f"{most_sums}: choose a smaller BM or BN"
        ),
        lambda: None if config["stages"] >= 2 else "a pipeline needs 2 stages or more",
        lambda: (
            "consumers with a tile each do not share its k with other blocks"
            if turns > 1 and parts > 1
            else None
        ),
    )


def _columns(config: TileConfig, transposed: bool) -> str | None:
    """Columns of wgmma, for each block that shares a tile's k: sixteens, as they are stored. Those
    of the transposed are stored in eights, but there is no wgmma for other widths than 8 and
    sixteens."""
    parts = config["cluster_k"]
    if not transposed:
        return rules.divides(config, COLUMN_STEP * parts, "BN")
    if config["BM"] == EIGHT and parts == 1:
        return None
    return rules.divides(config, COLUMN_STEP, "BM") or rules.divides(config, EIGHT * parts, "BM")
