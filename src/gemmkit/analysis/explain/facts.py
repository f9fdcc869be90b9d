"""`Facts`: everything known without a GPU about one kernel on one problem and board."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.memory import MemoryRow, array_table, memory_table
from gemmkit.analysis.model import predict_profile
from gemmkit.analysis.occupancy import Occupancy, launch_occupancy
from gemmkit.analysis.prediction import Prediction
from gemmkit.devices.device import Launch, Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.devices.variables import refuse_unset
from gemmkit.gpu import GpuSpec
from gemmkit.groups import Groups
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.verify import Reference, Verdict, make_inputs
from gemmkit.verify.arithmetic import Arithmetic
from gemmkit.verify.roundings import arithmetic_for

# The largest extent that is emulated: 1024³ takes a second or two.
LARGEST_COUNTED = 1024


@dataclass(frozen=True, eq=False, repr=False)
class Facts:
    """One kernel, compiled, launched on the emulator, with its occupancy and prediction on a board.

    `problem` is the requested one. Counters and accesses are those of `counted`, which is smaller
    if emulating `problem` would take long. Occupancy, waves and the prediction are those of
    `problem`. `verdict` says whether the result of the counted launch is right, by the error bound
    of the kernel's `arithmetic`. `occupancy` is None if the register count is unknown or the grid
    is empty; `prediction` is also None if a block does not fit on an SM. `profile` is what the
    prediction rests on.
    """

    kernel: Kernel
    config: TileConfig
    gpu: GpuSpec
    problem: GemmProblem
    counted: GemmProblem
    plan: LaunchPlan
    binary: Binary
    launch: Launch
    occupancy: Occupancy | None
    prediction: Prediction | None
    verdict: Verdict
    profile: BlockProfile | None = None
    arithmetic: Arithmetic | None = None

    @property
    def name(self) -> str:
        """The kernel's name, with the configuration keys that differ from the default."""
        return self.kernel.label(self.config)

    def named(self, keys: Sequence[str]) -> str:
        """The kernel's name with some configuration keys, in the syntax of the command line."""
        return self.kernel.label(self.config, keys)

    @property
    def counters(self) -> Mapping[str, float]:
        """Metrics of the launch, by Nsight Compute's names where it has one."""
        return self.launch.counters

    @property
    def is_full(self) -> bool:
        """Whether the whole problem was counted."""
        return self.counted == self.problem

    @cached_property
    def accesses(self) -> tuple[MemoryRow, ...]:
        """Memory accesses by space, array and kind, those with the most requests first."""
        rows = array_table(self.launch.accesses)
        return tuple(sorted(rows, key=lambda each: (each.space, -each.requests, each.array)))

    @cached_property
    def lines(self) -> tuple[MemoryRow, ...]:
        """Memory accesses by source line, array and kind, in source order."""
        return memory_table(self.launch.accesses)

    def of(self, space: str, *kinds: str) -> tuple[MemoryRow, ...]:
        """The accesses of the given kinds to a memory space."""
        return tuple(each for each in self.accesses if each.space == space and each.kind in kinds)


def gather(
    kernel: Kernel,
    problem: GemmProblem,
    gpu: GpuSpec,
    *,
    config: TileConfig | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    progress: Callable[[float], None] | None = None,
    cache_dir: Path | None = None,
) -> Facts:
    """Compile a kernel, launch it on the emulator, and determine occupancy and prediction.

    Args:
        kernel: the kernel.
        problem: the product that it computes; if an extent is larger than `LARGEST_COUNTED`, a
            smaller product is emulated.
        gpu: the board.
        config: by default the kernel's own.
        seed: for the inputs.
        max_steps: warp instructions after which a block is stopped; unlimited by default.
        progress: called with the completed fraction of the emulation.
        cache_dir: root of the caches; by default the user's.

    Raises:
        UsageError: the kernel reads a variable that was never set.
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        CompileError: the kernel does not compile.
        DeviceError: the launch failed, or the kernel did.
    """
    config = config or kernel.default
    plan = kernel.plan(problem, config, gpu)
    binary = compile_plan(plan, gpu.arch, cache_dir=cache_dir)
    counted = _affordable(problem)
    smaller = kernel.plan(counted, config, gpu)
    device = EmulatedDevice(gpu, progress=progress, cache_dir=cache_dir, max_steps=max_steps)
    same = smaller.instances == plan.instances
    run = binary if same else compile_plan(smaller, gpu.arch, cache_dir=cache_dir)
    launch, verdict, arithmetic = _launch(device, counted, smaller, run, seed)
    resident = None
    if binary.resources is not None and plan.blocks:
        resident = launch_occupancy(plan, binary, gpu)
    prediction = profile = None
    if resident is not None and resident.blocks_per_sm and problem.flops:
        profile = profile_block(
            kernel, problem, gpu, config=config, binary=binary, cache_dir=cache_dir
        )
        prediction = predict_profile(profile, problem, gpu)
    return Facts(
        kernel=kernel,
        config=config,
        gpu=gpu,
        problem=problem,
        counted=counted,
        plan=plan,
        binary=binary,
        launch=launch,
        occupancy=resident,
        prediction=prediction,
        verdict=verdict,
        arithmetic=arithmetic,
        profile=profile,
    )


def _affordable(problem: GemmProblem) -> GemmProblem:
    if problem.groups is not None:
        return _affordable_groups(problem, problem.groups)
    m, n, k = (min(extent, LARGEST_COUNTED) for extent in (problem.m, problem.n, problem.k))
    # Two products of a batch are one as well.
    batch = min(problem.batch, max(2, LARGEST_COUNTED**3 // max(m * n * k, 1)))
    if (m, n, k) == (problem.m, problem.n, problem.k):
        return problem if batch == problem.batch else replace(problem, batch=batch)
    strides = {name: min(getattr(problem, name), 0) for name in ("stride_a", "stride_b")}
    smaller = replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, stride_c=0, **strides)
    return replace(smaller, batch=batch)


def _affordable_groups(problem: GemmProblem, groups: Groups) -> GemmProblem:
    """The first groups, each and together no larger than what is counted for one product."""
    sizes = groups.table[:3].clip(max=LARGEST_COUNTED)
    work = (sizes[0].astype(float) * sizes[1] * sizes[2]).cumsum()
    some = max(1, int((work <= LARGEST_COUNTED**3).sum()))
    if some == groups.count and (sizes == groups.table[:3]).all():
        return problem
    fewer = Groups.of(*sizes[:, :some], ragged=groups.ragged)
    return replace(problem, groups=fewer, m=0, n=0, k=0, lda=0, ldb=0, ldc=0)


def _launch(
    device: EmulatedDevice, problem: GemmProblem, plan: LaunchPlan, binary: Binary, seed: int
) -> tuple[Launch, Verdict, Arithmetic]:
    """The launch, whether its result is right, and in which arithmetic it should be."""
    refuse_unset(binary, plan)
    inputs = make_inputs(problem, seed, "normal")
    wanted = binary.ptx, binary.entry, problem, plan.compute_dtype, plan.tolerance
    if not plan.blocks:
        arithmetic = arithmetic_for(*wanted)
        reference = Reference(problem, inputs, arithmetic=arithmetic)
        return Launch(), reference.check(inputs.c), arithmetic
    operands = Operands.upload(device, problem, inputs.arrays)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)
    launch = device.launch(binary, plan, bound | scratch.arguments)
    arithmetic = arithmetic_for(*wanted, accesses=launch.accesses)
    reference = Reference(problem, inputs, arithmetic=arithmetic)
    return launch, reference.check(*operands.results(device, inputs.arrays)), arithmetic
