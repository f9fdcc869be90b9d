"""`Trace`: the addresses that the lanes of each warp of one block access, per instruction, what its
TMA copies, and what its warps signal.

One block of the launch, or its cluster, runs alone, and every memory request is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from gemmkit.analysis.smaller import shallow, shallow_square, takes_squares_only
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.limits import launch_bounds
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.emulator.counters.rules import LANES, global_sectors, shared_wavefronts
from gemmkit.emulator.watching import Watched, WatchedAccess, WatchedCopy, WatchedSignal
from gemmkit.errors import UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import Dim3, LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem


def sectors(access: WatchedAccess) -> int:
    """Distinct 32-byte sectors of a request to global memory; 0 elsewhere."""
    if access.space != "global":
        return 0
    offsets = [offset for offset in access.offsets if offset is not None]
    return global_sectors(offsets, access.bytes_per_lane)


def bank_addresses(access: WatchedAccess) -> list[int]:
    """The lanes' addresses in shared memory; 0 for an inactive lane."""
    return [0 if offset is None else access.base + offset for offset in access.offsets]


def wavefronts(access: WatchedAccess) -> int:
    """Wavefronts of a shared-memory load or store; 0 elsewhere and for cp.async."""
    if access.space != "shared" or access.kind == "copy":
        return 0
    active = [offset is not None for offset in access.offsets]
    return shared_wavefronts(bank_addresses(access), active, access.bytes_per_lane, access.apart)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """All requests of one block, in the order in which its warps ran, and all that it has copied;
    `signals` are those of its whole cluster.

    `problem` is the one that ran: deep enough to show every access, but no deeper.
    """

    kernel: str
    problem: GemmProblem
    plan: LaunchPlan
    accesses: tuple[WatchedAccess, ...]
    copies: tuple[WatchedCopy, ...] = ()
    signals: tuple[WatchedSignal, ...] = ()

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return -(-self.plan.threads_per_block // LANES)

    def element(self, array: str, offset: int) -> tuple[int, int] | None:
        """Row and column, in A, B or C, of the element at a byte offset; None in other arrays."""
        problem = self.problem
        pitches = {
            "A": (problem.item_bytes, problem.lda, problem.transa),
            "B": (problem.item_bytes, problem.ldb, problem.transb),
            "C": (problem.out_item_bytes, problem.ldc, problem.transc),
        }
        if array not in pitches:
            return None
        item, pitch, transposed = pitches[array]
        row, col = divmod(offset // item, pitch)
        return (col, row) if transposed else (row, col)

    def representatives(self, warp: int = 0) -> tuple[WatchedAccess, ...]:
        """A warp's accesses that differ by array, kind, source line or pattern, in order of first
        use.

        The pattern is the differences of the lanes' addresses, so that an unrolled loop counts as
        one access.
        """
        chosen: dict[tuple[object, ...], WatchedAccess] = {}
        for access in self.accesses:
            if access.warp == warp and access.space in ("global", "shared"):
                place = access.array, access.space, access.kind, access.file, access.line
                chosen.setdefault((*place, _pattern(access)), access)
        return tuple(chosen.values())


def _pattern(access: WatchedAccess) -> tuple[int | None, ...]:
    first = min(offset for offset in access.offsets if offset is not None)
    return tuple(None if offset is None else offset - first for offset in access.offsets)


def trace(
    kernel: Kernel,
    problem: GemmProblem,
    gpu: GpuSpec,
    *,
    config: TileConfig | None = None,
    block: int = 0,
    binary: Binary | None = None,
    cache_dir: Path | None = None,
    reduced: bool = True,
) -> Trace:
    """Run one block of a launch and keep every memory request, and what its warps signal.

    Args:
        kernel: the kernel to run.
        problem: the problem; for groups the `typical` one.
        gpu: the board to compile for.
        config: by default the kernel's own.
        block: number of the block in the grid, x fastest.
        binary: the kernel, if it is already compiled for this problem and configuration.
        cache_dir: root of the compiler's cache; by default the user's.
        reduced: whether it runs on the problem as `smaller.shallow` reduces it.

    Raises:
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        UsageError: the grid has no such block.
        DeviceError: the kernel failed.
    """
    config = config or kernel.default
    problem = problem.typical
    plan = kernel.plan(problem, config, gpu)
    if not reduced:
        cut = problem
    elif block == 0 and takes_squares_only(kernel, problem, config, gpu):
        cut = shallow_square(problem)
    else:
        cut = shallow(problem, plan, block, user=kernel.user_defined)
    instances, plan = plan.instances, kernel.plan(cut, config, gpu)
    if not 0 <= block < plan.blocks:
        raise UsageError(f"there is no block {block} in a grid of {plan.blocks:,} blocks")
    if binary is None or plan.instances != instances:
        binary = compile_plan(plan, gpu.arch, cache_dir=cache_dir)
    device = EmulatedDevice(gpu, cache_dir=cache_dir)
    operands = Operands.zeros(device, cut)
    bound = bind_arguments(cut, operands)
    scratch = Scratch.of(device, plan, bound)  # must outlive the launch
    arguments = bound | scratch.arguments
    watched = device.watch(binary, plan, arguments, range(block, block + 1))
    # That of a user's kernel may stand in its code alone.
    compiled = launch_bounds(binary.ptx, binary.entry).cluster
    cluster = plan.cluster if math.prod(plan.cluster) > 1 else compiled
    own = _of_block(watched, plan, cluster, block)
    return Trace(kernel.label(config), cut, plan, own.accesses, own.copies, watched.signals)


def _of_block(watched: Watched, plan: LaunchPlan, cluster: Dim3, block: int) -> Watched:
    """What one block of the cluster that has run accesses, with its warps counted from 0."""
    size, rank, scale = -(-plan.threads_per_block // LANES), 0, 1
    for extent, in_cluster in zip(plan.grid, cluster, strict=True):
        block, place = divmod(block, extent)
        rank += place % in_cluster * scale
        scale *= in_cluster
    if scale == 1:
        return watched
    own = range(rank * size, (rank + 1) * size)
    return Watched(
        tuple(
            replace(each, warp=each.warp - own[0]) for each in watched.accesses if each.warp in own
        ),
        tuple(
            replace(each, warp=each.warp - own[0]) for each in watched.copies if each.warp in own
        ),
    )
