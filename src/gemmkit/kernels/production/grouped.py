"""What kernels share that compute groups: tiles of all products, and blocks that take them in turn.

`of_any_type` makes such a kernel of one whose mainloop takes elements of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gemmkit.dtypes import is_narrow
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.plan import TABLE_ARGUMENTS, LaunchShape, Signature, TileConfig, ceil_div
from gemmkit.kernels.production.arguments import launch_shape
from gemmkit.kernels.production.schedule import RASTER_ROWS, schedule_argument
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.group_table import GroupTable

SIGNATURE: Signature = (*TABLE_ARGUMENTS, "alpha", "beta", "scale")

# A tile's number is 32-bit in the kernel, which adds half a tile and the grid's blocks to it.
MAX_TILES = 2**31 - 2**17

# Multiply-adds of a tile that are worth a block of its own: on an H100 its start takes less time
# than blocks that share tiles lose from one to the next.
OWN_BLOCK = 2**15


def table_of(problem: GemmProblem, config: TileConfig) -> GroupTable:
    """The table of the problem's products, cut into the configuration's tiles."""
    # NumPy, which other products do without.
    from gemmkit.kernels.group_table import GroupTable

    return GroupTable(problem, config["BM"], config["BN"])


def launch(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    template: Iterable[str],
    threads: int,
    shared_bytes: int,
    resident: Callable[[], int],
) -> LaunchShape:
    """Tiles of little work, where all products have the same k, are shared evenly by as many blocks
    as the board holds. Otherwise each tile has a block of its own, which the board starts as soon
    as another has ended, those with the longest k first.

    Args:
        problem, config, gpu: as of any launch.
        template: the template arguments up to the schedule.
        threads, shared_bytes: of a block.
        resident: how many blocks an SM holds.
    """
    table = table_of(problem, config)
    if table.tiles:
        rows, columns = table.tile_counts
        depths = table.groups.k[(rows > 0) & (columns > 0)]
        small = config["BM"] * config["BN"] * int(depths[0]) < OWN_BLOCK
        if small and (depths == depths[0]).all():
            table = replace(table, most=gpu.sm_count * resident())
    schedule = schedule_argument(problem.single, raster=RASTER_ROWS)
    shape = launch_shape(
        (*template, schedule), (table.blocks(table.tiles), 1, 1), threads, shared_bytes
    )
    return replace(shape, rasterized=True, table=table)


def condition(problem: GemmProblem, _: GpuSpec) -> str | None:
    """Sizes and leading dimensions are 32-bit, and results have more than 8 bits: tables hold
    addresses of C, which those of 8 bits do not read."""
    if is_narrow(problem.result_dtype):
        return f"kernels for groups write no results of {problem.result_dtype}"
    if problem.groups is None:
        return None
    for name in ("m", "n", "k", "lda", "ldb", "ldc"):
        sizes = getattr(problem.groups, name)
        if sizes.max(initial=0) > MAX_EXTENT:
            number = int(sizes.argmax())
            return (
                f"product {number} has {name} = {sizes[number]}: indices are 32-bit, {MAX_EXTENT} "
                "is the most"
            )
    return None


def pairing(problem: GemmProblem, config: TileConfig) -> str | None:
    """As many tiles as a kernel can number."""
    tiles = table_of(problem, config).tiles
    if tiles > MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({MAX_TILES}): use several"
    return None


def work(problem: GemmProblem, config: TileConfig, of_cut: Callable[[Cut], Work]) -> Work:
    """A tile for each CTA, with the mean of all steps along k, and the most steps of one."""
    table = table_of(problem, config)
    mean, longest = steps_of_tiles(table, config)
    found = Cut(config["BM"], config["BN"], table.tiles, table.tiles, mean)
    return of_cut(found)._replace(longest=longest)


def steps_of_tiles(table: GroupTable, config: TileConfig) -> tuple[int, int]:
    """Steps along k of a table's tiles: their mean, and the most of one."""
    if not table.tiles:
        return 0, 0
    rows, columns = table.tile_counts
    tiles = rows * columns
    # BLAS: α = 0 never reads A or B.
    depths = table.groups.k * bool(table.problem.alpha)
    steps = (-(-depths // config["BK"])).clip(min=1)
    return ceil_div(int((tiles * steps).sum()), table.tiles), int(steps[tiles > 0].max())


class Mainloop(Protocol):
    """What is known of a mainloop for elements of any type: the module of a kernel that has it."""

    KERNEL: Kernel

    def template(self, problem: GemmProblem, config: TileConfig) -> tuple[str, ...]:
        """Its template arguments."""

    def work(
        self, problem: GemmProblem, config: TileConfig, gpu: GpuSpec, found: Cut | None = None
    ) -> Work:
        """What blocks do that share a problem as `found` says."""


def of_any_type(mainloop: Mainloop, name: str, idea: str) -> Kernel:
    """The kernel for groups with a mainloop, and the types, rules and tiles of the one for single
    products."""
    single = mainloop.KERNEL

    def work_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
        return work(problem, config, lambda found: mainloop.work(problem, config, gpu, found))

    def launch_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
        asked = work_of(problem, config, gpu)
        threads, shared_bytes, demands = asked.threads, asked.shared_bytes, asked.demands
        registers = min(demands.registers + demands.other_registers, demands.most_registers)
        return launch(
            *(problem, config, gpu, mainloop.template(problem, config), threads, shared_bytes),
            lambda: rules.blocks_that_fit(threads, registers, gpu, shared_bytes),
        )

    def both(problem: GemmProblem, gpu: GpuSpec) -> str | None:
        of_mainloop = None if single.condition is None else single.condition(problem, gpu)
        return of_mainloop or condition(problem, gpu)

    def pairing_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
        of_mainloop = None if single.pairing is None else single.pairing(problem, config, gpu)
        return of_mainloop or pairing(problem, config)

    return replace(
        single,
        name=name,
        idea=idea,
        launch=launch_of,
        work=work_of,
        mainloop=single,
        signature=SIGNATURE,
        condition=both,
        pairing=pairing_of,
    )
