"""`Facts`: everything that is known without a GPU about one kernel on one problem and board."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gemmkit.analysis.model import Prediction, predict
from gemmkit.analysis.occupancy import Occupancy, launch_occupancy
from gemmkit.devices.device import Launch, bind_arguments
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel, LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import AccessCounts
from gemmkit.verify import make_inputs

# No extent beyond this is emulated: 1024³ takes a second or two.
LARGEST_COUNTED = 1024


@dataclass(frozen=True, slots=True)
class Access:
    """The counts of all accesses of one kind to one array; fields as in `AccessCounts`."""

    array: str
    space: str
    kind: str
    bytes_per_lane: float
    lanes: int
    requests: int
    instructions: int
    sectors: int
    ideal_sectors: int
    tag_wavefronts: int
    wavefronts: int
    ideal_wavefronts: int
    conflicts: int

    @property
    def sectors_per_request(self) -> float:
        """32-byte sectors that one request touches."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def ideal_per_request(self) -> float:
        """Sectors that the distinct bytes of one request need at least."""
        return self.ideal_sectors / self.requests if self.requests else 0.0

    @property
    def asked_per_request(self) -> float:
        """Sectors that the bytes which all lanes of one request ask for would fill."""
        return self.lanes * self.bytes_per_lane / SECTOR_BYTES / self.requests

    @property
    def wavefronts_per_request(self) -> float:
        """Passes over the banks that one request takes."""
        return self.wavefronts / self.instructions if self.instructions else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Facts:
    """One kernel, compiled, launched on the emulator and put on a board.

    `problem` is what was asked about; `counted` is the problem of which counters and accesses are,
    smaller where the asked one takes the emulator long. Occupancy, waves and the prediction are
    those of `problem`. `occupancy` is None where nothing is known of the registers or the grid is
    empty; `prediction` also where a block does not fit on an SM.
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

    @property
    def name(self) -> str:
        """The kernel's name, with what of its configuration is not the default."""
        default = self.kernel.default.as_dict()
        return self.named([k for k, v in self.config.as_dict().items() if default.get(k) != v])

    def named(self, keys: Sequence[str]) -> str:
        """The kernel's name with some keys of its configuration, as a command line takes it."""
        values = ",".join(f"{key}={self.config[key]}" for key in keys)
        return f"{self.kernel.name}:{values}" if values else self.kernel.name

    @property
    def counters(self) -> Mapping[str, float]:
        """Metrics of the launch, by Nsight Compute's names where it has one."""
        return self.launch.counters

    @property
    def is_full(self) -> bool:
        """Whether the whole problem was counted."""
        return self.counted == self.problem

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Memory accesses by space, array and kind, those that move most first."""
        groups: defaultdict[tuple[str, str, str], list[AccessCounts]] = defaultdict(list)
        for each in self.launch.accesses:
            if each.requests:
                groups[each.space, each.array, each.kind].append(each)
        found = [_together(*key, counts) for key, counts in groups.items()]
        return tuple(sorted(found, key=lambda each: (each.space, -each.requests, each.array)))

    def of(self, space: str, *kinds: str) -> tuple[Access, ...]:
        """The accesses in a space of some kinds."""
        return tuple(each for each in self.accesses if each.space == space and each.kind in kinds)


def _together(space: str, array: str, kind: str, counts: list[AccessCounts]) -> Access:
    def total(field: str) -> int:
        return sum(getattr(each, field) for each in counts)

    requests = total("requests")
    return Access(
        array=array,
        space=space,
        kind=kind,
        bytes_per_lane=sum(each.bytes_per_lane * each.requests for each in counts) / requests,
        requests=requests,
        **{
            field: total(field)
            for field in (
                *(
                    "lanes",
                    "instructions",
                    "sectors",
                    "ideal_sectors",
                    "tag_wavefronts",
                    "wavefronts",
                ),
                *("ideal_wavefronts", "conflicts"),
            )
        },
    )


def gather(
    kernel: Kernel,
    problem: GemmProblem,
    gpu: GpuSpec,
    *,
    config: TileConfig | None = None,
    progress: Callable[[float], None] | None = None,
    cache_dir: Path | None = None,
) -> Facts:
    """Compile, launch on the emulator, and put on a board.

    Args:
        kernel: what to look at.
        problem: the product that it computes; where an extent is larger than `LARGEST_COUNTED`, a
            smaller product is counted.
        gpu: the board.
        config: the kernel's default where none is given.
        progress: called with the fraction of the emulation that is done.
        cache_dir: root of the caches; by default the user's.

    Raises:
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        CompileError: the kernel does not compile.
        DeviceError: the launch failed, or the kernel did.
    """
    config = config or kernel.default
    plan = kernel.plan(problem, config, gpu)
    binary = compile_plan(plan, gpu.arch, cache_dir=cache_dir)
    counted = _affordable(problem)
    smaller = kernel.plan(counted, config, gpu)
    device = EmulatedDevice(gpu, progress=progress, cache_dir=cache_dir)
    launch = _launch(device, counted, smaller, compile_plan(smaller, gpu.arch, cache_dir=cache_dir))
    resident = None
    if binary.resources is not None and plan.blocks:
        resident = launch_occupancy(plan, binary, gpu)
    prediction = None
    if resident is not None and resident.blocks_per_sm and problem.flops:
        prediction = predict(kernel, problem, gpu, config=config, cache_dir=cache_dir)
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
    )


def _affordable(problem: GemmProblem) -> GemmProblem:
    m, n, k = (min(extent, LARGEST_COUNTED) for extent in (problem.m, problem.n, problem.k))
    if (m, n, k) == (problem.m, problem.n, problem.k):
        return problem
    return replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0)


def _launch(
    device: EmulatedDevice, problem: GemmProblem, plan: LaunchPlan, binary: Binary
) -> Launch:
    if not plan.blocks:
        return Launch()
    inputs = make_inputs(problem, 0, "normal")
    bias = device.upload(inputs.bias) if inputs.bias is not None else None
    a, b, c = (device.upload(array) for array in (inputs.a, inputs.b, inputs.c))
    return device.launch(binary, plan, bind_arguments(problem, a, b, c, bias))
