"""`Workload`: one problem on one device, with inputs, references and buffers for many kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gemmkit.bench.baseline import Baseline
from gemmkit.bench.timer import Contender, time_in_turn
from gemmkit.devices.device import (
    Buffer,
    Device,
    Launch,
    Scratch,
    TimedDevice,
    bind_arguments,
)
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import LaunchPlan
from gemmkit.problem import GemmProblem
from gemmkit.verify import InputKind, Inputs, Reference, Verdict, make_inputs

# Sets below some hundred KiB all stay in L2 under this cap, as such small ones do in any use.
MAX_BUFFER_SETS = 256
CANDIDATE_SECONDS = 0.1


class Workload:
    """What every kernel that runs a problem shares.

    Inputs are random normal. Where the problem is too large to compare every element, each kernel
    also runs integer inputs, whose product is exact: Freivalds' check then shows any single wrong
    element for sure.

    Raises:
        DeviceError: the matrices do not fit on the device.
        UsageError: k is too large for any check.
    """

    def __init__(self, problem: GemmProblem, device: Device, seed: int = 0) -> None:
        self.problem, self.device, self.seed = problem, device, seed
        try:
            self.cases = [_Case.make(problem, device, seed, "normal")]
            if not self.cases[0].reference.full:
                self.cases.append(_Case.make(problem, device, seed, "integer"))
        except MemoryError:
            raise DeviceError(
                f"the host has not enough memory for the matrices of {problem.shape}"
            ) from None
        self.kept: list[Buffer] = []
        # What the last kernel printed in the first of its launches.
        self.printed: tuple[str, ...] = ()
        self._peers: dict[Baseline, tuple[str, Contender]] = {}

    def run(self, binary: Binary, plan: LaunchPlan) -> tuple[Launch, Verdict]:
        """Launch on poisoned output and judge the result: the first launch seen, the verdict.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """
        launches, verdicts = zip(
            *(case.run(self.problem, self.device, binary, plan) for case in self.cases),
            strict=True,
        )
        self.printed = launches[0].printed
        wrong = [verdict for verdict in verdicts if not verdict.correct]
        return launches[0], wrong[0] if wrong else verdicts[0]

    def contender(self, device: TimedDevice, binary: Binary, plan: LaunchPlan) -> Contender:
        """The launch on each set of buffers."""
        scratch = Scratch.of(device, plan)
        self.kept += [each for each in (scratch.workspace, scratch.arrivals) if each is not None]
        return [device.work(binary, plan, each | scratch.arguments) for each in self.rotating]

    @cached_property
    def rotating(self) -> list[dict[str, int | float]]:
        """Arguments over sets of buffers, in `kept`, that together exceed twice the L2 cache."""
        first = self.cases[0]
        size = sum(x.nbytes for x in (first.inputs.a, first.inputs.b, first.inputs.c))
        count = math.ceil(2 * self.device.spec.l2_bytes / max(size, 1))
        found = []
        for number in range(min(max(count, 1), MAX_BUFFER_SETS)):
            if number == 0:
                a, b = first.a, first.b
            else:
                a, b = (self.device.upload(x) for x in (first.inputs.a, first.inputs.b))
            c = self.device.upload(first.inputs.c)
            self.kept += [a, b, c]
            found.append(bind_arguments(self.problem, a, b, c, first.bias))
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The device's environment, gemmkit's version and the inputs' distribution."""
        from gemmkit import __version__

        kinds = " and ".join(case.inputs.kind for case in self.cases)
        return {**self.device.environment(), "gemmkit": __version__, "inputs": kinds}

    def peer(self, device: TimedDevice, baseline: Baseline) -> tuple[str, Contender]:
        """The fastest of a baseline's candidates and its name, found once for each baseline."""
        if baseline not in self._peers:
            candidates = baseline.candidates(self.problem, self.rotating)
            names = list(candidates)
            if len(names) > 1:
                times = time_in_turn(
                    device,
                    list(candidates.values()),
                    seconds=CANDIDATE_SECONDS * len(names),
                    kept=self.kept,
                )
                names.sort(key=dict(zip(names, (x.median for x in times), strict=True)).__getitem__)
            self._peers[baseline] = names[0], candidates[names[0]]
        return self._peers[baseline]


@dataclass(frozen=True)
class _Case:
    """One set of inputs, on the host and on the device, with what must come out."""

    inputs: Inputs
    reference: Reference
    a: Buffer
    b: Buffer
    bias: Buffer | None

    @classmethod
    def make(cls, problem: GemmProblem, device: Device, seed: int, kind: InputKind) -> _Case:
        inputs = make_inputs(problem, seed, kind)
        # By the BLAS rules nobody reads A and B where α = 0, nor C where β = 0.
        read = problem.alpha != 0
        return cls(
            inputs,
            Reference(problem, inputs),
            a=device.upload(inputs.a, initialized=read),
            b=device.upload(inputs.b, initialized=read),
            bias=device.upload(inputs.bias) if inputs.bias is not None else None,
        )

    def run(
        self, problem: GemmProblem, device: Device, binary: Binary, plan: LaunchPlan
    ) -> tuple[Launch, Verdict]:
        result = np.empty_like(self.inputs.c)
        c = device.upload(self.inputs.c, initialized=problem.beta != 0)
        launch = Launch()
        if plan.blocks:
            scratch = Scratch.of(device, plan)
            arguments = bind_arguments(problem, self.a, self.b, c, self.bias, scratch)
            launch = device.launch(binary, plan, arguments)
        device.download(c, result)
        return launch, self.reference.check(result)
