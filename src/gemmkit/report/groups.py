"""Groups in one launch beside libraries as a table, with what limits each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.analysis.limiters import limiter_of_groups
from gemmkit.bench.groups import BATCHED, EACH, GROUPED
from gemmkit.bench.peers import CUBLAS
from gemmkit.bench.suites import grouped, ragged
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.groups import Groups
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import correctness, number

# By heading: the library, and how it computes groups.
_PEERS = {
    "cuBLAS,\ngrouped": (CUBLAS, GROUPED),
    "cuBLAS,\nbatched": (CUBLAS, BATCHED),
    "torch.\n_grouped_mm": ("torch", GROUPED),
    "torch.bmm": ("torch", BATCHED),
    "torch.mm": ("torch", EACH),
}


def limiter(record: Record, board: GpuSpec) -> str:
    """The unit that is busy for half of the time at least; and what else costs time."""
    time = record.time_us
    if time is None or record.tflops is None:
        return MISSING
    groups = Groups.parse(record.problem.groups)
    asked = record.problem
    types = {"dtype": asked.dtype, "out_dtype": asked.out_dtype, "precision": asked.precision}
    problem = GemmProblem.of_groups(groups, asked.layout, beta=asked.beta, **types)
    kernel, config = find_kernel(record.kernel), TileConfig(**record.config)
    return limiter_of_groups(problem, kernel, config, time.median, board)


def groups_table(records: Sequence[Record], title: str) -> Table:
    """A row for each launch: its time, and that of libraries over it."""
    board = find_board(records[0].device.gpu)
    suites = {**grouped(), **ragged()}
    names = {each.groups_text: name for name, each in suites.items()}
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
