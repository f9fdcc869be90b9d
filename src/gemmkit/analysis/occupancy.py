"""How many blocks of a kernel an SM holds at once, what limits them, and how many waves a grid is.

The rules are those of NVIDIA's occupancy calculator: registers go to whole warps, and warps to the
SM's four sub-partitions; shared memory goes to whole blocks, each with a reserved part on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmkit.errors import UsageError
from gemmkit.gpu import WARP_SIZE, ComputeCapability, GpuSpec

Limiter = Literal["warps", "blocks", "registers", "shared memory"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What of an SM a kernel can fill.

    `theoretical` is resident warps over the most that the SM can hold, 0 to 1. `waves_per_sm` is
    the grid's blocks over the blocks that the whole board holds at once. `limiter` is the resource
    that allows the fewest blocks; of equals the first of warps, blocks, registers, shared memory.
    A block that does not fit at all has zero in every figure.
    """

    theoretical: float
    waves_per_sm: float
    blocks_per_sm: int
    limiter: Limiter


def occupancy(
    spec: GpuSpec, *, registers: int, threads: int, shared_bytes: int, blocks: int
) -> Occupancy:
    """Theoretical occupancy of a launch.

    Args:
        spec: the board.
        registers: 32-bit registers of one thread.
        threads: threads of one block.
        shared_bytes: static and dynamic shared memory of one block, in bytes.
        blocks: blocks of the grid.

    Raises:
        UsageError: a count is negative, or a block has no thread.
    """
    if threads < 1 or min(registers, shared_bytes, blocks) < 0:
        raise UsageError(
            f"no such launch: {blocks} blocks of {threads} threads, {registers} registers each, "
            f"{shared_bytes} bytes of shared memory"
        )
    capability = spec.capability
    warps = _ceil_div(threads, WARP_SIZE)
    limits: dict[Limiter, int] = {
        "warps": _blocks_by_warps(capability, threads, warps),
        "blocks": capability.max_blocks_per_sm,
        "registers": _blocks_by_registers(capability, registers, warps),
        "shared memory": _blocks_by_shared_memory(capability, shared_bytes),
    }
    limiter = min(limits, key=limits.__getitem__)
    resident = limits[limiter]
    return Occupancy(
        theoretical=resident * warps / capability.max_warps_per_sm,
        waves_per_sm=blocks / (resident * spec.sm_count) if resident else 0.0,
        blocks_per_sm=resident,
        limiter=limiter,
    )


def _blocks_by_warps(capability: ComputeCapability, threads: int, warps: int) -> int:
    if threads > capability.max_threads_per_block:
        return 0
    return capability.max_warps_per_sm // warps


def _blocks_by_registers(capability: ComputeCapability, registers: int, warps: int) -> int:
    """A warp's registers come from the one sub-partition that it lives on."""
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


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _round_up(value: int, unit: int) -> int:
    return _ceil_div(value, unit) * unit
