"""A rank of benchmarks/distributed.py: its matrices, the ways of multiplying them, and how they are
checked and timed."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed_checks import bits, judged, matrices, sampled
from distributed_group import Rank
from distributed_summa import SUMMA, by_nccl, summa_matrices, summa_sampled


def watch(rank: Rank, seconds: float) -> Callable[[], None]:
    """End this process if one step takes too long: a GPU that waits cannot be interrupted."""
    done = threading.Event()

    def guard() -> None:
        seen, since = "", time.monotonic()
        while not done.wait(0.5):
            if STATE["doing"] != seen:
                seen, since = STATE["doing"], time.monotonic()
            if time.monotonic() - since < seconds:
                continue
            print(
                f"rank {rank.rank}: no end within {seconds:g} s: {STATE['problem']} {seen}",
                file=sys.stderr,
                flush=True,
            )
            if not STATE["begun"]:
                Path(os.environ["DISTRIBUTED_HUNG"]).write_text(
                    json.dumps([STATE["problem"], STATE["doing"]]), encoding="utf-8"
                )
            os._exit(3)

    threading.Thread(target=guard, daemon=True).start()
    return done.set


# Calls that are timed together on the host, and how often.
HOST_CALLS = 20
HOST_ROUNDS = 5

# What this rank is at, for the thread that watches it; "begun" until a problem is measured.
STATE: dict[str, str] = {"problem": "", "doing": "beginning", "begun": "yes"}


def torch_engine(
    lines: Any, fixed: Any, *, out: Any, residual: Any = None, c: Any = None, **_: Any
) -> None:
    """cuBLAS, which has no sums in fp32 that it adds to of operands in 16 bits."""
    import torch

    added = c if residual is None else residual
    if added is None and out.dtype == lines.dtype:
        torch.mm(lines, fixed, out=out)
    elif added is None:
        torch.mm(lines, fixed, out=out, out_dtype=out.dtype)
    elif added.dtype == lines.dtype:
        torch.addmm(added, lines, fixed, out=out)
    else:
        torch.addmm(added, lines, fixed, out=out, out_dtype=out.dtype)


def strategies(rank: Rank, form: str, a: Any, b: Any, m: int) -> dict[str, Callable[[], Any]]:
    """Each way of computing a problem, as a function of no arguments."""
    import torch
    import torch.distributed as dist

    import gemmkit
    from gemmkit.distributed.splits import shares

    size, group = rank.size, rank.group
    sizes = [each.size for each in shares(m, size)]
    even = len(set(sizes)) == 1
    rows = m if form != "row" else sizes[rank.rank]
    full_a = torch.empty((m, a.shape[1]), dtype=a.dtype, device=a.device)
    out = torch.empty((m, b.shape[1]), dtype=a.dtype, device=a.device)
    own = torch.empty((rows, b.shape[1]), dtype=a.dtype, device=a.device)
    found: dict[str, Callable[[], Any]] = {}

    def alone_torch() -> None:
        torch.mm(full_a if form == "column" else a, b, out=out)

    def alone_gemmkit() -> None:
        gemmkit.matmul(full_a if form == "column" else a, b, out=out)

    def communication() -> None:
        if form == "column":
            dist.all_gather_into_tensor(full_a, a, group=group)
        elif form == "row":
            dist.reduce_scatter_tensor(own, out, group=group)
        else:
            dist.all_reduce(out, group=group)

    def nccl_torch() -> Any:
        if form == "column":
            dist.all_gather_into_tensor(full_a, a, group=group)
            return torch.mm(full_a, b, out=out)
        torch.mm(a, b, out=out)
        if form == "row":
            dist.reduce_scatter_tensor(own, out, group=group)
            return own
        dist.all_reduce(out, group=group)
        return out

    def fused() -> Any:
        name = group.group_name
        if form == "column":
            return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, name, return_A=False)[1][0]
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, name)

    if rank.on_gpu:
        full_a.normal_()
        found["alone torch"] = alone_torch
    found["alone gemmkit"] = alone_gemmkit
    if even and rank.on_gpu:
        found["nccl alone"] = communication
        found["nccl torch"] = nccl_torch
        if form != "row-all":
            found["torch symm_mem"] = fused
    for engine in rank.options.engine.split(","):
        for text in rank.options.ours.split(","):
            found[f"{engine} {text}"] = ours(rank, form, a, b, engine, text)
    for name in filter(None, rank.options.graphs.split(",")):
        if name in found and rank.on_gpu:
            found[f"graph of {name}"] = graphed(found[name])
    return found


# Placements of A, B and the result by form.
PLACEMENTS = {
    "column": (("S(0)", "S(1)"), "S(1)"),
    "row": (("S(1)", "S(0)"), "S(0)"),
    "row-all": (("S(1)", "S(0)"), "R"),
    "summa": (SUMMA, SUMMA[0]),
}


def ours(rank: Rank, form: str, a: Any, b: Any, engine: str, text: str) -> Callable[[], Any]:
    """gemmkit's product by a strategy, or by the one that it takes itself."""
    from gemmkit import distributed
    from gemmkit.distributed.local import LocalProduct
    from gemmkit.distributed.products import multiply
    from gemmkit.distributed.spread import SpreadProduct
    from gemmkit.distributed.strategy import Strategy
    from gemmkit.distributed.team import team_of

    placements, result = PLACEMENTS[form]
    strategy = None if text == "default" else Strategy.parse(text)
    mesh = rank.mesh if form == "summa" else rank.group
    if engine == "gemmkit":
        return lambda: distributed.matmul(
            a, b, group=mesh, placements=placements, placement=result, strategy=strategy
        )
    groups = [mesh.get_group(at) for at in (0, 1)] if form == "summa" else [mesh]
    asked = SpreadProduct(
        a,
        b,
        tuple(team_of(each, rank.device) for each in groups),
        tuple(zip(*placements, strict=True)) if form == "summa" else (placements,),
        result if form == "summa" else (result,),
        LocalProduct(engine=torch_engine),
        strategy=strategy,
    )
    return lambda: multiply(asked)[0]


