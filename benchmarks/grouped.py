"""Many small products in one launch, beside cuBLAS and PyTorch, on the GPU of this machine.

`python benchmarks/grouped.py` measures batches by arrays of pointers (32³ to 256³, thousands of
them) and groups of different shapes as mixtures of experts have them. It writes
`results/<gpu>-grouped.json`, a line per case, and prints a table. Every contender is checked on
integers, whose products are exact, and timed in turn with the others by replaying CUDA graphs over
sets of matrices that together exceed the L2 cache. With `--tiles`, all of gemmkit's configurations
and both of its grids are timed too, which shows what the choice of tiles is worth. The exit status
is 1 if a result is wrong.

`cublasSgemmBatched` and `torch.bmm` take equal sizes only, the latter in one array without gaps;
`cublasSgemmGroupedBatched` takes any, and `torch.mm` stands for a launch for each product.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from grouped_peers import Cublas, Maker, Torch
from grouped_work import Case, Workload, cases

from gemmkit.bench.conditions import Conditions, watched
from gemmkit.bench.timer import Contender, time_in_turn
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import TimedDevice
from gemmkit.devices.management import management_probes
from gemmkit.devices.operands import NOWHERE, Operands, bind_arguments
from gemmkit.dispatch.candidates import FOR_GROUPS
from gemmkit.dispatch.choose import choose
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.kernels.production.gemm_grouped import KERNEL, table_of, vector_width
from gemmkit.kernels.rules import resident_blocks
from gemmkit.problem import GemmProblem
from gemmkit.record import ConditionsRecord, TimeRecord
from gemmkit.report.layout import Cell, Column, Row, Table

RESULTS = Path(__file__).resolve().parent / "results"
# Of the shapes of a case, so many are reported.
MOST_SHAPES = 32


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One way to all products of a case; `ratio` is its time over that of gemmkit's choice."""

    name: str
    time_us: TimeRecord
    tflops: float
    gb_per_s: float
    ratio: float
    wrong: str = ""


class GroupedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A case; `sizes` are its most frequent shapes, the first entry is gemmkit's choice.

    Its GB/s count each matrix once. `filled` is the share of its tiles' multiply-adds that belong
    to products, `aligned` whether they are copied 16 bytes at a time. `host_us` is how long calls
    on PyTorch's tensors take to return.
    """

    case: str
    products: int
    sizes: dict[str, int]
    flops: int
    minimal_bytes: int
    config: dict[str, int]
    grid: tuple[int, int, int]
    filled: float
    aligned: bool
    entries: list[Entry]
    left_out: dict[str, str]
    host_us: dict[str, float]
    conditions: ConditionsRecord | None
    environment: dict[str, Any]


# --- contenders ---------------------------------------------------------------------------------


def gemmkit_contender(work: Workload, config: TileConfig, plan: LaunchPlan) -> Contender:
    """The launch of one configuration, with a table on the device for each set."""
    binary = compile_plan(plan, work.device.spec.arch)
    bound = bind_arguments(work.problem, Operands(NOWHERE, NOWHERE, NOWHERE))
    products = table_of(work.problem, config)
    found = []
    for matrices in work.sets:
        table = products.filled({name: matrices.addresses(name) for name in "ABC"})
        listed = {**bound, **products.arguments, "groups": work.upload(table)}
        found.append(work.device.work(binary, plan, listed))
    return found


def other_tiles(work: Workload) -> Iterator[tuple[str, Contender]]:
    """Every configuration, in the grid of its plan and with a block per tile."""
    spec = work.device.spec
    for candidate in FOR_GROUPS:
        config = candidate.config
        if KERNEL.supports(work.problem, config, spec):
            continue
        plan = KERNEL.plan(work.problem, config, spec)
        tiles = table_of(work.problem, config).tiles
        resident = min(plan.blocks, _resident(plan, config, work.device))
        for blocks in sorted({tiles, resident}):
            name = f"gemmkit {config}, {blocks} blocks for {tiles} tiles"
            sized = replace(plan, grid=(blocks, 1, 1))
            yield name, gemmkit_contender(work, config, sized)


def _resident(plan: LaunchPlan, config: TileConfig, device: TimedDevice) -> int:
    """Blocks that the board holds at once."""
    return device.spec.sm_count * resident_blocks(config, device.spec, plan.shared_bytes)


# --- measuring ----------------------------------------------------------------------------------


def measure(
    case: Case,
    device: TimedDevice,
    peers: Sequence[Any],
    *,
    seconds: float,
    tiles: bool,
    commit: str | None = None,
) -> GroupedRecord:
    """Check all contenders of a case, then time them in turn."""
    work = Workload(case, device)
    config = choose(work.problem, device.spec).config
    plan = KERNEL.plan(work.problem, config, device.spec)
    makers: list[Maker] = [(f"gemmkit {config}", lambda: gemmkit_contender(work, config, plan))]
    for peer in peers:
        makers += peer.contenders(work)
    if tiles:
        makers += [(name, lambda made=made: made) for name, made in other_tiles(work)]
    ready: dict[str, Contender] = {}
    wrong: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, make in makers:
        try:
            contender = make()
            contender[0](device.stream)
            wrong[name] = work.wrong(contender)
            ready[name] = contender
        except Exception as error:
            # What a library cannot do, such as being recorded, must not end a long run.
            left_out[name] = _told(error)
    host_us: dict[str, float] = {}
    for peer in peers:
        try:
            host_us |= peer.host_us(work)
        except Exception as error:
            left_out[f"calls with {peer.name}"] = _told(error)
    conditions = Conditions()
    during = watched(management_probes(device.stream), conditions)
    times = time_in_turn(
        device, list(ready.values()), seconds=seconds, kept=work.kept, during=during
    )
    own, problem = times[0].median, work.problem
    return GroupedRecord(
        case=case.name,
        products=problem.count,
        sizes=_histogram(case),
        flops=problem.flops,
        minimal_bytes=problem.minimal_bytes,
        config=config.as_dict(),
        grid=plan.grid,
        filled=_filled(problem, config),
        aligned=vector_width(problem) > 1,
        entries=[
            Entry(
                name=name,
                time_us=its,
                tflops=problem.flops / its.median / 1e6,
                gb_per_s=problem.minimal_bytes / its.median / 1e3,
                ratio=its.median / own,
                wrong=wrong[name],
            )
            for name, its in zip(ready, times, strict=True)
        ],
        left_out=left_out,
        host_us=host_us,
        conditions=conditions.record(),
        environment=device.environment()
        | {"command": " ".join(["python", *sys.argv])}
        | ({"commit": commit} if commit else {}),
    )


def _filled(problem: GemmProblem, config: TileConfig) -> float:
    table = table_of(problem, config)
    rows, columns = table.tile_counts
    depth = -(-table.groups.k // config["BK"]) * config["BK"]
    counted = int((rows * columns * depth).sum()) * config["BM"] * config["BN"]
    return problem.flops / 2 / counted if counted else 1.0


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _histogram(case: Case) -> dict[str, int]:
    """How many products there are of each shape, the most frequent ones first."""
    counted = Counter(f"{m}x{n}x{k}" for m, n, k in case.shapes)
    return dict(counted.most_common(MOST_SHAPES))


def table(records: Sequence[GroupedRecord]) -> Table:
    """A row a contender."""
    columns = (
        Column("case", "left"),
        Column("contender", "left"),
        Column("µs"),
        Column("TFLOP/s"),
        Column("GB/s"),
        Column("over gemmkit"),
    )
    rows = []
    for record in records:
        for number, each in enumerate(record.entries):
            cells = (
                Cell("" if number else record.case),
                Cell(each.name + (f" WRONG: {each.wrong}" if each.wrong else "")),
                Cell(f"{each.time_us.median:.1f}"),
                Cell(f"{each.tflops:.2f}"),
                Cell(f"{each.gb_per_s:.0f}"),
                Cell(f"{each.ratio:.3f}"),
            )
            rows.append(Row(cells))
    return Table("Many products in one launch", columns, tuple(rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="by default results/<gpu>-grouped.json")
    parser.add_argument("--cases", help="numbers of cases, such as 0,3,12; by default all")
    parser.add_argument("--seconds", type=float, default=1.0, help="of samples a case")
    parser.add_argument("--tiles", action="store_true", help="time every configuration, too")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = open_device("cuda")
    assert isinstance(device, TimedDevice)
    peers: list[Any] = []
    for kind in (Cublas, Torch):
        try:
            peers.append(kind(device))
        except Exception as error:
            print(f"{kind.__name__} left out: {type(error).__name__}: {error}", flush=True)
    every = cases()
    if arguments.cases:
        every = [every[int(number)] for number in arguments.cases.split(",")]
    path = arguments.results or RESULTS / f"{device.spec.key}-grouped.json"
    records = []
    with path.open("wb") as file:
        for case in every:
            record = measure(
                case,
                device,
                peers,
                seconds=arguments.seconds,
                tiles=arguments.tiles,
                commit=arguments.commit,
            )
            records.append(record)
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
            print(table([record]).to_text(), *record.left_out.items(), sep="\n")
            print("until a call returns, µs:", record.host_us, flush=True)
    return 1 if any(each.wrong for record in records for each in record.entries) else 0


if __name__ == "__main__":
    sys.exit(main())
