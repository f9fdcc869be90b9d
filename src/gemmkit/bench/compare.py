"""`compare`: gemmkit's choice and its peers over many problems, timed in turn in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.analysis.math_pipe import math_pipe
from gemmkit.bench.compare_layers import TORCH, LayerComparison
from gemmkit.bench.conditions import Conditions, Probe, watched
from gemmkit.bench.copy_speed import copy_gb_per_s
from gemmkit.bench.ladder import Choice, compile_plans
from gemmkit.bench.peers import (
    CANDIDATE,
    CUBLAS,
    GEMMKIT,
    PLAIN,
    Entrant,
    Peer,
    entrants,
    open_peers,
)
from gemmkit.bench.progress import Progress
from gemmkit.bench.run import make_record
from gemmkit.bench.shares import shares
from gemmkit.bench.sustained import time_sustained
from gemmkit.bench.tasks import Task
from gemmkit.bench.timer import SECONDS, Rotation, time_in_turn
from gemmkit.bench.workload import Workload, launching
from gemmkit.devices.device import TimedDevice
from gemmkit.devices.management import management_probes
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import BaselineRecord, PeerRecord, Record, TimeRecord

# One or more choices for a problem; of several, the fastest is compared with the peers.
Choose = Callable[[GemmProblem, GpuSpec], Sequence[Choice]]


@dataclass(frozen=True, slots=True)
class Pick:
    """A choice that was made by hand."""

    kernel: Kernel
    config: TileConfig
    reason: str = ""


def compare(
    tasks: Sequence[Task],
    choose: Choose,
    *,
    device: TimedDevice,
    against: Sequence[str] = (CUBLAS,),
    seed: int = 0,
    seconds: float = SECONDS,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
    every: bool = False,
    functions: Any = None,
    sustained: float = 0.0,
) -> list[Record]:
    """Measure what `choose` takes for each problem, beside its peers; a record for each.

    Kernels and peers of a problem are checked on the same inputs, and timed in turn over the same
    buffers. Where the problem has an epilogue, the plain product of the same matrices is timed
    with them. A problem that no choice takes is left out, as is a peer that fails on a problem,
    and `progress` receives the reason. Layers come last, and are compared with PyTorch's own.

    Args:
        tasks: what to measure, in this order.
        choose: gives the kernels for a problem on the device's board.
        device: where.
        against: peers' names: "cublas", "torch", "linear", "triton"; of layers "torch" alone.
        seed: of the inputs.
        seconds: time to spend on samples of one problem, warm-up apart.
        progress: receives what happens; a record as soon as it is there.
        cache_dir: root of the compiler's cache; by default the user's.
        every: time all that `choose` gives: the first is what is compared, and the others are
            entries beside it. By default the fastest of them is taken.
        functions: what computes layers, `gemmkit.nn`.
        sustained: seconds that each of them runs at the board's power limit afterwards, as
            `time_sustained` says; 0 for not at all.

    Raises:
        UsageError: a peer is unknown or not installed, or there are layers without `functions`,
            without PyTorch to compare them with, or beside `sustained`.
        CompileError: a kernel does not compile.
        DeviceError: there is not enough memory, or a kernel failed.
    """
    progress = progress or Progress()
    layers = [task for task in tasks if task.layer is not None]
    products = [task for task in tasks if task.layer is None]
    if layers and (functions is None or TORCH not in against):
        raise UsageError(f"layers are compared with '{TORCH}' alone: name it among the peers")
    if layers and sustained:
        raise UsageError("the power limit is measured of products, not of layers: leave one out")
    peers = open_peers(against, device) if products else []
    progress.opened(device, "")
    runs = [each for task in products if (each := _plan(task, choose, device.spec, progress))]
    plans = [planned.plan for run in runs for planned in (*run.picks, *run.plain)]
    compiled = compile_plans(plans, device.spec, progress, cache_dir)
    binaries = dict(zip(plans, compiled, strict=True))
    measuring = _Measuring(
        device, peers, binaries, seed, seconds, progress, every=every, sustained=sustained
    )
    records = []
    total = len(runs) + len(layers)
    for number, run in enumerate(runs):
        progress.started(run.picks[0].choice.kernel, run.task.problem, number, total)
        record = measuring.measure(run)
        progress.finished(record)
        records.append(record)
    if layers:
        records += measuring.layers(layers, functions, (len(runs), total))
    return records


@dataclass(frozen=True, slots=True)
class _Planned:
    """A choice with its plan for a problem."""

    choice: Choice
    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class _Run:
    """A task with what may compute it, and what computes its plain product."""

    task: Task
    picks: tuple[_Planned, ...]
    plain: tuple[_Planned, ...]


def _plan(task: Task, choose: Choose, gpu: GpuSpec, progress: Progress) -> _Run | None:
    """The run, or None where no choice takes the problem, or there is nothing to multiply."""
    if not task.problem.flops:
        progress.note(f"Left out at {task.problem.shape}: there is nothing to multiply")
        return None
    try:
        picks = _planned(task.problem, choose, gpu)
    except UnsupportedProblem as refusal:
        progress.note(f"Left out at {task.problem.shape}: {refusal}")
        return None
    plain = _planned(plain_of(task.problem), choose, gpu) if fuses(task.problem) else ()
    return _Run(task, picks, plain)


def _planned(problem: GemmProblem, choose: Choose, gpu: GpuSpec) -> tuple[_Planned, ...]:
    """The choices that take the problem.

    Raises:
        UnsupportedProblem: none does; the text is the last one's reason.
    """
    found: list[_Planned] = []
    refused: UnsupportedProblem | None = None
    for choice in choose(problem, gpu):
        try:
            found.append(_Planned(choice, choice.kernel.plan(problem, choice.config, gpu)))
        except UnsupportedProblem as refusal:
            refused = refusal
    if not found:
        raise refused or UnsupportedProblem("there is no kernel for it")
    return tuple(found)


def fuses(problem: GemmProblem) -> bool:
    """Whether the problem has an epilogue."""
    return str(problem.epilogue) != "none"


def plain_of(problem: GemmProblem) -> GemmProblem:
    """The same product without its epilogue."""
    return replace(problem, epilogue=Epilogue())


class _Measuring:
    """What all problems of one run share."""

    def __init__(
        self,
        device: TimedDevice,
        peers: Sequence[Peer],
        binaries: Mapping[LaunchPlan, Binary],
        seed: int,
        seconds: float,
        progress: Progress,
        *,
        every: bool,
        sustained: float,
    ) -> None:
        self.device, self.peers, self.binaries = device, peers, binaries
        self.seed, self.seconds, self.progress = seed, seconds, progress
        self.every, self.sustained = every, sustained

    @cached_property
    def copy_gb_per_s(self) -> float | None:
        """The copy speed, measured once."""
        return copy_gb_per_s(self.device)

    @cached_property
    def probes(self) -> Mapping[str, Probe]:
        """What NVML tells of this device."""
        return management_probes(self.device.stream)

    def measure(self, run: _Run) -> Record:
        """One problem: judge, find the fastest candidates, time in turn."""
        device, problem = self.device, run.task.problem
        workload = Workload(problem, device, self.seed)
        pick, ours = self._fastest(run.picks[:1] if self.every else run.picks, workload)
        binary = self.binaries[pick.plan]
        launch, verdict = workload.run(binary, pick.plan)
        entries = self._entries(run, workload)
        conditions = Conditions()
        own, times = self._times(ours, entries, workload, watched(self.probes, conditions))
        seen = [each.record(problem, its, own) for each, its in zip(entries, times, strict=True)]
        fastest = min(
            (each for each in seen if each.vendor == CUBLAS),
            key=lambda each: each.time_us.median,
            default=None,
        )
        record = make_record(
            *(pick.choice.kernel, pick.choice.config, pick.plan, binary, workload),
            *(launch, verdict, own),
            None if fastest is None else _as_baseline(fastest),
        )
        record = msgspec.structs.replace(
            record,
            suite=run.task.suite,
            choice=pick.choice.reason,
            peers=tuple(seen),
            ratio_to_cublas=fastest.speedup if fastest is not None else None,
            conditions=conditions.record(),
            environment=record.environment | {"against": [each.vendor for each in self.peers]},
        )
        if self.sustained:
            record = self._at_the_limit(record, ours, entries, workload)
        spent = shares(
            record,
            problem.minimal_bytes,
            device.spec,
            pipe=math_pipe(binary.ptx, problem),
            binary=binary,
            copy_gb_per_s=self.copy_gb_per_s,
        )
        return msgspec.structs.replace(record, profile=spent)

    def layers(
        self, tasks: Sequence[Task], functions: Any, place: tuple[int, int]
    ) -> Iterator[Record]:
        """Records of layers, all of which are measured before the first is taken apart; `place`
        says how many runs are over, and of how many."""
        comparison = LayerComparison(
            self.device,
            functions,
            seed=self.seed,
            seconds=self.seconds,
            progress=self.progress,
            probes=self.probes,
            copy_gb_per_s=self.copy_gb_per_s,
        )
        measured = []
        for number, task in enumerate(tasks, place[0]):
            if task.layer is not None:
                self.progress.measuring(f"{task.layer.name} {task.layer.sizes}", number, place[1])
                measured.append((task.layer, comparison.measure(task.layer, task.suite)))
        for layer, record in measured:
            whole = comparison.with_parts(layer, record)
            self.progress.finished(whole)
            yield whole

    def _fastest(
        self, planned: Sequence[_Planned], workload: Workload
    ) -> tuple[_Planned, Rotation]:
        """The fastest of several choices."""
        rotations = {
            str(number): workload.rotation(self.device, self.binaries[each.plan], each.plan)
            for number, each in enumerate(planned)
        }
        name = workload.ranked(self.device, rotations)[0]
        return planned[int(name)], rotations[name]

    def _entries(self, run: _Run, workload: Workload) -> list[Entrant]:
        """What each peer sends, and the plain product where there is an epilogue."""
        found: list[Entrant] = []
        if self.every:
            found += [self._candidate(each, workload) for each in run.picks[1:]]
        if run.plain:
            found.append(self._plain(run, workload))
        for peer in self.peers:
            try:
                found += entrants(peer, workload, self.device)
            except Exception as error:
                # What a library cannot do must not end a long run. Compilers quote the source first
                # and say what is wrong in the last line.
                reason = str(error).strip().rpartition("\n")[2]
                where = f"{peer.vendor} left out at {workload.problem.shape}"
                self.progress.note(f"{where}: {type(error).__name__}: {reason}")
        return found

    def _candidate(self, planned: _Planned, workload: Workload) -> Entrant:
        binary, plan = self.binaries[planned.plan], planned.plan
        _, verdict = workload.run(binary, plan)
        rotation = workload.rotation(self.device, binary, plan)
        kernel, config = planned.choice.kernel, planned.choice.config
        return Entrant(
            GEMMKIT,
            CANDIDATE,
            kernel.label(config),
            1,
            rotation,
            verdict,
            config=config.as_dict(),
        )

    def _plain(self, run: _Run, workload: Workload) -> Entrant:
        planned, rotation = self._fastest(run.plain, workload)
        compute = launching(self.device, self.binaries[planned.plan], planned.plan, [])
        verdict = workload.judge(compute, plain_of(workload.problem))
        name = planned.choice.kernel.label(planned.choice.config)
        return Entrant(GEMMKIT, PLAIN, name, len(run.plain), rotation, verdict)

    def _times(
        self,
        ours: Rotation,
        entries: Sequence[Entrant],
        workload: Workload,
        during: AbstractContextManager[None],
    ) -> tuple[TimeRecord, list[TimeRecord]]:
        """The kernel's times and each entry's; entries that share a rotation share its times."""
        rotations = {id(each.rotation): each.rotation for each in entries}
        own, *theirs = time_in_turn(
            self.device,
            [ours, *rotations.values()],
            seconds=self.seconds,
            kept=workload.kept,
            during=during,
        )
        by_rotation = dict(zip(rotations, theirs, strict=True))
        return own, [by_rotation[id(each.rotation)] for each in entries]

    def _at_the_limit(
        self, record: Record, ours: Rotation, entries: Sequence[Entrant], workload: Workload
    ) -> Record:
        """The record with the speed at the power limit, of the kernel and of each library."""
        theirs = {id(each.rotation): each.rotation for each in entries if each.vendor != GEMMKIT}
        found = time_sustained(
            self.device,
            [ours, *theirs.values()],
            seconds=self.sustained,
            kept=workload.kept,
            probes=self.probes,
        )
        by_rotation = dict(zip((id(ours), *theirs), found, strict=True))
        return msgspec.structs.replace(
            record,
            sustained=found[0],
            peers=tuple(
                msgspec.structs.replace(peer, sustained=by_rotation.get(id(each.rotation)))
                for peer, each in zip(record.peers, entries, strict=True)
            ),
        )


def _as_baseline(peer: PeerRecord) -> BaselineRecord:
    return BaselineRecord(name=peer.name, time_us=peer.time_us, speedup=peer.speedup)
