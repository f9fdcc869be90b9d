"""Launches that a board refuses: CUDA's limits on grids, blocks, registers and shared memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from gemmkit.gpu import KIB, MAX_BLOCK, MAX_GRID, WARP_SIZE, ComputeCapability, GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import Dim3, LaunchPlan, ceil_div

# What a kernel may declare as static shared memory, on every board.
MAX_STATIC_SHARED = 48 * KIB
# Larger clusters need cudaFuncAttributeNonPortableClusterSizeAllowed.
PORTABLE_CLUSTER = 8

_DIRECTIVE = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+(\d+(?:\s*,\s*\d+)*)")
_CONFIGURATION = "cudaErrorInvalidConfiguration, invalid configuration argument"
_RESOURCES = "cudaErrorLaunchOutOfResources, too many resources requested for launch"


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """What a kernel's code says of its launch: threads at most, the block and cluster it needs."""

    threads: int | None = None
    block: Dim3 | None = None
    cluster: Dim3 = (1, 1, 1)


@lru_cache(maxsize=256)
def launch_bounds(ptx: str, entry: str) -> LaunchBounds:
    """The performance directives of one kernel of a PTX text that a launch must observe."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*(?:\([^)]*\))?([^{{]*)\{{", ptx)
    given = {
        name: tuple(int(extent) for extent in extents.split(","))
        for name, extents in _DIRECTIVE.findall(found[1] if found is not None else "")
    }
    return LaunchBounds(
        math.prod(given["maxntid"]) if "maxntid" in given else None,
        _three(given["reqntid"]) if "reqntid" in given else None,
        _three(given.get("reqnctapercluster", ())),
    )


def refusal(spec: GpuSpec, binary: Binary, plan: LaunchPlan, static_shared: int) -> str | None:
    """Why the board refuses a launch, with the numbers and what to do, or None.

    `static_shared` is the kernel's own shared memory in bytes. An empty grid is no launch.
    """
    if plan.blocks == 0:
        return None
    limits, bounds = spec.capability, launch_bounds(binary.ptx, binary.entry)
    reason = (
        _extents(spec, plan)
        or _bounds(plan, bounds)
        or _registers(spec, binary, plan)
        or _shared(spec, plan, static_shared)
        or _cluster(limits, plan, bounds)
    )
    return f"'{plan.kernel}': {reason}" if reason is not None else None


def _extents(spec: GpuSpec, plan: LaunchPlan) -> str | None:
    most = spec.capability.max_threads_per_block
    threads = plan.threads_per_block
    if threads > most:
        return (
            f"a block of {_dims(plan.block)} has {threads:,} threads; {spec.name} allows {most:,} "
            f"({_CONFIGURATION}): launch smaller blocks"
        )
    for what, extents, allowed in (
        ("block", plan.block, MAX_BLOCK),
        ("grid", plan.grid, MAX_GRID),
    ):
        for axis, extent, limit in zip("xyz", extents, allowed, strict=True):
            if not 0 < extent <= limit:
                return (
                    f"{what}.{axis} is {extent:,}, but must be between 1 and {limit:,} "
                    f"({_CONFIGURATION}): put the longest side on x, or loop in the kernel"
                )
    return None


def _bounds(plan: LaunchPlan, bounds: LaunchBounds) -> str | None:
    threads = plan.threads_per_block
    if bounds.block is not None and bounds.block != plan.block:
        return (
            f"it is compiled for blocks of {_dims(bounds.block)} (.reqntid) and launched with "
            f"{_dims(plan.block)}: CUDA refuses the launch; make --block the same"
        )
    if bounds.threads is not None and threads > bounds.threads:
        return (
            f"it is compiled for {bounds.threads:,} threads per block at most (__launch_bounds__) "
            f"and launched with {threads:,}: CUDA refuses the launch; raise the bound, or launch "
            f"blocks of {bounds.threads:,}"
        )
    return None


def _registers(spec: GpuSpec, binary: Binary, plan: LaunchPlan) -> str | None:
    if binary.resources is None:
        return None
    limits, registers = spec.capability, binary.resources.registers
    warps = _round_up(ceil_div(plan.threads_per_block, WARP_SIZE), limits.warp_unit)
    taken = warps * _round_up(registers * WARP_SIZE, limits.register_unit)
    if taken <= limits.registers_per_block:
        return None
    bound = plan.threads_per_block
    return (
        f"{plan.threads_per_block:,} threads of {registers} registers take {taken:,} registers, as "
        f"they are allocated; a block has {limits.registers_per_block:,} ({_RESOURCES}): add "
        f"__launch_bounds__({bound}), so that the compiler uses fewer, or launch smaller blocks"
    )


def _shared(spec: GpuSpec, plan: LaunchPlan, static: int) -> str | None:
    if static > MAX_STATIC_SHARED:
        return (
            f"it declares {static:,} bytes of static shared memory, and {MAX_STATIC_SHARED:,} are "
            "allowed: make it dynamic (extern __shared__, --shared BYTES)"
        )
    most = spec.capability.max_shared_per_block
    if static + plan.shared_bytes > most:
        return (
            f"it needs {static + plan.shared_bytes:,} bytes of shared memory per block, "
            f"{plan.shared_bytes:,} of them dynamic; {spec.name} has {most:,} "
            "(cudaErrorInvalidValue): take smaller tiles or fewer stages"
        )
    return None


def _cluster(limits: ComputeCapability, plan: LaunchPlan, bounds: LaunchBounds) -> str | None:
    cluster = bounds.cluster if plan.cluster == (1, 1, 1) else plan.cluster
    blocks = math.prod(cluster)
    if blocks == 1:
        return None
    if limits.major < 9:
        return f"clusters of blocks need compute capability 9.0, and this is {limits}"
    if blocks > PORTABLE_CLUSTER:
        return (
            f"a cluster of {_dims(cluster)} has {blocks} blocks, and {PORTABLE_CLUSTER} are what "
            "every board of 9.0 or later runs (cudaErrorInvalidClusterSize): take a smaller one"
        )
    if any(extent % size for extent, size in zip(plan.grid, cluster, strict=True)):
        return (
            f"a grid of {_dims(plan.grid)} blocks is not made of whole clusters of "
            f"{_dims(cluster)} ({_CONFIGURATION}): round the grid up"
        )
    return None


def _three(extents: tuple[int, ...]) -> Dim3:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z


def _round_up(number: int, unit: int) -> int:
    return ceil_div(number, unit) * unit


def _dims(extents: Dim3) -> str:
    return "×".join(map(str, extents))
