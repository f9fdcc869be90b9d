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
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from dispatch_results import Head, Row, begin, enter, note_compiled, read, report, told
from dispatch_shapes import KINDS, SEED, SHAPES, Kind, asked_problems, given_problems
from run_suites import parts
from this_gpu import this_gpu

from gemmkit.bench.baseline import Baseline
from gemmkit.bench.peers import find_baseline
from gemmkit.bench.workload import Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.prices import Ranked
from gemmkit.dispatch.tuned import shipped_entries
from gemmkit.errors import DeviceError, UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import ProblemClass
from gemmkit.trials.freshness import source_digest
from gemmkit.tune.space import Candidate
from gemmkit.tune.trial import Bench, Compiled, Planned

# What a plan is compiled from.
Instances = tuple[tuple[SourceFile, str], ...]

RESULTS = Path(__file__).resolve().parent / "results"
# Candidates are the first of the ranking, and of each instance no more ways to cut k than these.
CANDIDATES, CUTS = 15, 2
# Those so close to the fastest at a first look meet again in turn.
CLOSE, MOST_LEADERS, TURN_SECONDS = 1.06, 6, 0.08
# Problems whose instances are compiled together, ahead of their turn.
CHUNK = 8

CUBLAS = "cuBLAS"


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
    note_compiled(path, found, compilers)
    return read(path)[1]


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
    device = this_gpu()
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
