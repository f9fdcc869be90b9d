"""How much slower dispatch's choice is than the best candidate, and than cuBLAS, on this GPU.

`python benchmarks/dispatch_regret.py` times, at problems of a fixed seed, what dispatch chooses,
the candidates that it ranks first, and cuBLAS; each result is checked, and the leaders, the choice
and cuBLAS are timed in turn at the end. It writes `results/<gpu>-dispatch.json`: a line of
environment, then one a problem. `--kind` says which problems (several at once take turns):
`random` ones of fp32 and plain layout, `thin` ones (one of m, n and k at most 128, the others to
50,000), `short` ones (k at most 32), and `wide` ones of every layout and type, single and in
batches, from 16 to 16,384. Those of suites (`--suites`) and of a file (`--shapes-file`) may be laid
out in several ways.

Started again, it goes on where it stopped. What the next problems need is compiled while the ones
before them are timed. `--compile BOARD --cache FOLDER` fills a cache ahead where there is no GPU,
`--report FILE` prints what a file says, and `--enter FILE --table TABLE` puts its winners into a
table of tuned shapes. `dispatch_fit.py` fits the heuristic to such a file.

What it bounds: the regret is against the best of dispatch's own candidates. A search over all
configurations may find one that is not in the list.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from run_suites import parts

from gemmkit.bench.baseline import Baseline
from gemmkit.bench.peers import find_baseline
from gemmkit.bench.suites import find_suite, variants
from gemmkit.bench.workload import Workload
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import TimedDevice
from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.prices import Ranked
from gemmkit.dispatch.tuned import shipped_entries
from gemmkit.dtypes import Dtype, Precision
from gemmkit.errors import DeviceError, UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.limits import SHORT_K
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.problem import GemmProblem, read_problem
from gemmkit.scales import Scales
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.exchange import decode_table, write_table
from gemmkit.trials.freshness import source_digest
from gemmkit.tune.space import Candidate
from gemmkit.tune.trial import Bench, Compiled, Planned
from gemmkit.version import __version__

# What a plan is compiled from.
Instances = tuple[tuple[SourceFile, str], ...]

RESULTS = Path(__file__).resolve().parent / "results"
SEED, SHAPES = 0, 200
SMALLEST, LARGEST, SKINNY = 16, 8192, 16
THIN, LONGEST, WIDEST = 128, 50_000, 16_384
SKINNY_SHARE, ALIGNED_SHARE = 0.15, 0.5
# Of `wide` problems: batches, and other types than float32.
BATCH_SHARE, TYPED_SHARE, LARGEST_BATCH = 0.2, 0.25, 256
LAYOUTS = ("nn", "nt", "tn", "tt")
TYPES: tuple[Dtype, ...] = ("float16", "bfloat16", "float64")
# At 50 TFLOP/s 0.34 ms a launch; and 64 MiB a matrix, since each result is compared on the host.
# The other kinds of problems may take some times as much.
MOST_MULTIPLY_ADDS, MOST_ELEMENTS = 2**33, 2**24
MOST_OF_OTHERS, MOST_ELEMENTS_OF_OTHERS = 2**36, 2**25
# Candidates are the first of the ranking, and of each instance no more ways to cut k than these.
CANDIDATES, CUTS = 15, 2
# Those so close to the fastest at a first look meet again in turn.
CLOSE, MOST_LEADERS, TURN_SECONDS = 1.06, 6, 0.08
# Problems whose instances are compiled together, ahead of their turn.
CHUNK = 8

Kind = Literal["random", "thin", "wide", "short", "given"]
KINDS: tuple[Kind, ...] = ("random", "thin", "wide", "short")
CUBLAS = "cuBLAS"

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


def random_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Shapes with sizes uniform in their logarithms, half of them aligned, some of them skinny."""
    rng = random.Random(seed)
    low, high = np.log2(SMALLEST), np.log2(LARGEST)
    found: list[GemmProblem] = []
    while len(found) < count:
        m, n, k = (round(2 ** rng.uniform(low, high)) for _ in range(3))
        if rng.random() < SKINNY_SHARE:
            short = rng.randint(1, SKINNY)
            m, n = (short, n) if rng.random() < 0.5 else (m, short)
        if rng.random() < ALIGNED_SHARE:
            n, k = (max(4, each // 4 * 4) for each in (n, k))
        if m * n * k <= MOST_MULTIPLY_ADDS and max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            found.append(GemmProblem(m, n, k))
    return found


def thin_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts with one of m, n and k at most 128, half of them aligned; logarithms
    of sizes are uniform."""
    rng = random.Random(f"thin {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        sizes = [round(2 ** rng.uniform(np.log2(THIN), np.log2(LONGEST))) for _ in range(3)]
        sizes[len(found) % 3] = round(2 ** rng.uniform(0, np.log2(THIN)))
        if rng.random() < ALIGNED_SHARE:
            sizes = [max(4, each // 4 * 4) for each in sizes]
        layout = LAYOUTS[len(found) // 3 % len(LAYOUTS)]
        problem = GemmProblem(*sizes).laid_out(layout)
        if _affordable(problem):
            found.append(problem)
    return found


def short_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts with a k of at most `SHORT_K`, some of whose C is thin, half of them
    aligned; logarithms of sizes are uniform."""
    rng = random.Random(f"short {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        m, n = (round(2 ** rng.uniform(np.log2(THIN) - 2, np.log2(WIDEST))) for _ in range(2))
        sizes = [m, n, round(2 ** rng.uniform(0, np.log2(SHORT_K)))]
        if rng.random() < ALIGNED_SHARE:
            sizes = [max(4, each // 4 * 4) for each in sizes]
        problem = GemmProblem(*sizes).laid_out(LAYOUTS[len(found) % len(LAYOUTS)])
        if _affordable(problem):
            found.append(problem)
    return found


def wide_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts, sizes uniform in their logarithms; half are aligned, some batches,
    some of other types than float32."""
    rng = random.Random(f"wide {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        sizes = [round(2 ** rng.uniform(np.log2(SMALLEST), np.log2(WIDEST))) for _ in range(3)]
        if rng.random() < ALIGNED_SHARE:
            sizes = [each // 8 * 8 for each in sizes]
        layout = LAYOUTS[len(found) % len(LAYOUTS)]
        batch = rng.randint(2, LARGEST_BATCH) if rng.random() < BATCH_SHARE else 1
        dtype: Dtype = rng.choice(TYPES) if rng.random() < TYPED_SHARE else "float32"
        problem = GemmProblem(*sizes, batch=batch, dtype=dtype).laid_out(layout)
        if _affordable(problem):
            found.append(problem)
    return found


def _affordable(problem: GemmProblem) -> bool:
    m, n, k = problem.m, problem.n, problem.k
    elements = problem.batch * max(m * n, m * k, n * k)
    return m * n * k * problem.batch <= MOST_OF_OTHERS and elements <= MOST_ELEMENTS_OF_OTHERS


SHAPES_OF = {
    "random": random_shapes,
    "thin": thin_shapes,
    "wide": wide_shapes,
    "short": short_shapes,
}


def given_problems(arguments: argparse.Namespace) -> list[tuple[Kind, GemmProblem]]:
    """Those of suites or of a file, each in every type and layout that is asked for."""
    found = [problem for name in arguments.suites for problem in find_suite(name)]
    if arguments.shapes_file is not None:
        found += [read_problem(each) for each in arguments.shapes_file.read_text().split()]
    layouts = [read_layout(each) for each in arguments.layouts or ["nn"]]
    asked = variants(
        found,
        arguments.dtype,
        arguments.out_dtype,
        layouts=layouts,
        precision=arguments.precision,
        scales=arguments.scales,
    )
    return [("given", each) for each in asked]


def asked_problems(kinds: Sequence[Kind], count: int, seed: int) -> list[tuple[Kind, GemmProblem]]:
    """The problems of these kinds, which take turns."""
    each_kind = [[(kind, each) for each in SHAPES_OF[kind](count, seed)] for kind in kinds]
    return [each for turn in zip(*each_kind, strict=True) for each in turn]


def entered(
    dispatcher: Dispatcher, problem: GemmProblem, most: int = CANDIDATES
) -> tuple[list[Ranked], int]:
    """The candidates to time, the best estimate first, and how many are left out.

    Dispatch's choice is among them, whatever its estimate, and so is what tables have for boards
    with the same SMs, and every instance whose costs were never measured: nothing else would tell
    that its estimate is wrong.
    """
    ranked = list(dispatcher.ranked(problem))
    near: list[Ranked] = []
    cuts: Counter[str] = Counter()
    for each in ranked:
        instance = each.costed.candidate.instance
        unknown = not each.costed.is_measured(problem.dtype) and not cuts[instance]
        if unknown or (len(near) < most and cuts[instance] < CUTS):
            cuts[instance] += 1
            near.append(each)
    choice = dispatcher.choose(problem)
    labels = {each.costed.candidate.label for each in near}
    tuned = shipped_entries(dispatcher.gpu, ProblemClass.of(problem))
    for kernel, config in (
        (choice.kernel.name, choice.config),
        *((each.kernel, each.tile_config) for each in tuned),
    ):
        costed = dispatcher.costed(kernel, config)
        if costed.candidate.label not in labels:
            labels.add(costed.candidate.label)
            near.append(Ranked(costed, costed.estimate(problem)))
    return near, max(len(ranked) - len(near), 0)


def compiled(
    dispatcher: Dispatcher,
    problems: Sequence[GemmProblem],
    cache_dir: Path | None,
    known: dict[Instances, Binary] | None = None,
) -> dict[Instances, Binary]:
    """A binary for each plan that the shapes need, by its instances, with those that are known."""
    known = known or {}
    wanted: dict[Instances, LaunchPlan] = {}
    for problem in problems:
        for each in entered(dispatcher, problem)[0]:
            plan = each.costed.kernel.plan(problem, each.costed.config, dispatcher.gpu)
            if plan.instances not in known:
                wanted.setdefault(plan.instances, plan)
    started = time.monotonic()
    binaries = compile_many(list(wanted.values()), dispatcher.gpu.arch, cache_dir=cache_dir)
    if wanted:
        spent = time.monotonic() - started
        print(f"{len(wanted)} instances compiled in {spent:.1f} s", flush=True)
    return known | dict(zip(wanted, binaries, strict=True))


def in_chunks(
    dispatcher: Dispatcher, problems: Sequence[tuple[Kind, GemmProblem]], cache_dir: Path | None
) -> Iterator[tuple[list[tuple[Kind, GemmProblem]], dict[str, Binary]]]:
    """Problems with the binaries that they need, some at a time; the next ones are being compiled.

    The dispatcher is one of its own, since another thread asks it.
    """
    chunks = [list(problems[first : first + CHUNK]) for first in range(0, len(problems), CHUNK)]
    known: dict[Instances, Binary] = {}
    with ThreadPoolExecutor(1) as ahead:
        job = None
        for number, chunk in enumerate(chunks):
            if job is None:
                known = compiled(dispatcher, [each for _, each in chunk], cache_dir, known)
            else:
                known = job.result()
            if number + 1 < len(chunks):
                later = [each for _, each in chunks[number + 1]]
                job = ahead.submit(compiled, dispatcher, later, cache_dir, known)
            yield chunk, known


def registers(
    dispatcher: Dispatcher, problems: Sequence[GemmProblem], binaries: dict[Instances, Binary]
) -> dict[str, int]:
    """Registers of a thread by instance, the most that one for fp32 takes."""
    found: dict[str, int] = {}
    for problem in problems:
        if problem.dtype != "float32":
            continue
        for each in entered(dispatcher, problem)[0]:
            candidate = each.costed.candidate
            plan = candidate.kernel.plan(problem, candidate.config, dispatcher.gpu)
            resources = binaries[plan.instances].resources
            if resources is not None:
                taken = max(found.get(candidate.instance, 0), resources.registers)
                found[candidate.instance] = taken
    return found


def measure(
    problem: GemmProblem,
    device: TimedDevice,
    dispatcher: Dispatcher,
    binaries: dict[Instances, Binary],
    *,
    kind: Kind = "random",
    baseline: Baseline | None = None,
) -> Row:
    """Time the candidates of one shape; a wrong result or a failed launch takes one out.

    Raises:
        DeviceError: dispatch's choice failed, or the matrices do not fit.
    """
    workload = Workload(problem, device)
    bench = Bench(workload, device)
    near, left_out = entered(dispatcher, problem)
    ready: dict[str, Compiled] = {}
    looks: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for number, each in enumerate(near):
        kernel, config = each.costed.kernel, each.costed.config
        label = each.costed.candidate.label
        plan = kernel.plan(problem, config, device.spec)
        planned = Planned(number, Candidate(kernel, config, each.estimate.microseconds), plan)
        ready[label] = Compiled(planned, binaries[plan.instances])
        try:
            reason = bench.check(ready[label])
            if not reason:
                leader = min(looks.values(), default=None)
                looks[label] = bench.look(ready[label], leader).median
        except DeviceError as error:
            reason = str(error)
        if reason:
            wrong[label] = reason
    order = sorted(looks, key=looks.__getitem__)
    leaders = [each for each in order[:MOST_LEADERS] if looks[each] <= CLOSE * looks[order[0]]]
    choice = dispatcher.choose(problem)
    chosen = dispatcher.costed(choice.kernel.name, choice.config).candidate.label
    if chosen in wrong:
        raise DeviceError(f"the choice for {problem.shape}, {chosen}: {wrong[chosen]}")
    leaders += [chosen] * (chosen not in leaders)
    peer, others = "", []
    if baseline is not None:
        try:
            peer, costed = workload.peer(device, baseline)
            others.append(costed)
        except UnsupportedProblem:
            peer = ""
    seen = bench.in_turn([ready[each] for each in leaders], TURN_SECONDS, others)
    turns = {label: each.median for label, each in zip(leaders, seen, strict=False)}
    best = min(turns, key=turns.__getitem__)
    return Row(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        layout=problem.layout,
        dtype=problem.dtype,
        precision=problem.precision,
        out_dtype=problem.out_dtype,
        scales=str(problem.scales),
        kind=kind,
        best=best,
        chosen=chosen,
        ratio=turns[chosen] / turns[best],
        looks=looks,
        turns=turns,
        wrong=wrong,
        left_out=left_out,
        cublas=seen[-1].median if others else None,
        peer=peer,
    )


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


def measure_all(
    problems: Sequence[tuple[Kind, GemmProblem]],
    device: TimedDevice,
    path: Path,
    *,
    seconds: float,
    cache_dir: Path | None = None,
    anew: bool = False,
    baseline: Baseline | None = None,
) -> list[Row]:
    """Measure what the file does not have yet, as long as there is time; all of its rows."""
    end = time.monotonic() + seconds
    dispatcher = Dispatcher(device.spec, None)
    kernels = {each.name: each.kernel for each in candidates_for(device.spec)}
    head = Head(
        gpu=device.spec.name,
        environment=device.environment(),
        command=" ".join(["python", *sys.argv]),
        sources={name: source_digest(kernel) for name, kernel in kernels.items()},
        registers={},
    )
    done = begin(path, head, anew=anew)
    left = [each for each in problems if each[1] not in done]
    number, found = 0, dict(head.registers)
    compilers: set[str] = set()
    with path.open("ab") as file:
        for chunk, binaries in in_chunks(Dispatcher(device.spec, None), left, cache_dir):
            for instance, taken in registers(
                dispatcher, [each for _, each in chunk], binaries
            ).items():
                found[instance] = max(found.get(instance, 0), taken)
            compilers |= {each.compiler for each in binaries.values()}
            for kind, problem in chunk:
                if time.monotonic() > end:
                    break
                try:
                    row = measure(
                        problem, device, dispatcher, binaries, kind=kind, baseline=baseline
                    )
                except DeviceError as error:
                    print(f"{problem.shape}: {error}", flush=True)
                    continue
                file.write(msgspec.json.encode(row) + b"\n")
                file.flush()
                number += 1
                print(f"{number:3} {told(row)}", flush=True)
            else:
                continue
            print(f"stopped after {number} shapes: {seconds:.0f} s are over", flush=True)
            break
    _note_compiled(path, found, compilers)
    return read(path)[1]


def _note_compiled(path: Path, registers: dict[str, int], compilers: set[str]) -> None:
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="by default results/<gpu>-dispatch.json")
    parser.add_argument("--suites", type=parts, default=(), help="their problems, such as llm")
    parser.add_argument("--layouts", type=parts, help="of those and of a file's, such as NT,TN,TT")
    parser.add_argument("--dtype", type=parts, default=(), help="of those, such as bf16,fp16")
    parser.add_argument("--out-dtype", help="of C; by default that of A and B, or float32")
    parser.add_argument("--precision", help="of those of float32: ieee, fp32 or tf32")
    parser.add_argument("--scales", help="of 8-bit types, such as blocks")
    parser.add_argument("--shapes-file", type=Path, help="a shape MxNxK on each line")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, help="of problems; by default random ones"
    )
    parser.add_argument("--count", type=int, default=SHAPES, help="of problems of each kind")
    parser.add_argument("--seed", type=int, default=SEED, help="of the problems")
    parser.add_argument("--no-cublas", action="store_true", help="leave cuBLAS out")
    parser.add_argument(
        "--seconds", type=float, default=280.0, help="after which no problem begins"
    )
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--anew", action="store_true", help="replace what the file has")
    parser.add_argument("--compile", metavar="BOARD", help="only fill the cache for a board")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print what a file says")
    parser.add_argument("--enter", type=Path, metavar="FILE", help="a file's winners, into --table")
    parser.add_argument("--table", type=Path, help="of tuned shapes")
    arguments = parser.parse_args()
    if arguments.enter is not None:
        if arguments.table is None:
            parser.error("--enter needs --table")
        print(f"{enter(arguments.enter, arguments.table)} entries in {arguments.table}")
        return 0
    if arguments.report is not None:
        print(report(read(arguments.report)[1]))
        return 0
    problems = given_problems(arguments) or asked_problems(
        arguments.kind or ["random"], arguments.count, arguments.seed
    )
    if arguments.compile is not None:
        dispatcher = Dispatcher(find_board(arguments.compile), None)
        compiled(dispatcher, [each for _, each in problems], arguments.cache)
        return 0
    device = open_device("cuda")
    assert isinstance(device, TimedDevice)
    rows = measure_all(
        problems,
        device,
        arguments.results or RESULTS / f"{device.spec.key}-dispatch.json",
        seconds=arguments.seconds,
        cache_dir=arguments.cache,
        anew=arguments.anew,
        baseline=None if arguments.no_cublas else find_baseline(device),
    )
    print(report(rows))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
