"""Measures how ranks compute a product: all strategies in turn, and NCCL with `torch.mm`.

Each rank is a process. `measure` starts them, unless this process is one that torchrun started;
without GPUs they use gloo and the emulator, check results, and time nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.bench.run import problem_record
from gemmkit.bench.timer import summary
from gemmkit.devices.host import host_environment
from gemmkit.distributed.placements import Word
from gemmkit.distributed.planning import plan
from gemmkit.distributed.starter import run_ranks
from gemmkit.distributed.strategy import Strategy
from gemmkit.errors import DistributedError, UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.record import DeviceRecord, PeerRecord, Record, TimeRecord
from gemmkit.version import __version__

# Seconds for the ranks to start and to measure, and for each to answer another.
_PATIENCE = 600.0
_ANSWER = 120.0
_ROWS = 32
_ROUNDS = 5


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: sizes and types of the whole problem, and the placements."""

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    precision: str
    a: Word
    b: Word
    result: Word
    gpu: str
    seed: int = 0
    seconds: float = 0.3

    @property
    def problem(self) -> GemmProblem:
        """The whole problem."""
        fields = {name: getattr(self, name) for name in ("dtype", "out_dtype", "precision")}
        return GemmProblem(m=self.m, n=self.n, k=self.k, **fields)


