"""Clusters: addresses of the blocks' shared memory, and the state of the cluster's barrier.

The address of a variable in shared memory, as a program sees it, is in the window of the cluster:
the bits from 24 on hold the rank of its block, also of the executing one. The PTX ISA leaves the
encoding open; this is what an H100 does, on which an instruction for a block's own memory
(`shared::cta`) refuses an address with another rank. A kernel in whose code no clusters occur has
addresses without ranks here.

The emulator itself uses relative addresses: those in the executing block's own memory have less
than 24 bits; in others, the bits from 24 on hold the rank plus one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.clusters import NO_CLUSTERS
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.ptx.module import Instruction, Kernel, Special
from gemmkit.errors import DeviceError

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
# The bits of an address that hold a rank; the highest value is that of addresses below 0.
RANK_MASK = 0xFF << RANK_SHIFT
NO_RANK = 0xFF
WINDOW_BYTES = 1 << 32
_SHOWS = ("barrier.cluster", "mapa", "getctarank", "wgmma.mma_async")
# Stands for the cluster's barrier where waiting lanes name an mbarrier's address.
CLUSTER_BARRIER = -1


def cluster_address(rank: int, address: int) -> int:
    """The relative address, with its rank, of an address in one block's shared memory."""
    return rank + 1 << RANK_SHIFT | (address & OFFSET_MASK)


def divided(address: int, own: int) -> tuple[int, int]:
    """The rank of the block that has a relative address, and the address in that block's shared
    memory; `own` is the rank of the executing block. The rank may be that of no block."""
    rank = address >> RANK_SHIFT
    return (own, address) if rank == 0 else (rank - 1, address & OFFSET_MASK)


def reaches_peers(form: Form) -> bool:
    """Whether addresses of an instruction may be in the shared memory of another block: those of
    `shared::cluster`, and generic ones."""
    generic = form.modifiers.get("S") == "" and not form.operation.startswith("mbarrier")
    return generic or "shared::cluster" in form.opcode


def shows_ranks(kernel: Kernel, forms: Sequence[Form]) -> bool:
    """Whether addresses of shared memory have the rank of the block: a kernel's code names
    clusters, or multiplies by descriptors, which may hold such bits."""
    return (
        kernel.cluster != NO_CLUSTERS
        or any(form.opcode.startswith(_SHOWS) or "::cluster" in form.opcode for form in forms)
        or any(
            isinstance(operand, Special) and "cluster" in operand.name
            for instruction in kernel.body
            for operand in instruction.operands
        )
    )


def relative(addresses: NDArray[Any], own: NDArray[Any] | int, start: int = 0) -> NDArray[Any]:
    """Relative addresses from those that a program sees, in blocks whose ranks are `own`; 64 bits.
    `start` is where the window of generic addresses begins, which are converted too.
    """
    kind = np.uint64
    low = addresses & kind(WINDOW_BYTES - 1)
    window = addresses - low
    rank = low >> kind(RANK_SHIFT)
    moved = low + (rank != kind(NO_RANK)).astype(kind) * kind(1 << RANK_SHIFT)
    here = np.where(rank == np.asarray(own).astype(kind), low & kind(OFFSET_MASK), moved)
    shared = (window == 0) | (window == kind(start))
    found: NDArray[Any] = np.where(shared, window + here, addresses)
    return found


def mapped(
    instruction: Instruction, addresses: NDArray[Any], ranks: NDArray[Any], blocks: int
) -> NDArray[Any]:
    """`mapa` in active lanes: the addresses of the same variables in the blocks of these ranks; in
    a cluster of one block they are the same.

    Raises:
        DeviceError: the cluster has no such block.
    """
    beyond = ranks[ranks >= np.uint32(blocks)]
    if beyond.size:
        has = "one block, whose only rank is 0"
        if blocks > 1:
            has = f"{blocks} blocks, whose ranks are 0 to {blocks - 1}"
        raise DeviceError(
            f"'{instruction.text}' at {instruction.where} asks for rank {int(beyond[0])} of a "
            f"cluster of {has}"
        )
    if blocks == 1:
        return addresses
    kind = addresses.dtype.type
    shifted = ranks.astype(addresses.dtype) << kind(RANK_SHIFT)
    found: NDArray[Any] = addresses & ~kind(RANK_MASK) | shifted
    return found


def ranks_of(addresses: NDArray[Any]) -> NDArray[np.uint32]:
    """`getctarank`: the ranks of the blocks that have these addresses."""
    kind = addresses.dtype.type
    found: NDArray[np.uint32] = (addresses >> kind(RANK_SHIFT) & kind(NO_RANK)).astype(np.uint32)
    return found


def multicast_ranks(mask: int, blocks: int) -> list[int]:
    """The ranks of the blocks to which a copy with a `ctaMask` goes.

    Raises:
        Misuse: the cluster has no such block, or the mask is empty.
    """
    if mask >> blocks or not mask:
        has = "no block" if not mask else f"rank {mask.bit_length() - 1}"
        raise Misuse(
            "invalid multicast",
            f"multicasts to {has} with the mask {mask:#x}, in a cluster of {blocks} "
            f"block{'s' * (blocks > 1)}",
        )
    return [rank for rank in range(blocks) if mask >> rank & 1]


class ClusterBarrier:
    """`barrier.cluster`: which threads have arrived, as one mask per warp of the cluster.

    A phase completes once all threads that have not exited have arrived (PTX ISA,
    "barrier.cluster"). Between two arrivals, a thread must wait.
    """

    def __init__(self, warps: int) -> None:
        self.phase = 0
        self._arrived = [0] * warps
        # Threads that arrived in a phase that is complete, and have not waited yet.
        self._passing = [0] * warps

    def arrive(self, warp: int, lanes: int) -> None:
        """Lanes of a warp arrive.

        Raises:
            Misuse: one has arrived before, and has not waited since.
        """
        if lanes & (self._arrived[warp] | self._passing[warp]):
            raise Misuse(
                "unequal cluster barrier",
                "arrives at the cluster barrier again without a barrier.cluster.wait since its "
                "last arrival",
            )
        self._arrived[warp] |= lanes

    def wait(self, warp: int, lanes: int) -> bool:
        """Whether lanes of a warp may continue after their wait.

        Raises:
            Misuse: one has not arrived.
        """
        if lanes & ~(self._arrived[warp] | self._passing[warp]):
            raise Misuse(
                "unequal cluster barrier",
                "waits at the cluster barrier without a barrier.cluster.arrive since its last wait",
            )
        if lanes & self._arrived[warp]:
            return False
        self._passing[warp] &= ~lanes
        return True

    def settle(self, living: Iterable[int]) -> bool:
        """Complete the phase if all of the threads that have not exited have arrived."""
        if not any(self._arrived) or any(
            alive & ~arrived for alive, arrived in zip(living, self._arrived, strict=True)
        ):
            return False
        self._passing = self._arrived
        self._arrived = [0] * len(self._passing)
        self.phase ^= 1
        return True

    def text(self, living: Iterable[int]) -> str:
        """The barrier in words, with the number of its arrivals."""
        arrived = sum(each.bit_count() for each in self._arrived)
        missing = sum(
            (alive & ~here).bit_count() for alive, here in zip(living, self._arrived, strict=True)
        )
        return f"the cluster barrier ({arrived:,} of {arrived + missing:,} threads have arrived)"
