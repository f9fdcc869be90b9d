"""Tables that a kernel reads: brought to a GPU by way of pinned memory, in a stream's order."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.context import Context
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.launcher import PreparedLaunch
from gemmkit.devices.patches import ROLES, Places
from gemmkit.devices.pinned import PinnedMemory
from gemmkit.devices.scratch import ScratchPool
from gemmkit.kernels.operand_copies import COPY_ALIGNMENT, PREPARED, rounded_up

# Where launches take the address of their table from, of products or of offsets, and that of what
# is prepared of B.
TABLE = ROLES[-1]
PLACES: Places = {"groups": (TABLE, 0), "offsets": (TABLE, 0), PREPARED[1]: (PREPARED[1], 0)}
_NOTHING: Mapping[str, int] = {}

# Tables that may be on their way at once before a call waits for the oldest.
SLOTS = 64
LEAST_BYTES = 1 << 16


class Tables:
    """The tables of one GPU: pinned memory that is used in turn, and a place for each stream."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()
        self._ring = [PinnedMemory() for _ in range(SLOTS)]
        self._next = 0
        # Graphs read these at each replay, and nothing tells when the last of them is gone.
        self._captured: list[PinnedMemory] = []

    def launch(
        self,
        launches: Sequence[PreparedLaunch],
        table: NDArray[Any],
        stream: int,
        prepared: int = 0,
        addresses: Mapping[str, int] = _NOTHING,
    ) -> None:
        """Put a copy of a table on a stream, and then launches that take its address as in `PLACES`
        and share a workspace; `prepared` is the address of what they read of a prepared B, and
        `addresses` those of operands that do not stand in the table, by role.

        Raises:
            DeviceError: the driver refuses one, or there is not enough memory.
        """
        workspace = max((each.needs[0] for each in launches), default=0)
        start = rounded_up(table.nbytes, COPY_ALIGNMENT)
        with self._lock, self._context.held_scratch.pool() as pool:
            copied = self._copy(table, start + workspace, stream, pool)
            given = {**addresses, TABLE: copied, PREPARED[1]: prepared}
            found = tuple([given.get(role, 0) for role in ROLES])
            for each in launches:
                each.run(found, stream, (copied + start, 0))

    def _copy(self, table: NDArray[Any], nbytes: int, stream: int, pool: ScratchPool) -> int:
        """A copy at the start of so many bytes of scratch memory."""
        from cuda.bindings import driver

        with cuda_errors("copying a table to the GPU"), self._context.current():
            status, state = driver.cuStreamIsCapturing(stream)
            none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
            capturing = status == 0 and state != none
            address = pool.of(stream, capturing, nbytes, 0).workspace
            if capturing:
                pinned = PinnedMemory()
                self._captured.append(pinned)
            else:
                pinned = self._ring[self._next]
                self._next = (self._next + 1) % SLOTS
            pinned.wait()
            if table.nbytes > pinned.nbytes:
                pinned.resize(max(LEAST_BYTES, 1 << (table.nbytes - 1).bit_length()))
            pinned.copy_from(table.ctypes.data, table.nbytes)
            result(driver.cuMemcpyHtoDAsync(address, pinned.address, table.nbytes, stream))
            if not capturing:
                pinned.record(stream)
        return address


@cache
def tables_of(context: Context) -> Tables:
    """The tables of a GPU."""
    return Tables(context)