def measure(task: Task, ranks: int) -> Record | None:
    """The record of a product over ranks; None on ranks of torchrun other than the first.

    Raises:
        DistributedError: a rank failed, or did not answer in time.
        UnsupportedProblem: PyTorch is missing.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _measure_rank(task)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "record.json"
        _run_ranks(task, ranks, made)
        return Record.from_json(made.read_bytes())


def _run_ranks(task: Task, ranks: int, made: Path) -> None:
    """Start a process for each rank, and wait for all of them; one that fails ends the others.

    Raises:
        DistributedError: one failed.
    """
    command = [sys.executable, "-m", "gemmkit.distributed.measure", str(made)]
    text = msgspec.json.encode(task).decode()
    logs = [made.with_name(f"rank{rank}.log") for rank in range(ranks)]
    ended, late = run_ranks([*command, text], ranks, _PATIENCE, logs=logs)
    if late:
        raise DistributedError(f"the ranks did not end within {_PATIENCE:g} s")
    for rank, (status, log) in enumerate(zip(ended, logs, strict=True)):
        if status > 0:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise DistributedError(f"rank {rank} of {ranks} failed: {(said or ['nothing'])[-1]}")
    if not made.exists():
        raise DistributedError(f"the {ranks} ranks ended without a result")


# --- a rank -------------------------------------------------------------------------------------


def _measure_rank(task: Task) -> Record | None:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise UnsupportedProblem(
            "products over ranks need PyTorch: pip install 'gemmkit[torch]'"
        ) from error
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    on_gpu = torch.cuda.device_count() > local and dist.is_nccl_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=_ANSWER))
    try:
        return _Rank(task, rank, ranks, device).record()
    finally:
        dist.destroy_process_group()


class _Rank:
    """What a rank has of the matrices, and how it times."""

    def __init__(self, task: Task, rank: int, ranks: int, device: Any) -> None:
        import torch

        self.task, self.rank, self.ranks, self.device = task, rank, ranks, device
        kind = getattr(torch, task.dtype)
        random = torch.Generator(device).manual_seed(task.seed)
        # All ranks draw the same numbers, and keep their part.
        self.whole_a, self.whole_b = (
            torch.randn(shape, device=device, dtype=kind, generator=random)
            for shape in ((task.m, task.k), (task.k, task.n))
        )
        self.a, self.b = (
            self._part(matrix, word)
            for matrix, word in ((self.whole_a, task.a), (self.whole_b, task.b))
        )

    def _part(self, matrix: Any, word: Word) -> Any:
        from gemmkit.distributed.splits import shares

        if word == "R":
            return matrix
        if word == "P":
            raise UnsupportedProblem("operands that are sums are not measured: place them R or S")
        side = int(word[2])
        start, stop = shares(matrix.shape[side], self.ranks)[self.rank]
        return matrix.narrow(side, start, stop - start).contiguous()

    def record(self) -> Record | None:
        """Checks and times all strategies; the record on rank 0."""
        from gemmkit.distributed.team import team_of

        task, problem = self.task, self.task.problem
        copies = team_of(None, self.device).symmetric is not None
        found = plan(
            problem, self.ranks, (task.a, task.b), task.result, gpu=task.gpu, copies=copies
        )
        names = [each.strategy for each in found.strategies if each.strategy != "local"]
        calls = {name: self._call(name) for name in names} or {"local": self._call("collective")}
        if self.device.type == "cuda":
            calls["NCCL + torch.mm"] = self._call("collective", engine=_by_torch)
        errors = {name: self._error(call()) for name, call in calls.items()}
        times = self._times(calls) if self.device.type == "cuda" else {}
        if self.rank:
            return None
        chosen = next(iter(calls))
        return self._record(chosen, errors, times, found.to_json())

    def _call(self, strategy: str, **options: Any) -> Callable[[], Any]:
        from gemmkit.distributed.local import LocalProduct
        from gemmkit.distributed.products import multiply
        from gemmkit.distributed.spread import SpreadProduct
        from gemmkit.distributed.team import team_of

        task = self.task
        device = None if self.device.type == "cuda" else "emulator"
        asked = SpreadProduct(
            self.a,
            self.b,
            (team_of(None, self.device),),
            ((task.a, task.b),),
            (task.result,),
            LocalProduct(precision=task.precision, device=device, **options),
            task.out_dtype,
            Strategy.parse(strategy),
        )
        return lambda: multiply(asked)[0]

    def _error(self, made: Any) -> float:
        """The largest error of sampled rows over its bound, on all ranks: that of a sum of k terms
        in fp32 in any order, and one rounding to the result's type for each rank that adds."""
        import torch
        import torch.distributed as dist

        from gemmkit.distributed.splits import Span, shares

        task = self.task
        rows, columns = Span(0, task.m), Span(0, task.n)
        if task.result == "S(0)":
            rows = shares(task.m, self.ranks)[self.rank]
        if task.result == "S(1)":
            columns = shares(task.n, self.ranks)[self.rank]
        if task.result == "P":
            made = made.clone()
            dist.all_reduce(made)
        worst = torch.zeros((), dtype=torch.float64, device=self.device)
        if made.numel():
            step = max(rows.size // _ROWS, 1)
            a = self.whole_a[rows.start : rows.stop : step].double()
            b = self.whole_b[:, columns.start : columns.stop].double()
            eps = torch.finfo(made.dtype).eps
            wide = torch.finfo(torch.float64 if made.itemsize == 8 else torch.float32).eps
            if task.precision == "tf32":
                wide = 2.0**-10
            bound = (task.k * wide + self.ranks * eps) * (a.abs() @ b.abs())
            ratio = (made[::step].double() - a @ b).abs() / bound.clamp(min=1e-300)
            # NaN is no result either.
            worst = torch.nan_to_num(ratio, nan=float("inf")).max()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst)

    def _times(self, calls: dict[str, Callable[[], Any]]) -> dict[str, TimeRecord]:
        """Microseconds per call of the slowest rank, the calls taking turns."""
        import torch
        import torch.distributed as dist

        samples: dict[str, list[float]] = {name: [] for name in calls}
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def once(call: Callable[[], Any], repeat: int) -> float:
            torch.cuda.synchronize()
            dist.barrier()
            begin.record()
            for _ in range(repeat):
                call()
            end.record()
            torch.cuda.synchronize()
            taken = torch.tensor(begin.elapsed_time(end) / repeat * 1e3, device=self.device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            return float(taken)

        repeats = {}
        for name, call in calls.items():
            first = once(call, 3)
            repeats[name] = max(3, int(self.task.seconds * 1e6 / _ROUNDS / max(first, 1.0)))
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                samples[name].append(once(call, repeats[name]))
        return {name: summary(each) for name, each in samples.items()}

    def _record(
        self,
        chosen: str,
        errors: dict[str, float],
        times: dict[str, TimeRecord],
        predicted: str,
    ) -> Record:
        import torch

        problem, time_us = self.task.problem, times.get(chosen)
        environment = {
            "gemmkit": __version__,
            "torch": str(torch.__version__),
            "ranks": self.ranks,
            "placements": f"{self.task.a},{self.task.b}->{self.task.result}",
            "plan": json.loads(predicted),
            "error_ratios": errors,
            **host_environment(),
        }
        return Record(
            kernel="distributed.matmul",
            rung=None,
            idea="",
            problem=problem_record(problem),
            config={"ranks": self.ranks},
            device=DeviceRecord(
                kind="cuda" if times else "emulator",
                gpu=torch.cuda.get_device_name() if times else self.task.gpu,
            ),
            correct=all(each <= 1 for each in errors.values()),
            max_error=None,
            error_bound=None,
            error_ratio=max(errors.values()),
            counters={},
            resources=None,
            occupancy=None,
            time_us=time_us,
            tflops=problem.flops / time_us.median / 1e6 if time_us else None,
            peak_fraction=None,
            baseline=None,
            emulation_seconds=None,
            environment=environment,
            seed=self.task.seed,
            choice=chosen,
            check=f"{_ROWS} rows of the result of each rank, against float64",
            peers=tuple(
                _peer(name, each, times[chosen], errors[name], problem)
                for name, each in times.items()
                if name != chosen
            ),
        )


def _peer(
    name: str, time_us: TimeRecord, ours: TimeRecord, error: float, problem: GemmProblem
) -> PeerRecord:
    return PeerRecord(
        vendor="torch" if name.startswith("NCCL") else "gemmkit",
        choice="eager" if name.startswith("NCCL") else "candidate",
        name=name,
        candidates=1,
        time_us=time_us,
        tflops=problem.flops / time_us.median / 1e6,
        speedup=time_us.median / ours.median,
        correct=error <= 1,
        max_error=None,
        error_ratio=error,
    )


def _by_torch(lines: Any, fixed: Any, *, out: Any, **_: Any) -> None:
    import torch

    torch.mm(lines, fixed, out=out)


def main(arguments: Sequence[str]) -> None:
    """Be a rank: measure the task, and write the record to a file if this is the first."""
    made = _measure_rank(msgspec.json.decode(arguments[1], type=Task))
    if made is not None:
        Path(arguments[0]).write_text(made.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
