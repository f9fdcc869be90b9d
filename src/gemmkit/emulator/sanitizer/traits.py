"""`Traits`: what the sanitizers derive from a kernel's instructions, the same for all launches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.operands import Action, access_bytes
from gemmkit.emulator.codegen.ordering import (
    LAUNCH_WAIT,
    Ordering,
    is_asynchronous,
    needs_clocks,
    orders_warps,
)
from gemmkit.emulator.codegen.shadow_layout import SHADOW_SITE, SHADOW_SITE_BYTES
from gemmkit.emulator.isa.bulk_copies import UNIT
from gemmkit.emulator.sanitizer.accumulators import touches
from gemmkit.emulator.sanitizer.shared_arrays import shared_arrays
from gemmkit.emulator.sanitizer.sites import is_partial_barrier, is_strong

_MEMORY = frozenset(
    ["load", "store", "atomic", "reduction", "compare_and_swap", "copy_async"],
)


class Traits:
    """The properties of one kernel.

    Attributes:
        kernel: the kernel, compiled with sanitizers.
        arrays: by the number of an instruction, the shared variable that it is meant to access.
        shared_granule: bytes of the smallest access to shared memory; where undefined bits are
            tracked, of the smallest number that such an access moves.
        global_granule: bytes of the smallest access to global memory.
        read_only: whether it has read-only loads (`ld.global.nc`).
        copies: whether it has cp.async.
        partial_barriers: whether it has barriers that may be for a part of the block.
        asynchronous: whether vector clocks find the races in its shared memory, as it uses
            mbarriers, bulk copies or wgmma, or flags there.
        explains: whether findings come with the order in which it goes wrong; that does not tell
            who waits for flags.
        touches: instructions that touch registers of a wgmma in flight.
        sites: the initial shadow of its memory records, one row each.
        strong: the instructions whose accesses do not race with each other.
        relaxed: those that wait for other blocks too, or are relaxed: Python follows what they
            order.
        awaits_launches: whether its threads wait for earlier launches (`griddepcontrol.wait`).
        flags_order_warps: whether flags in shared memory may order the warps of a block.
    """

    def __init__(self, kernel: LoadedKernel) -> None:
        self.kernel = kernel
        actions = kernel.actions
        self.arrays = shared_arrays(actions, kernel.flow.kernel.shared)
        self.shared_granule = _granule(actions, "shared", by_number=kernel.compiled.tracks)
        # Bulk copies begin at, and step by, multiples of their unit.
        self.global_granule = _granule(actions, "global", default=UNIT)
        self.read_only = any(map(_loads_read_only, actions))
        self.copies = any(action.operation == "copy_async" for action in actions)
        self.partial_barriers = any(map(is_partial_barrier, actions))
        self.asynchronous = needs_clocks(actions)
        self.explains = is_asynchronous(actions)
        self.sites = _sites(kernel)
        self.touches = touches(kernel.flow, actions)
        self.strong = np.array([each.number for each in actions if is_strong(each)], np.int64)
        self.relaxed = [
            each.number
            for each in actions
            if ".relaxed" in each.form.opcode or ".acquire.cluster" in each.form.opcode
        ]
        self.awaits_launches = any(each.form.opcode == LAUNCH_WAIT for each in actions)
        self.flags_order_warps = orders_warps(actions)


def _sites(kernel: LoadedKernel) -> NDArray[np.uint8]:
    rows = np.zeros((max(len(kernel.areas.sites), 1), SHADOW_SITE_BYTES), np.uint8)
    for number, place in kernel.areas.sites.items():
        action, row = kernel.actions[number], rows[place]
        ordering = Ordering.of(action)
        row[SHADOW_SITE["strong"]] = ordering.between_blocks.strong
        row[SHADOW_SITE["strong_in_block"]] = ordering.strong
        row[SHADOW_SITE["data"]] = number in kernel.data_loads
        row[SHADOW_SITE["nc"]] = _loads_read_only(action)
        row[SHADOW_SITE["overwrites"]] = number in kernel.overwrites
    return rows


def _granule(
    actions: Iterable[Action], space: str, *, by_number: bool = False, default: int = 4
) -> int:
    """The smallest access of the kernel that is, or may be, to a space; `default` if there is none.

    With `by_number`, the smallest number that an access moves.
    """
    sizes = [
        min(4, action.form.type.bytes)
        if by_number and action.operation != "copy_async"
        else access_bytes(action)
        for action in actions
        if action.operation in _MEMORY
        and (action.operation == "copy_async" or space_of(action) in (space, "generic"))
    ]
    return min(sizes, default=default)


def _loads_read_only(action: Action) -> bool:
    """Whether an instruction loads memory that must not be written while the kernel runs."""
    return action.operation == "load" and (
        ".nc" in action.form.opcode or action.form.opcode.startswith("ldu")
    )
