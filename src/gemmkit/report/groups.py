"""Groups in one launch beside libraries as a table, with what limits each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.bench.groups import BATCHED, EACH, GROUPED
from gemmkit.bench.peers import CUBLAS
from gemmkit.bench.suites import grouped
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.groups import Groups
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.limiters import busiest_unit
from gemmkit.report.tables import correctness, number
from gemmkit.split_products import PRODUCTS, SPLIT_PRODUCTS

# By heading: the library, and how it computes groups.
_PEERS = {
    "cuBLAS,\ngrouped": (CUBLAS, GROUPED),
    "cuBLAS,\nbatched": (CUBLAS, BATCHED),
    "torch.bmm": ("torch", BATCHED),
    "torch.mm": ("torch", EACH),
}
# Tiles that are fuller than this cost little.
_FULL = 0.75


def filled(groups: Groups, config: dict[str, int]) -> float | None:
    """The share, 0 to 1, of the multiply-adds of a launch's tiles that belong to products.

    None where the configuration has no tiles, or there are none.
    """
    sizes = [config[key] for key in ("BM", "BN", "BK") if key in config]
    if len(sizes) < 3:
        return None
    m, n, k = (-(-side // size) * size for side, size in zip(groups.table, sizes, strict=False))
    counted = int((m * n * k).sum())
    return groups.multiply_adds / counted if counted else None


def limiter(record: Record, board: GpuSpec) -> str:
    """The unit that is busy for half of the time at least; and what else costs time."""
    time, tflops = record.time_us, record.tflops
    if time is None or tflops is None:
        return MISSING
    groups = Groups.parse(record.problem.groups)
    asked = record.problem
    types = {"dtype": asked.dtype, "out_dtype": asked.out_dtype, "precision": asked.precision}
    problem = GemmProblem.of_groups(groups, asked.layout, beta=asked.beta, **types)
    kernel = find_kernel(record.kernel)
    pipe = kernel.work(problem, TileConfig(**record.config), board).demands.math
    products = PRODUCTS if kernel.compute_dtype == SPLIT_PRODUCTS else 1
    moved = problem.minimal_bytes / time.median / 1e3
    unit = busiest_unit(products * tflops, moved, board, pipe)
    found = [unit] if unit else []
    share = filled(groups, record.config)
    if share is not None and share < _FULL:
        found.append(f"tiles {100 * share:.0f} % full")
    if not problem.is_aligned(VECTOR_BYTES):
        found.append("copies of single floats")
    return "; ".join(found) or "latency of short products"


def groups_table(records: Sequence[Record], title: str) -> Table:
    """A row for each launch: its time, and that of libraries over it."""
    board = find_board(records[0].device.gpu)
    names = {each.groups_text: name for name, each in grouped().items()}
    bounded = any(each.error_bound is not None for each in records)
    peers = {
        heading: kind
        for heading, kind in _PEERS.items()
        if any((each.vendor, each.choice) == kind for record in records for each in record.peers)
    }
    columns = (
        Column("products", "left"),
        Column("tile", "left"),
        *((Column("max error / bound", drop=2),) if bounded else ()),
        Column("median\nµs"),
        Column("TFLOP/s"),
        *(Column(f"×\n{heading}") for heading in peers),
        Column("limiter", "left", drop=1),
    )

    def cells(record: Record) -> Iterable[Cell]:
        name = names.get(record.problem.groups, record.problem.shape)
        yield Cell(name if record.correct else f"{name} WRONG")
        yield Cell(
            "×".join(str(record.config[key]) for key in ("BM", "BN") if key in record.config)
        )
        if bounded:
            yield correctness(record)
        yield number(record.time_us.median if record.time_us else None, 1)
        yield number(record.tflops, 1)
        speedups = {(each.vendor, each.choice): each.speedup for each in record.peers}
        for kind in peers.values():
            yield number(speedups.get(kind), 2)
        yield Cell(limiter(record, board))

    return Table(title, columns, tuple(Row(tuple(cells(record))) for record in records))
