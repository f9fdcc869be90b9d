"""How many blocks of a kernel an SM holds at once, what limits them, and how many waves a grid is.

The rules are those of NVIDIA's occupancy calculator: registers go to whole warps, and warps to the
SM's four sub-partitions; shared memory goes to whole blocks, each with a reserved part on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gemmkit.errors import UsageError
from gemmkit.gpu import WARP_SIZE, ComputeCapability, GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.resources import barriers_from_log
from gemmkit.kernels.plan import LaunchPlan, ceil_div

Limiter = Literal["warps", "blocks", "registers", "shared memory", "barriers"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The theoretical occupancy of a launch.

    `theoretical` is resident warps over the maximum of the SM, 0 to 1. `waves_per_sm` is the grid's
    blocks over the blocks that the whole board holds at once. `limits` are the blocks per SM that
    each resource alone allows, in the order warps, blocks, registers, shared memory, barriers;
    `limiter` is the resource that allows the fewest, the first of equals. A block that does not fit
    has no waves, no warps and zero occupancy.

    `full_waves` are the waves that fill the board; `tail_idle` is the share of block slots, 0 to 1,
    that are empty in the last wave (0 if the grid ends with a full wave).
    """

    theoretical: float
    waves_per_sm: float
    blocks_per_sm: int
    limiter: Limiter
    limits: Mapping[Limiter, int]
    warps_per_block: int
    full_waves: int
    tail_idle: float

    @property
    def warps_per_sm(self) -> int:
        """Warps that an SM holds at once."""
        return self.blocks_per_sm * self.warps_per_block


def launch_occupancy(plan: LaunchPlan, binary: Binary, spec: GpuSpec) -> Occupancy:
    """Theoretical occupancy of a compiled plan.

    Raises:
        UsageError: the register count of the kernel is unknown.
    """
    barriers = barriers_from_log(binary.log, binary.entry)
    return occupancy(spec, **launch_resources(plan, binary), barriers=barriers)


def launch_resources(plan: LaunchPlan, binary: Binary) -> dict[str, int]:
    """The resources of a compiled plan, as arguments of `occupancy` and `what_if`.

    Raises:
        UsageError: the register count of the kernel is unknown.
    """
    used = binary.resources
    if used is None:
        raise UsageError(f"'{plan.kernel}': its register count is unknown, and so is its occupancy")
    return {
        "registers": used.registers,
        "threads": plan.threads_per_block,
        "shared_bytes": used.shared_bytes + plan.shared_bytes,
        "blocks": plan.blocks,
    }


def occupancy(
    spec: GpuSpec,
    *,
    registers: int,
    threads: int,
    shared_bytes: int,
    blocks: int,
    barriers: int = 1,
) -> Occupancy:
    """Theoretical occupancy of a launch.

    Args:
        spec: the board.
        registers: 32-bit registers per thread.
        threads: threads per block.
        shared_bytes: static and dynamic shared memory per block, in bytes.
        blocks: blocks in the grid.
        barriers: numbered barriers per block (`bar.sync 0` to `bar.sync 15`).

    Raises:
        UsageError: a count is negative, or a block has no thread.
    """
    if threads < 1 or min(registers, shared_bytes, blocks, barriers) < 0:
        raise UsageError(
            f"invalid launch: {blocks} blocks of {threads} threads, {registers} registers each, "
            f"{shared_bytes} bytes of shared memory"
        )
    capability = spec.capability
    warps = ceil_div(threads, WARP_SIZE)
    limits: dict[Limiter, int] = {
        "warps": _blocks_by_warps(capability, threads, warps),
        "blocks": capability.max_blocks_per_sm,
        "registers": _blocks_by_registers(capability, registers, warps),
        "shared memory": _blocks_by_shared_memory(capability, shared_bytes),
        "barriers": _blocks_by_barriers(capability, barriers),
    }
    limiter = min(limits, key=limits.__getitem__)
    resident = limits[limiter]
    places = resident * spec.sm_count
    full_waves, rest = divmod(blocks, places) if places else (0, 0)
    return Occupancy(
        theoretical=resident * warps / capability.max_warps_per_sm,
        waves_per_sm=blocks / places if places else 0.0,
        blocks_per_sm=resident,
        limiter=limiter,
        limits=limits,
        warps_per_block=warps,
        full_waves=full_waves,
        tail_idle=1 - rest / places if rest else 0.0,
    )


def _blocks_by_warps(capability: ComputeCapability, threads: int, warps: int) -> int:
    if threads > capability.max_threads_per_block:
        return 0
    return capability.max_warps_per_sm // warps


def _blocks_by_registers(capability: ComputeCapability, registers: int, warps: int) -> int:
    """A warp's registers come from its own sub-partition."""
    if registers > capability.max_registers_per_thread:
        return 0
    if registers == 0:
        return capability.max_blocks_per_sm
    partitions = capability.warp_unit
    warp_registers = _round_up(registers * WARP_SIZE, capability.register_unit)
    if warp_registers * _round_up(warps, partitions) > capability.registers_per_block:
        return 0
    warps_per_partition = capability.registers_per_sm // partitions // warp_registers
    return warps_per_partition * partitions // warps


def _blocks_by_shared_memory(capability: ComputeCapability, shared_bytes: int) -> int:
    if shared_bytes > capability.max_shared_per_block:
        return 0
    block_bytes = _round_up(
        shared_bytes + capability.shared_reserved_per_block, capability.shared_unit
    )
    if block_bytes == 0:
        return capability.max_blocks_per_sm
    return capability.shared_per_sm // block_bytes


def _blocks_by_barriers(capability: ComputeCapability, barriers: int) -> int:
    """Barriers are a separate resource from compute capability 9.0 on."""
    if capability.barriers_per_sm is None or barriers == 0:
        return capability.max_blocks_per_sm
    return capability.barriers_per_sm // barriers


def _round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit
