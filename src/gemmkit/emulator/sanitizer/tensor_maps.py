"""Tensor maps that a kernel writes itself: each must be released and acquired by a
`fence.proxy.tensormap` before it is used; and maps that do not fit their arrays.

PTX ISA, section "membar, fence": the proxy of tensor maps is one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.tensor_maps import is_map
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES


class LaunchMaps:
    """The tensor maps in memory when a launch begins, and what its blocks do with others."""

    def __init__(self, memory: DeviceMemory, actions: Sequence[Action]) -> None:
        self.memory = memory
        self.initial: dict[int, bytes] = {}
        # Whether a thread has released its writes to maps.
        self.released = False
        if any(action.operation == "bulk_tensor" for action in actions):
            for start, size in memory.regions().tolist():
                self._find(start, size)

    def _find(self, start: int, size: int) -> None:
        first = -start % MAP_ALIGNMENT
        data = self.memory.view(start, size)[first:]
        count = len(data) // MAP_ALIGNMENT
        words = data[: count * MAP_ALIGNMENT].view(np.uint64)[:: MAP_ALIGNMENT // 8]
        for index in np.flatnonzero(is_map(words)).tolist():
            place = index * MAP_ALIGNMENT
            self.initial[start + first + place] = data[place : place + MAP_BYTES].tobytes()

    def content(self, address: int) -> bytes:
        """The bytes of the map at an address."""
        return self.memory.view(address, MAP_BYTES).tobytes()


class MapOrder:
    """The maps that the blocks of one worker use."""

    def __init__(self, found: AsynchronousFindings, maps: LaunchMaps) -> None:
        self._found, self._maps = found, maps
        # What each warp acquired, by block, warp and address.
        self._acquired: dict[tuple[int, int, int], bytes] = {}
        # Addresses and bytes of maps that were found to fit.
        self._fitting: set[tuple[int, bytes]] = set()

    def released(self) -> None:
        """A thread executes `fence.proxy.tensormap::generic.release`."""
        self._maps.released = True

    def acquired(self, block: int, thread: int, address: int) -> None:
        """A thread executes `fence.proxy.tensormap::generic.acquire`."""
        if self._maps.memory.find(address) is not None:
            self._acquired[block, thread // LANES, address] = self._maps.content(address)

    def used(self, block: int, copy: Copy) -> None:
        """A tensor copy reads its map."""
        address, maps = copy.map_at, self._maps
        content = maps.content(address)
        if maps.initial.get(address) != content:
            acquired = self._acquired.get((block, copy.thread // LANES, address))
            if acquired != content:
                self._found.map_not_acquired(block, copy)
            elif not maps.released:
                self._found.map_not_released(block, copy)
        if (address, content) not in self._fitting:
            self._fitting.add((address, content))
            self._check_fit(block, copy)

    def _check_fit(self, block: int, copy: Copy) -> None:
        assert copy.box is not None
        each = copy.box.map
        found = self._maps.memory.find(each.address)
        if found is None:
            return
        left = found.address + found.nbytes - each.address
        if each.span > left:
            self._found.map_past_end(block, copy, found.name, each.address - found.address, left)
