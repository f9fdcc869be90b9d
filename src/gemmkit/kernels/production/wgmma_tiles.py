"""What kernels of `wgmma_product.cuh` share: tiles, tensor maps, shared memory, rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.mainloops.wgmma import clusters, persistent
from gemmkit.kernels.operand_copies import SECTOR, OperandCopy, aligned_copies
from gemmkit.kernels.plan import (
    FURTHER_MAP_ARGUMENTS,
    MAP_ARGUMENTS,
    LaunchShape,
    Signature,
    TileConfig,
    ceil_div,
)
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, named
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.warpgroups import (
    L2_BYTES,
    L2_BYTES_ACROSS_LINES,
    LINE_BYTES,
    ROWS,
    TMA_UNIT,
    WARPGROUP,
    aligned_bytes,
    has_wgmma,
    is_swapped,
    line,
    product_sides,
    stores_by_tma,
)
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem
from gemmkit.tensor_maps import Element

# Columns of a product come in such steps, those of the transposed in the smaller one.
COLUMN_STEP, EIGHT = 16, 8
# Lines of a box of transposed results, of up to 16 bits and of 32.
MOST_BOX_LINES, MOST_WORD_LINES = 96, 32
# Where TMA moves what the epilogue reads and keeps besides, boxes are smaller, so that more of them
# fit into the memory of two: bytes of a line, and lines of a box of transposed results.
FUSED_LINE_BYTES, MOST_FUSED_LINES = 64, 32
# Buffers for results on their way to memory, per consumer: those that there is room for.
FEWEST_BUFFERS, MOST_BUFFERS, MOST_FUSED_BUFFERS = 2, 4, 8
# 32-bit registers of a consumer's thread that sums may take: with up to two consumers, and with
# three, of whose blocks ptxas gives 128 to each thread.
SUM_REGISTERS, SUM_REGISTERS_OF_THREE = 192, 96
MOST_CONSUMERS = 3
# Largest box of a tensor map along one dimension, and columns of a wgmma.
MOST_LINES = 256


@dataclass(frozen=True)
class LoadedOperands:
    """A and B as TMA brings them: in place, or `copies`.

    Of `item_bytes` per element, `per_k` elements for each of the problem's k; `a_along_k` and
    `b_along_k` say whether neighbors along k are contiguous. TMA loads them as `element`, or as
    their own type; of operands across k, `box_depth` along k at once, or if 0 all of a stage. If
    they are `scaled_on_chip`, shared memory has a word for each line of two or all stages. `maps_c`
    says whether there is a tensor map of C beside theirs, or of each C. One that lies across k may
    come `from_registers`, which have a wgmma's rows: a tile is then computed as its transpose if
    that is B, whatever its sides are. `fuses` says whether the kernel has an entry to which TMA
    brings what the epilogue reads besides C.
    """

    item_bytes: int
    a_along_k: bool
    b_along_k: bool
    copies: tuple[OperandCopy, ...] = ()
    per_k: int = 1
    element: Element | None = None
    maps_c: bool = True
    box_depth: int = 0
    scaled_on_chip: bool = False
    from_registers: bool = False
    fuses: bool = False

    @classmethod
    def in_place(cls, problem: GemmProblem, copies: tuple[OperandCopy, ...] = ()) -> LoadedOperands:
        """Those of a problem, or copies of the same layout."""
        return cls(problem.item_bytes, not problem.transa, problem.transb, copies)

    @classmethod
    def along_k(cls, problem: GemmProblem, element: Element | None = None) -> LoadedOperands:
        """Those of a problem, or copies where others are contiguous than neighbors along k."""
        copies = aligned_copies(problem, along_k="AB")
        return cls(problem.item_bytes, True, True, copies, element=element)

    @property
    def swapped(self) -> bool | None:
        """Whether tiles are computed as their transposes; None where their sides decide."""
        return self.a_along_k if self.from_registers else None

    def is_swapped(self, config: TileConfig) -> bool:
        """Whether a tile is computed as its transpose."""
        return is_swapped(config) if self.swapped is None else self.swapped

    def sides(self, config: TileConfig) -> tuple[int, int]:
        """Rows and columns of a block's products."""
        return product_sides(config, swapped=self.swapped)

    @property
    def layout(self) -> str:
        """Their layout by BLAS's letters, as they are loaded."""
        return "nt"[not self.a_along_k] + "nt"[self.b_along_k]

    def depth(self, config: TileConfig) -> int:
        """Elements along k of a stage."""
        return config["BK"] * self.per_k


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
    count = buffers(problem, config, gpu, operands)
    blocks, way = clusters(problem, config, gpu).ctas, write_back(problem, config, operands)
    fused = way == "FUSED_BY_TMA"
    shape = LaunchShape(
        template=(
            *types,
            tile_argument(config, operands, count),
            CUDA_LAYOUTS[operands.layout if operands.from_registers else problem.layout],
            f"WriteBack::{way}",
            schedule_argument(problem, raster=max(1, RASTER_EXTENT // rows)),
        ),
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=shared_bytes(problem, config, operands, count),
        rasterized=True,
        tensor_maps=maps(problem, config, operands),
        copies=operands.copies if blocks else (),
        entry=entry + "_fused" * fused,
        signature=(*MAP_ARGUMENTS, *FURTHER_MAP_ARGUMENTS * fused, *signature) if entry else (),
    )
    return dependent(shape, gpu)


def tile_argument(config: TileConfig, operands: LoadedOperands, count: int) -> str:
    """The template argument `WgmmaTile{…}`, with so many buffers per consumer."""
    further = {"BK": operands.depth(config), "buffers": count, "threads": thread_count(config)}
    return named("WgmmaTile", {**config.as_dict(), **further})


def thread_count(config: TileConfig) -> int:
    """Threads of a block: its consumers and the producer's warpgroup."""
    return (config["consumers"] + 1) * WARPGROUP


def write_back(
    problem: GemmProblem, config: TileConfig, operands: LoadedOperands
) -> Literal["FROM_REGISTERS", "FROM_SHARED", "BY_TMA", "FUSED_BY_TMA"]:
    """How results leave, as write_back.cuh calls it: of tiles that are transposed because they
    have few rows, only those come to shared memory of which a line has all columns: elements of 8
    and of 16 bits."""
    narrow = problem.out_item_bytes <= ITEM_BYTES["float16"]
    if operands.is_swapped(config) and (
        config["BM"] <= EIGHT or not (narrow or operands.from_registers)
    ):
        return "FROM_REGISTERS"
    if not (operands.maps_c and stores_by_tma(problem)):
        return "FROM_SHARED"
    epilogue = problem.epilogue
    further = epilogue.residual or epilogue.auxiliary
    fused = problem.further_aligned if further else problem.beta != 0
    return "FUSED_BY_TMA" if operands.fuses and fused else "BY_TMA"


class Boxes(NamedTuple):
    """Boxes in which a consumer's results are stored: their sides, the bytes that the swizzle
    spans and lines lie apart, how many buffers of them a tile has, and how many of them a buffer
    has, side by side."""

    columns: int
    lines: int
    pitch: int
    number: int
    beside: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of a buffer."""
        return self.beside * self.lines * self.pitch


def result_boxes(problem: GemmProblem, config: TileConfig, operands: LoadedOperands) -> Boxes:
    """Those of C, as fragment_store.cuh and swapped_store.cuh have them."""
    fused = write_back(problem, config, operands) == "FUSED_BY_TMA"
    rows, columns = operands.sides(config)
    columns //= config["cluster_k"]
    tiles = rows // (config["consumers"] // config["pingpong"] * ROWS)
    item = problem.out_item_bytes
    if operands.is_swapped(config):
        span = min(line(item), ROWS)
        beside = ROWS // span
        most = MOST_BOX_LINES if span == ROWS else MOST_WORD_LINES
        most = MOST_FUSED_LINES // beside if fused else most
        lines = _even_part(columns, EIGHT, min(columns, most))
        return Boxes(span, lines, span * item, tiles * (columns // lines), beside)
    across = _even_part(columns, COLUMN_STEP, (FUSED_LINE_BYTES if fused else LINE_BYTES) // item)
    pitch = next(each for each in (32, 64, LINE_BYTES) if each >= across * item)
    return Boxes(across, ROWS, pitch, tiles * (columns // across))


def _even_part(extent: int, step: int, most: int) -> int:
    """The largest part in such steps that divides an extent and is `most` or less."""
    return next(each for each in range(most, 0, -step) if extent % each == 0)


def maps(problem: GemmProblem, config: TileConfig, operands: LoadedOperands) -> tuple[MapRule, ...]:
    """Tensor maps of A and B, and of C if it is stored by TMA."""
    product = (1,) if problem.batch != 1 else ()
    copied, item = {each.operand for each in operands.copies}, operands.item_bytes
    found = []
    for name, operand, along_k, side, sharing, ld in (
        ("map_a", "A", operands.a_along_k, config["BM"], config["cluster_n"], problem.lda),
        ("map_b", "B", operands.b_along_k, config["BN"], config["cluster_m"], problem.ldb),
    ):
        lines = side // sharing if along_k else operands.box_depth or config["BK"]
        box = (line(item), lines, *product)
        in_lines = operand in copied or ld * item % LINE_BYTES == 0
        l2 = L2_BYTES if in_lines else L2_BYTES_ACROSS_LINES
        element = operands.element
        found.append(MapRule(name, operand, box, swizzle=LINE_BYTES, l2=l2, element=element))
    way = write_back(problem, config, operands)
    if way not in ("BY_TMA", "FUSED_BY_TMA"):
        return tuple(found)
    boxes = result_boxes(problem, config, operands)
    box = (boxes.columns, boxes.lines, *product)
    of_results = [("map_c", "C")]
    if way == "FUSED_BY_TMA":
        wanted = problem.epilogue.residual, problem.epilogue.auxiliary
        named_maps = zip(FURTHER_MAP_ARGUMENTS, ("residual", "auxiliary"), wanted, strict=True)
        of_results += [(name, matrix) for name, matrix, used in named_maps if used]
    found += [MapRule(name, matrix, box, swizzle=boxes.pitch) for name, matrix in of_results]
    return tuple(found)


def shared_bytes(
    problem: GemmProblem, config: TileConfig, operands: LoadedOperands, count: int = FEWEST_BUFFERS
) -> int:
    """Shared bytes of all stages, of so many buffers per consumer, and of barriers."""
    item, stages = operands.item_bytes, config["stages"]
    # Boxes across k are whole.
    a, b = (
        side if along_k else ceil_div(side, line(item)) * line(item)
        for side, along_k in (
            (config["BM"], operands.a_along_k),
            (config["BN"], operands.b_along_k),
        )
    )
    total, parts = stages * (a + b) * operands.depth(config) * item, config["cluster_k"]
    if operands.scaled_on_chip:
        total += FLOAT_BYTES * (2 if stages % 2 == 0 else stages) * (config["BM"] + config["BN"])
    way, barriers = write_back(problem, config, operands), 2 * stages + 1
    if way != "FROM_REGISTERS":
        boxes = count * result_boxes(problem, config, operands).nbytes
        if way == "FUSED_BY_TMA":
            boxes *= 1 + problem.epilogue.auxiliary
            barriers += 2 * count * config["consumers"]
        total += config["consumers"] * aligned_bytes(boxes)
    else:
        total += TMA_UNIT
    # Sums that other blocks send.
    total += FLOAT_BYTES * config["BM"] * config["BN"] // parts * (parts - 1) or FLOAT_BYTES
    return aligned_bytes(total + 8 * barriers + 8)


def buffers(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands
) -> int:
    """Buffers per consumer: with one for each box of its results it never waits for a store."""
    most = {"BY_TMA": MOST_BUFFERS, "FUSED_BY_TMA": MOST_FUSED_BUFFERS}.get(
        write_back(problem, config, operands), FEWEST_BUFFERS
    )
    count = max(FEWEST_BUFFERS, min(result_boxes(problem, config, operands).number, most))
    while count > FEWEST_BUFFERS and room(problem, config, gpu, operands, count) is not None:
        count -= 1
    return count


def room(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    operands: LoadedOperands,
    count: int = FEWEST_BUFFERS,
) -> str | None:
    """Room for the stages, and for so many buffers per consumer."""
    return rules.dynamic_shared(shared_bytes(problem, config, operands, count), gpu)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands) -> Work:
    """A tile of C at a time per block, of operands that are ready."""
    shared = shared_bytes(problem, config, operands)
    threads, copied = thread_count(config), {each.operand for each in operands.copies}
    split = tuple(
        name not in copied and ld * operands.item_bytes % SECTOR != 0
        for name, ld in (("A", problem.lda), ("B", problem.ldb))
    )
    return persistent(problem, config, gpu, threads, shared, split=split, swapped=operands.swapped)


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
            if sharing in (1, 2)
            else f"cluster_m × cluster_n = {sharing}: 1 or 2 blocks of a cluster share operands"
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
        lambda: rules.divides(config, 8 * config["cluster_m"], "BN"),
        lambda: (
            "consumers with a tile each do not share its k with other blocks"
            if turns > 1 and parts > 1
            else None
        ),
        lambda: (
            f"BM = {config['BM']} is not a multiple of {ROWS}: such tiles share no operands"
            if swapped is None and transposed and sharing > 1
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
