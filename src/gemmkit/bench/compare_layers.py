"""Layers beside PyTorch's own: checked, timed in turn, and taken apart into their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from gemmkit.bench.conditions import Conditions, Probe, watched
from gemmkit.bench.layer import Layer
from gemmkit.bench.linear_peer import COMPILED, EAGER
from gemmkit.bench.progress import Progress
from gemmkit.bench.run import finite, problem_record
from gemmkit.bench.shares import shares
from gemmkit.bench.timer import time_in_turn
from gemmkit.bench.torch_peer import cuda_torch, in_precision, without_advice
from gemmkit.bench.torch_timer import Manner, TorchTimer, kernels_of
from gemmkit.bench.workload import MAX_BUFFER_SETS
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import UsageError
from gemmkit.record import DeviceRecord, LayerRecord, PeerRecord, Record, TimeRecord
from gemmkit.verify import Verdict
from gemmkit.version import __version__

TORCH = "torch"
HOW_TO_GET = "layers are compared with PyTorch's: `pip install 'gemmkit[torch]'` brings it"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to a layer: a call for each set of inputs; `choice` as in `PeerRecord`, of gemmkit's
    own empty."""

    choice: str
    calls: Sequence[Callable[[], Any]]
    verdict: Verdict


class LayerComparison:
    """Measures layers on one device, with the functions that compute them.

    Args:
        device: where; it tells the board, its clocks and its bandwidth.
        functions: `gemmkit.nn`, or what has functions of its names.
        seed: of the inputs.
        seconds: time to spend on samples of one layer, for each manner of timing.
        progress: is told what is left out.
        probes: what NVML tells of the device.
        copy_gb_per_s: what a copy moves there.

    Raises:
        UsageError: PyTorch is not installed, or has no CUDA.
    """

    def __init__(
        self,
        device: TimedDevice,
        functions: Any,
        *,
        seed: int,
        seconds: float,
        progress: Progress,
        probes: Mapping[str, Probe],
        copy_gb_per_s: float | None,
    ) -> None:
        try:
            self.torch = cuda_torch()
        except (ImportError, RuntimeError) as error:
            raise UsageError(f"{HOW_TO_GET} ({error})") from error
        self.device, self.functions, self.progress = device, functions, progress
        self.seed, self.seconds = seed, seconds
        self.probes, self.copy_gb_per_s = probes, copy_gb_per_s

    def measure(self, layer: Layer, suite: str) -> Record:
        """One layer, without the kernels that it is made of."""
        with self._settings():
            ours, *peers = self._contestants(layer)
            conditions = Conditions()
            graph = self._times([ours, *peers], "graph", conditions)
            calls = self._times([ours, *peers], "calls", None)
        record = self._record(layer, suite, ours.verdict, graph[0], calls[0])
        seen = tuple(
            _peer_record(each, self.torch.__version__, layer, time, call, graph[0])
            for each, time, call in zip(peers, graph[1:], calls[1:], strict=True)
        )
        record = msgspec.structs.replace(record, peers=seen, conditions=conditions.record())
        spent = shares(
            record, layer.minimal_bytes, self.device.spec, copy_gb_per_s=self.copy_gb_per_s
        )
        return msgspec.structs.replace(record, profile=spent)

    def with_parts(self, layer: Layer, record: Record) -> Record:
        """The record with the kernels of gemmkit's layer and of PyTorch's, op by op.

        What runs under the profiler is slower, and some of it stays so: measure all layers first.
        """
        torch = self.torch
        with self._settings():
            tensors = self._tensors(layer.arrays(self.seed))
            parts = kernels_of(torch, lambda: layer.ours(self.functions, tensors))
            function, given = layer.theirs(torch, tensors)
            theirs = kernels_of(torch, lambda: function(*given))
        assert record.layer is not None
        return msgspec.structs.replace(
            record,
            layer=msgspec.structs.replace(record.layer, parts=parts),
            peers=tuple(
                msgspec.structs.replace(each, parts=theirs) if each.choice == EAGER else each
                for each in record.peers
            ),
        )

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """fp32 in IEEE arithmetic, no gradients, and cuDNN tries its algorithms."""
        torch = self.torch
        cudnn = torch.backends.cudnn
        before = cudnn.allow_tf32, cudnn.benchmark
        cudnn.allow_tf32, cudnn.benchmark = False, True
        try:
            with torch.inference_mode(), in_precision(torch.backends.cuda.matmul):
                yield
        finally:
            cudnn.allow_tf32, cudnn.benchmark = before

    def _tensors(self, arrays: Sequence[Any]) -> list[Any]:
        return [self.torch.from_numpy(each).to("cuda") for each in arrays]

    def _contestants(self, layer: Layer) -> list[Contestant]:
        """gemmkit's and PyTorch's, each judged on the first of sets of inputs that together exceed
        twice the L2 cache."""
        torch = self.torch
        arrays = layer.arrays(self.seed)
        nbytes = sum(each.nbytes for each in arrays)
        count = math.ceil(2 * self.device.spec.l2_bytes / nbytes)
        seeds = range(self.seed, self.seed + max(1, min(count, MAX_BUFFER_SETS)))
        sets = [self._tensors(layer.arrays(seed)) for seed in seeds]
        judge = layer.judge(arrays)

        def own(tensors: Sequence[Any]) -> Callable[[], Any]:
            return lambda: layer.ours(self.functions, tensors)

        def judged(choice: str, calls: Sequence[Callable[[], Any]]) -> Contestant:
            return Contestant(choice, calls, judge(calls[0]().cpu().numpy()))

        found = [judged("", [own(each) for each in sets])]
        theirs = [layer.theirs(torch, each) for each in sets]
        found.append(judged(EAGER, [_bound(*each) for each in theirs]))
        if layer.compiles:
            try:
                torch.compiler.reset()
                compiled = torch.compile(theirs[0][0], fullgraph=True, dynamic=False)
                with without_advice():
                    found.append(judged(COMPILED, [_bound(compiled, given) for _, given in theirs]))
            except Exception as error:
                # What the compiler cannot do must not end a long run.
                reason = str(error).strip().partition("\n")[0]
                where = f"torch.compile left out at {layer.name} {layer.sizes}"
                self.progress.note(f"{where}: {type(error).__name__}: {reason}")
        return found

    def _times(
        self, contestants: Sequence[Contestant], manner: Manner, conditions: Conditions | None
    ) -> list[TimeRecord]:
        torch = self.torch
        # Capture needs a stream that is not the default one.
        stream = torch.cuda.Stream() if manner == "graph" else None
        rotations = [[_on_any(call) for call in each.calls] for each in contestants]
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            # What a first call on a stream makes must be there before anything is recorded.
            for rotation in rotations:
                for work in rotation:
                    work(None)
            torch.cuda.synchronize()
            return time_in_turn(
                TorchTimer(torch, manner),
                rotations,
                seconds=self.seconds,
                during=None if conditions is None else watched(self.probes, conditions),
            )

    def _record(
        self, layer: Layer, suite: str, verdict: Verdict, graph: TimeRecord, calls: TimeRecord
    ) -> Record:
        device, cudnn = self.device, self.torch.backends.cudnn
        environment = device.environment() | {
            "gemmkit": __version__,
            "inputs": "normal",
            "against": [TORCH],
            "torch": str(self.torch.__version__),
            "cudnn": cudnn.version(),
        }
        tflops = layer.flops / graph.median / 1e6
        peak = device.spec.peak_tflops
        return Record(
            kernel=f"nn.{layer.name}",
            rung=None,
            idea="",
            problem=problem_record(layer.product),
            config={},
            device=DeviceRecord(kind=device.kind, gpu=device.spec.name),
            correct=verdict.correct,
            max_error=finite(verdict.max_error),
            error_bound=finite(verdict.error_bound),
            error_ratio=finite(verdict.error_ratio),
            ratio_error=finite(verdict.ratio_error),
            ratio_bound=finite(verdict.ratio_bound),
            arithmetic=verdict.arithmetic,
            check=verdict.detail or verdict.method,
            counters={},
            resources=None,
            occupancy=None,
            time_us=graph,
            tflops=tflops,
            peak_fraction=tflops / peak if peak else None,
            baseline=None,
            emulation_seconds=None,
            environment=environment,
            seed=self.seed,
            suite=suite,
            layer=LayerRecord(
                name=layer.name,
                sizes=layer.sizes,
                flops=layer.flops,
                minimal_bytes=layer.minimal_bytes,
                call_us=calls,
            ),
            errors=verdict.errors,
        )


def _bound(function: Callable[..., Any], given: Sequence[Any]) -> Callable[[], Any]:
    return lambda: function(*given)


def _on_any(call: Callable[[], Any]) -> Callable[[Any], None]:
    def work(_stream: Any) -> None:
        call()

    return work


def _peer_record(
    each: Contestant,
    version: str,
    layer: Layer,
    graph: TimeRecord,
    calls: TimeRecord,
    ours: TimeRecord,
) -> PeerRecord:
    told = {EAGER: "op by op", COMPILED: "torch.compile"}[each.choice]
    verdict = each.verdict
    return PeerRecord(
        vendor=TORCH,
        choice=each.choice,
        name=f"PyTorch {version}: {layer.name}, {told}",
        candidates=1,
        time_us=graph,
        tflops=layer.flops / graph.median / 1e6,
        speedup=graph.median / ours.median,
        correct=verdict.correct,
        max_error=finite(verdict.max_error),
        error_ratio=finite(verdict.error_ratio),
        check=verdict.detail or verdict.method,
        arithmetic=verdict.arithmetic,
        call_us=calls,
        errors=verdict.errors,
    )