def graphed(work: Callable[[], Any]) -> Callable[[], Any]:
    """Replays of a CUDA graph that captures one call, made when it is first wanted."""
    import torch

    kept: list[Any] = []

    def replay() -> Any:
        if not kept:
            for _ in range(2):
                work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Threads of process groups look after their operations meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                made = work()
            kept[:] = graph, made
        kept[0].replay()
        return kept[1]

    return replay


def timed(
    rank: Rank, work: Callable[[], Any], milliseconds: float, repeat: int
) -> tuple[float, int]:
    """Microseconds per call, of the slowest rank; and how many calls were timed together."""
    import torch

    if not rank.on_gpu:
        begin = time.perf_counter()
        work()
        return max(rank.all_of((time.perf_counter() - begin) * 1e6)), 1
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    # Below the power limit, a board keeps its highest clock for some ten milliseconds.
    time.sleep(rank.options.rest)
    rank.dist.barrier(group=rank.quiet)
    if not repeat:
        work()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(3):
            work()
        end.record()
        torch.cuda.synchronize()
        each = max(rank.all_of(begin.elapsed_time(end) / 3))
        repeat = max(3, min(200, int(milliseconds / max(each, 1e-3))))
        rank.dist.barrier(group=rank.quiet)
    rank.start_together()
    begin.record()
    for _ in range(repeat):
        work()
    end.record()
    torch.cuda.synchronize()
    return max(rank.all_of(begin.elapsed_time(end) / repeat * 1e3)), repeat


def host_time(rank: Rank, work: Callable[[], Any]) -> float:
    """Microseconds for which a call takes the host, of the slowest rank: of so few calls that the
    GPU's queue takes them all."""
    import torch

    best = float("inf")
    for _ in range(HOST_ROUNDS):
        torch.cuda.synchronize()
        rank.dist.barrier(group=rank.quiet)
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            work()
        best = min(best, (time.perf_counter() - begin) / HOST_CALLS * 1e6)
        torch.cuda.synchronize()
    return max(rank.all_of(best))


