"""Files of `dispatch_regret.py`: a line of environment, then one a problem; what they say in words,
and their winners for a table of tuned shapes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from dispatch_shapes import KINDS, LAYOUTS, SKINNY, TYPES, Kind

from gemmkit.dtypes import Dtype, Precision
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.scales import Scales
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.exchange import decode_table, write_table
from gemmkit.trials.freshness import source_digest
from gemmkit.version import __version__

# Of candidates within this factor of each other in turn, none is taken to be the slower one.
AS_GOOD = 1.015


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: where, how and of what code times are; a thread's registers by instance."""

    gpu: str
    environment: dict[str, object]
    command: str
    sources: dict[str, str]
    registers: dict[str, int]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem: microseconds by label at a first look and in turn, and what was wrong.

    `ratio` is the time of dispatch's choice over the best one's, cuBLAS apart. `looks` has the
    order of the estimates. `left_out` candidates were not timed. `cublas` is in microseconds, as
    the turns are; `peer` is how cuBLAS was called.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "nn"
    dtype: Dtype = "float32"
    precision: Precision = "ieee"
    out_dtype: Dtype | None = None
    scales: str = ""
    kind: Kind = "random"
    best: str
    chosen: str
    ratio: float
    looks: dict[str, float]
    turns: dict[str, float]
    wrong: dict[str, str]
    left_out: int
    cublas: float | None = None
    peer: str = ""

    @property
    def problem(self) -> GemmProblem:
        return GemmProblem(
            self.m,
            self.n,
            self.k,
            batch=self.batch,
            transa=self.layout[0] == "t",
            transb=self.layout[1] == "t",
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            precision=self.precision,
            scales=Scales.parse(self.scales),
        )

    @property
    def times(self) -> dict[str, float]:
        """The better figure of each label."""
        return self.looks | self.turns

    @property
    def speedup(self) -> float | None:
        """cuBLAS's time over that of dispatch's choice."""
        return self.cublas / self.turns[self.chosen] if self.cublas else None


def read(path: Path) -> tuple[Head, list[Row]]:
    """The lines of a file of results."""
    first, *rest = path.read_bytes().splitlines()
    head = msgspec.json.decode(first, type=Head)
    return head, [msgspec.json.decode(line, type=Row) for line in rest]


def begin(path: Path, head: Head, *, anew: bool) -> set[GemmProblem]:
    """The problems that a file has already; it is begun where it is missing or of other code."""
    if path.exists() and not anew:
        old, rows = read(path)
        if old.sources == head.sources and old.gpu == head.gpu:
            return {row.problem for row in rows}
        raise SystemExit(f"{path} is of other kernels or another GPU: give --anew to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(head) + b"\n")
    return set()


def note_compiled(path: Path, registers: dict[str, int], compilers: set[str]) -> None:
    """Registers, and what compiled the kernels, are known once everything is compiled."""
    head, _, rows = path.read_bytes().partition(b"\n")
    old = msgspec.json.decode(head, type=Head)
    told = {"compiler": " and ".join(sorted(compilers))} if compilers else {}
    noted = msgspec.structs.replace(
        old, registers=old.registers | registers, environment=old.environment | told
    )
    path.write_bytes(msgspec.json.encode(noted) + b"\n" + rows)


def told(row: Row) -> str:
    """One problem in a line."""
    problem = row.problem
    against = f" {row.speedup:5.2f} × cuBLAS" if row.speedup else ""
    wrong = f"  WRONG: {row.wrong}" if row.wrong else ""
    return (
        f"{problem.dtype:8} {problem.layout} {problem.shape:20} {row.ratio:6.3f}{against}  "
        f"{row.chosen} / {row.best}{wrong}"
    )


def winner(row: Row) -> str:
    """What a table is to have: of the candidates that are as good as the best in turn, where large
    products are at the board's power limit, the fastest of those that are timed alone."""
    least = min(row.turns.values())
    level = [label for label, each in row.turns.items() if each <= AS_GOOD * least]
    return min(level, key=lambda label: (row.looks.get(label, math.inf), row.turns[label]))


def enter(path: Path, table: Path) -> int:
    """Put the winners of a file of results into a table of tuned shapes; how many there are.

    Raises:
        SystemExit: the file is of other kernels than these.
    """
    head, rows = read(path)
    gpu, found = find_board(head.gpu), []
    for row in rows:
        won = winner(row)
        kernel = find_kernel(won)
        source = source_digest(kernel)
        if head.sources.get(kernel.name) != source:
            raise SystemExit(f"{path} is of another {kernel.name}")
        found.append(
            Entry(
                gpu=gpu_key(gpu),
                problem=ProblemClass.of(row.problem),
                kernel=kernel.name,
                config=kernel.default.as_dict(),
                outcome="ok",
                source=source,
                compiler=str(head.environment["compiler"]).removeprefix("NVRTC "),
                time_us=row.turns[won],
                final=True,
                gemmkit=__version__,
            )
        )
    classes = {(each.problem, each.epilogue) for each in found}
    kept = decode_table(table.read_bytes(), str(table)) if table.exists() else ()
    left = [each for each in kept if (each.problem, each.epilogue) not in classes]
    write_table(table, [*left, *found])
    return len(found)


def summary(ratios: Sequence[float]) -> str:
    """Regret in words: how much longer than the best the choice takes."""
    p50, p80, p90, p95 = np.percentile(ratios, (50, 80, 90, 95))
    near = np.mean(np.asarray(ratios) <= 1.08)
    return (
        f"{len(ratios)} shapes: median {p50 - 1:.1%}, p80 {p80 - 1:.1%}, "
        f"p90 {p90 - 1:.1%}, p95 {p95 - 1:.1%}, "
        f"worst {max(ratios) - 1:.1%}; {near:.0%} of them within 8%"
    )


def report(rows: Sequence[Row]) -> str:
    """The regret of all shapes and of some kinds, the speed beside cuBLAS, and how often each
    instance is the best."""
    lines = []
    parts = {
        "all": lambda _: True,
        **{kind: (lambda row, kind=kind: row.kind == kind) for kind in KINDS},
        **{layout: (lambda row, layout=layout: row.layout == layout) for layout in LAYOUTS},
        "aligned": lambda row: row.problem.is_aligned(16),
        "not aligned": lambda row: not row.problem.is_aligned(16),
        "skinny": lambda row: min(row.m, row.n) <= SKINNY,
        "small": lambda row: SKINNY < min(row.m, row.n) < 512,
        "others": lambda row: min(row.m, row.n) >= 512,
        "batches": lambda row: row.batch > 1,
        **{dtype: (lambda row, dtype=dtype: row.dtype == dtype) for dtype in TYPES},
    }
    for name, belongs in parts.items():
        some = [row for row in rows if belongs(row)]
        if not some:
            continue
        lines.append(f"{name:12} {summary([row.ratio for row in some])}")
        speeds = [row.speedup for row in some if row.speedup]
        if speeds:
            p10, p50 = np.percentile(speeds, (10, 50))
            lines.append(
                f"{'':12} × cuBLAS: median {p50:.2f}, worst tenth {p10:.2f}, least "
                f"{min(speeds):.2f}"
            )
    wins = Counter(re.sub(r"split_k=\d+,", "", row.best) for row in rows)
    lines += [f"{count:5} × {instance}" for instance, count in wins.most_common()]
    return "\n".join(lines)
