"""`Workload`: one problem on one device, with inputs, references and buffers for many kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gemmkit.bench.baseline import Arguments, Baseline, Way
from gemmkit.bench.timer import Rotation, fastest_first
from gemmkit.devices.device import (
    Buffer,
    Device,
    Launch,
    Scratch,
    TimedDevice,
    Work,
)
from gemmkit.devices.management import Probe, management_probes
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.devices.packing import scalar_types
from gemmkit.devices.scalars import as_passed, is_narrow
from gemmkit.devices.variables import refuse_unset
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem
from gemmkit.storage import Stored
from gemmkit.verify import Arithmetic, InputKind, Inputs, Reference, Verdict, make_inputs
from gemmkit.verify.arithmetic import FP32
from gemmkit.verify.bounds import exact_sums
from gemmkit.verify.inputs import INTEGER_SUM_LIMIT
from gemmkit.verify.overwritten import overwritten
from gemmkit.verify.roundings import arithmetic_for
from gemmkit.version import __version__

# Storage of C, and of the auxiliary output if there is one.
Results = tuple[Stored, Stored | None]

# Sets below some hundred KiB all stay in L2 under this cap, as such small ones do in any use.
MAX_BUFFER_SETS = 256
CANDIDATE_SECONDS = 0.1


class Workload:
    """What every kernel that runs a problem shares.

    Inputs are random normal, or of another kind if that is asked for. Where the problem is too
    large to compare every element, each kernel also runs integer inputs, whose product is exact:
    Freivalds' check then shows any single wrong element for sure. A kernel that computes in
    narrower types than fp32 (see `gemmkit.verify.roundings`) is judged by the bound of its
    arithmetic, and also runs integers that this arithmetic keeps exact, however large the problem
    is. A kernel that leaves other inputs than C changed is wrong.

    By the BLAS rules A and B are not read where α = 0: they count as never written then, unless
    `written` says that they do not.

    Raises:
        DeviceError: the matrices do not fit on the device.
        UsageError: k is too large for any check.
    """

    def __init__(
        self,
        problem: GemmProblem,
        device: Device,
        seed: int = 0,
        kind: InputKind = "normal",
        *,
        written: bool = False,
    ) -> None:
        self.problem, self.device, self.seed, self.kind = problem, device, seed, kind
        self._written = written
        # The first is of the inputs that are also timed.
        self._first = self._made(kind)
        self._passed: dict[GemmProblem, Workload] = {}
        self._narrow: dict[Arithmetic, list[Case]] = {}
        self._integers: dict[int, Case] = {}
        self.kept: list[Buffer] = []
        # What the last kernel printed in the first of its launches.
        self.printed: tuple[str, ...] = ()
        self._peers: dict[Baseline, tuple[str, Rotation]] = {}

    def _made(self, kind: InputKind, sum_limit: int = INTEGER_SUM_LIMIT) -> Case:
        """A case of other inputs."""
        given = self.problem, self.device, self.seed, kind, sum_limit
        try:
            return Case.make(*given, written=self._written)
        except MemoryError:
            raise DeviceError(
                f"the host does not have enough memory for the matrices of {self.problem.shape}"
            ) from None

    @cached_property
    def cases(self) -> list[Case]:
        """Those for a kernel that computes in fp32; narrower types have integers of their own."""
        found = [self._first]
        if not self._first.reference.full:
            found.append(self._integer(INTEGER_SUM_LIMIT))
        return found

    def _integer(self, limit: int) -> Case:
        """Integers whose sums stay below a limit, made once."""
        if limit not in self._integers:
            self._integers[limit] = self._made("integer", limit)
        return self._integers[limit]

    def run(self, binary: Binary, plan: LaunchPlan) -> tuple[Launch, Verdict]:
        """Launch on poisoned output and judge the result: the first launch seen, the verdict.

        Raises:
            DeviceError: the launch failed, or the kernel did.
            UsageError: the kernel reads a variable that was never set, or `compute_dtype` or
                `tolerance` of the plan is not valid.
        """
        refuse_unset(binary, plan)
        passed = self.problem
        if not (is_narrow(passed.alpha) and is_narrow(passed.beta)):
            passed = as_passed(passed, scalar_types(binary, plan))
        if passed != self.problem:
            other = self._with_scalars(passed)
            found = other.run(binary, plan)
            self.printed = other.printed
            return found
        wanted = binary.ptx, binary.entry, self.problem, plan.compute_dtype, plan.tolerance
        arithmetic = arithmetic_for(*wanted)
        launch, verdict = self._judged(arithmetic, binary, plan)
        # Whether C is the accumulator shows in the counters alone.
        seen = arithmetic_for(*wanted, accesses=launch.accesses)
        if seen != arithmetic:
            launch, verdict = self._judged(seen, binary, plan)
        self.printed = launch.printed
        return launch, verdict

    def _judged(
        self, arithmetic: Arithmetic, binary: Binary, plan: LaunchPlan
    ) -> tuple[Launch, Verdict]:
        """The first launch, and the verdict of all by the bound of this arithmetic."""
        launches, verdicts = zip(
            *(
                case.run(self.problem, self.device, binary, plan)
                for case in self._cases_for(arithmetic)
            ),
            strict=True,
        )
        return launches[0], _worst(verdicts)

    def _with_scalars(self, problem: GemmProblem) -> Workload:
        """The same workload with the α and β that a kernel's narrower parameters pass on."""
        if problem not in self._passed:
            self._passed[problem] = Workload(problem, self.device, self.seed, written=self._written)
        return self._passed[problem]

    def _cases_for(self, arithmetic: Arithmetic) -> list[Case]:
        """The cases for a kernel that computes in this arithmetic."""
        if arithmetic.plain:
            return self.cases
        if arithmetic not in self._narrow:
            limit = min(exact_sums(self.problem, arithmetic), INTEGER_SUM_LIMIT)
            if limit and arithmetic.tolerance is None and self.kind == "normal":
                cases = [self._first, self._integer(limit)]
            else:
                cases = self.cases
            self._narrow[arithmetic] = [case.under(arithmetic) for case in cases]
        return self._narrow[arithmetic]

    def judge(
        self,
        compute: Callable[[Arguments], None],
        problem: GemmProblem | None = None,
        arithmetic: Arithmetic = FP32,
    ) -> Verdict:
        """Whether what `compute` leaves in C, given the arguments by name, is right.

        It runs on poisoned output once for each case of inputs. `problem` is the workload's own,
        or the same with another epilogue, `arithmetic` the one in which `compute` computes.

        Raises:
            DeviceError: the launch failed.
        """
        problem = problem or self.problem
        return _worst(
            [
                case.reference_of(problem).check(*case.computed(problem, self.device, compute))
                for case in self._cases_for(arithmetic)
            ]
        )

    def rotation(self, device: TimedDevice, binary: Binary, plan: LaunchPlan) -> Rotation:
        """The launch on each set of buffers."""
        works, kept = self.works(device, binary, plan)
        self.kept += kept
        return works

    def works(
        self, device: TimedDevice, binary: Binary, plan: LaunchPlan
    ) -> tuple[Rotation, list[Buffer]]:
        """The launch on each set of buffers, and the scratch memory that it needs."""
        works: list[Work] = []
        kept: list[Buffer] = []
        scratch: Scratch | None = None
        for each in self.rotating:
            scratch = (
                Scratch.of(device, plan, each)
                if scratch is None
                else scratch.with_matrices(device, plan, each)
            )
            works.append(device.work(binary, plan, each | scratch.arguments))
            kept += scratch.buffers
        return works, kept

    @cached_property
    def rotating(self) -> list[dict[str, int | float]]:
        """Arguments over sets of buffers, in `kept`, that together exceed twice the L2 cache."""
        first = self._first
        count = math.ceil(2 * self.device.spec.l2_bytes / max(first.inputs.nbytes, 1))
        found = []
        for number in range(min(max(count, 1), MAX_BUFFER_SETS)):
            if number == 0:
                operands = first.operands.with_results(
                    self.device, self.problem, first.inputs.arrays
                )
            else:
                operands = Operands.upload(self.device, self.problem, first.inputs.arrays)
            self.kept += operands.buffers
            found.append(bind_arguments(self.problem, operands))
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The device's environment, gemmkit's version and the inputs' distribution."""
        kinds = self.kind if self._first.reference.full else f"{self.kind} and integer"
        return {**self.device.environment(), "gemmkit": __version__, "inputs": kinds}

    @cached_property
    def probes(self) -> Mapping[str, Probe]:
        """What NVML tells of the device; nothing of one that has no clock."""
        device = self.device
        return management_probes(device.stream) if isinstance(device, TimedDevice) else {}

    def peer(self, device: TimedDevice, baseline: Baseline) -> tuple[str, Rotation]:
        """The fastest of a baseline's candidates and its name, found once for each baseline."""
        if baseline not in self._peers:
            candidates = self.candidates(baseline)
            name = self.ranked(device, {key: way.works for key, way in candidates.items()})[0]
            self._peers[baseline] = name, candidates[name].works
        return self._peers[baseline]

    def candidates(self, baseline: Baseline) -> dict[str, Way]:
        """A baseline's ways to compute the problem, on each set of buffers.

        Raises:
            UnsupportedProblem: it has none.
        """
        return baseline.candidates(self.problem, self.rotating)

    def ranked(self, device: TimedDevice, rotations: Mapping[str, Rotation]) -> list[str]:
        """The names of rotations, the fastest first."""
        names = list(rotations)
        if len(names) == 1:
            return names
        order = fastest_first(
            device, list(rotations.values()), seconds=CANDIDATE_SECONDS, kept=self.kept
        )
        return [names[number] for number in order]


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The first that is wrong, else the first."""
    return next((verdict for verdict in verdicts if not verdict.correct), verdicts[0])


@dataclass(frozen=True)
class Case:
    """One set of inputs, on the host and on the device, with what must come out.

    `held` has the operands as its only element: others take their place when a kernel overwrites
    them. `read` says whether A and B count as written.
    """

    inputs: Inputs
    reference: Reference
    held: list[Operands]
    read: bool = True
    # For the same inputs, by problem, where that is not the workload's own.
    others: dict[GemmProblem, Reference] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        problem: GemmProblem,
        device: Device,
        seed: int,
        kind: InputKind,
        sum_limit: int = INTEGER_SUM_LIMIT,
        *,
        written: bool = False,
    ) -> Case:
        """Inputs of a kind, uploaded, and their reference; `sum_limit` is as in `make_inputs`.

        Raises:
            DeviceError: the matrices do not fit on the device.
        """
        inputs = make_inputs(problem, seed, kind, sum_limit)
        return cls.of(problem, inputs, device, written=written)

    @classmethod
    def of(
        cls, problem: GemmProblem, inputs: Inputs, device: Device, *, written: bool = False
    ) -> Case:
        """These inputs, uploaded, and their reference.

        Raises:
            DeviceError: the matrices do not fit on the device.
        """
        # By the BLAS rules A and B are not read where α = 0, nor C where β = 0.
        read = problem.alpha != 0 or written
        case = cls(inputs, Reference(problem, inputs), [], read)
        case.held.append(case._uploaded(problem, device))
        return case

    def _uploaded(self, problem: GemmProblem, device: Device) -> Operands:
        return Operands.upload(
            device, problem, self.inputs.arrays, reads_a_and_b=self.read, results=False
        )

    @property
    def operands(self) -> Operands:
        """The inputs on the device."""
        return self.held[0]

    def under(self, arithmetic: Arithmetic) -> Case:
        """The same inputs for a kernel that computes in another arithmetic."""
        return replace(self, reference=self.reference.under(arithmetic), others={})

    def run(
        self, problem: GemmProblem, device: Device, binary: Binary, plan: LaunchPlan
    ) -> tuple[Launch, Verdict]:
        """Launch on poisoned output and judge the result, and that no input is overwritten.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """
        launch, result = self.result(problem, device, binary, plan)
        verdict = self.reference.check(*result)
        changed = overwritten(
            problem, self.inputs, self.operands.inputs(device, self.inputs.arrays)
        )
        if changed:
            self.held[:] = [self._uploaded(problem, device)]
            detail = "; ".join(filter(None, (verdict.detail, changed)))
            verdict = replace(verdict, correct=False, detail=detail)
        return launch, verdict

    def result(
        self, problem: GemmProblem, device: Device, binary: Binary, plan: LaunchPlan
    ) -> tuple[Launch, Results]:
        """Launch on poisoned output; storage of the results as the kernel left it.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """
        launches: list[Launch] = []
        compute = launching(device, binary, plan, launches)
        result = self.computed(problem, device, compute)
        return launches[0] if launches else Launch(), result

    def computed(
        self, problem: GemmProblem, device: Device, compute: Callable[[Arguments], None]
    ) -> Results:
        """Storage of the results as `compute` left it, given the arguments by name and poisoned
        output.

        Raises:
            DeviceError: it failed.
        """
        operands = self.operands.with_results(device, problem, self.inputs.arrays)
        compute(bind_arguments(problem, operands))
        return operands.results(device, self.inputs.arrays)

    def reference_of(self, problem: GemmProblem) -> Reference:
        """What a problem's result must be for these inputs, made once: another epilogue, say."""
        if problem == self.reference.problem:
            return self.reference
        if problem not in self.others:
            inputs = self.inputs.for_epilogue(problem.epilogue)
            arithmetic = self.reference.arithmetic
            self.others[problem] = Reference(problem, inputs, arithmetic=arithmetic)
        return self.others[problem]


def launching(
    device: Device, binary: Binary, plan: LaunchPlan, seen: list[Launch]
) -> Callable[[Arguments], None]:
    """What launches a plan with memory of its own, and appends what it saw."""

    def compute(arguments: Arguments) -> None:
        if plan.blocks:
            scratch = Scratch.of(device, plan, arguments)  # must outlive the launch
            launch = device.launch(binary, plan, {**arguments, **scratch.arguments})
            seen.append(launch)
            if not launch.findings:
                # A sanitizer reports counters too, with their lines.
                scratch.check(device, plan)

    return compute