def tried(rank: Rank, name: str, work: Callable[[], Any]) -> tuple[Any, str]:
    """What a strategy gives on this rank, or the first error of any rank."""
    STATE["doing"] = name
    made, said = None, ""
    try:
        made = work()
        if rank.on_gpu:
            rank.torch.cuda.synchronize()
    except Exception as error:
        said = f"rank {rank.rank}: {type(error).__name__}: {str(error).strip()[:500]}"
        if "--debug" in os.environ.get("GEMMKIT_BENCHMARK", ""):
            traceback.print_exc()
    errors = [each for each in rank.all_of(said) if each]
    return made, errors[0] if errors else ""


def measure(rank: Rank, form: str, shape: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    """One problem, by all strategies in turn."""
    import torch

    m, n, k = shape
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    if form == "summa":
        a, b = summa_matrices(rank, m, n, k, kind)
        wanted = summa_sampled(rank, a, b)
        found = by_nccl(rank, a, b, k) if rank.on_gpu else {}
        for engine in rank.options.engine.split(","):
            for text in rank.options.ours.split(","):
                found[f"{engine} {text}"] = ours(rank, form, a, b, engine, text)
    else:
        a, b = matrices(rank, form, m, n, k, kind)
        wanted = sampled(rank, form, a, b, m)
        found = strategies(rank, form, a, b, m)
    results: dict[str, Any] = {}
    sums: dict[str, int] = {}
    for problem, name in json.loads(os.environ["DISTRIBUTED_SKIPPED"]):
        name = name.removeprefix("timing ")
        if problem == STATE["problem"] and found.pop(name, None) is not None:
            results[name] = {"error": "it did not end in time"}
    for name in list(found):
        made, error = tried(rank, name, found[name])
        results[name] = {"error": error} if error else {}
        if not error and made is not None:
            results[name] |= judged(rank, form, made, wanted, m)
            sums[name] = bits(made)
            same = rank.all_of(sums[name])
            if form == "row-all":
                results[name]["same_on_all_ranks"] = len(set(same)) == 1
            again, error = tried(rank, name, found[name])
            same_again = not error and again is not None and bits(again) == sums[name]
            results[name]["same_in_every_run"] = all(rank.all_of(same_again))
        if error:
            results[name] = {"error": error}
            del found[name]
        del made
    STATE["doing"] = "comparing"
    whole = sums.get("gemmkit collective")
    for name in sums if form == "column" and whole is not None else ():
        if name.startswith("gemmkit"):
            # All rows in one product, after everything has been gathered.
            results[name]["as_one_product"] = all(rank.all_of(sums[name] == whole))
    times: dict[str, list[float]] = {name: [] for name in found}
    repeats: dict[str, int] = {}
    for _ in range(rank.options.rounds):
        for name in list(found):
            STATE["doing"] = f"timing {name}"
            spent = rank.options.ms / rank.options.rounds
            each, repeats[name] = timed(rank, found[name], spent, repeats.get(name, 0))
            times[name].append(each)
    for name in times if rank.on_gpu and rank.options.host else ():
        STATE["doing"] = f"timing {name}"
        results[name]["host_us"] = host_time(rank, found[name])
    for name, taken in times.items():
        taken = sorted(taken)
        results[name] |= {"us": taken[len(taken) // 2], "all_us": taken, "calls": repeats[name]}
    return {
        "form": form,
        "shape": list(shape),
        "dtype": dtype,
        "chosen": chosen_by_gemmkit(rank, form, shape, kind),
        "results": results,
    }


def chosen_by_gemmkit(rank: Rank, form: str, shape: tuple[int, int, int], kind: Any) -> str:
    """The strategy that `gemmkit.distributed.matmul` takes by itself."""
    from gemmkit import GemmProblem
    from gemmkit.distributed import plan
    from gemmkit.distributed.team import team_of

    team = team_of(rank.group, rank.device)
    problem = GemmProblem(*shape, dtype=str(kind).removeprefix("torch."))
    found = plan(
        problem,
        rank.mesh_sizes if form == "summa" else rank.size,
        *PLACEMENTS[form],
        gpu=team.board or "H200",
        copies=team.symmetric is not None,
    )
    return found.chosen.strategy
