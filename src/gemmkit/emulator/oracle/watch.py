"""`Watch`: records every memory request of the warps that the oracle runs, and what they signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gemmkit.emulator.isa.matrix_access import has_rows
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.oracle.chunk import Watcher
from gemmkit.emulator.oracle.control import Rows
from gemmkit.emulator.oracle.memory import Addresses, Lanes
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.names import source_name
from gemmkit.emulator.watching import SignalKind, WatchedAccess, WatchedCopy, WatchedSignal

_KINDS = {"load": "load", "store": "store", "copy_async": "copy"}


class Watch(Watcher):
    """Records `accesses`, `copies` and `signals` of a kernel, in the order in which its warps
    run."""

    reads_data = False

    def __init__(self, flow: ControlFlow, memory: DeviceMemory) -> None:
        self._flow = flow
        self._memory = memory
        self.accesses: list[WatchedAccess] = []
        self.copies: list[WatchedCopy] = []
        self.signals: list[WatchedSignal] = []
        self._barriers: Counter[int] = Counter()

    def access(
        self,
        number: int,
        space: str,
        rows: Rows,
        addresses: Addresses,
        lanes: Lanes,
        nbytes: int,
    ) -> None:
        """Record a request of instruction `number` for each warp that has an active lane.

        Args:
            number: the instruction.
            space: "global", "shared" or "local".
            rows: the warps, counted over the blocks that run.
            addresses: in bytes, in their space, (warps, 32); those of inactive lanes mean nothing.
            lanes: which lanes are active, (warps, 32).
            nbytes: what a lane accesses.
        """
        instruction, form = self._flow.kernel.body[number], self._flow.forms[number]
        source = instruction.source
        for index, warp in enumerate(rows.tolist()):
            active = lanes[index]
            if not active.any():
                continue
            array, base = self._array_at(space, int(addresses[index, np.argmax(active)]))
            self.accesses.append(
                WatchedAccess(
                    file=source.file if source is not None else "",
                    line=source.line if source is not None else instruction.line,
                    number=number,
                    opcode=instruction.opcode,
                    array=array,
                    space=space,
                    kind=_KINDS.get(form.operation, "atomic"),
                    bytes_per_lane=nbytes,
                    warp=warp,
                    barriers=self._barriers[warp],
                    base=base,
                    offsets=tuple(
                        address - base if used else None
                        for address, used in zip(
                            addresses[index].tolist(), active.tolist(), strict=True
                        )
                    ),
                    by_rows=has_rows(form),
                )
            )

    def copy(
        self,
        number: int,
        warp: int,
        spans: Sequence[tuple[int, int]],
        barriers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Record what instruction `number` has the TMA read or write in global memory.

        Args:
            number: the instruction.
            warp: counted over the blocks that run.
            spans: addresses and numbers of bytes; none where all of a box is outside of its tensor.
            barriers: the mbarriers that it signals: rank and address of each.
        """
        form = self._flow.forms[number]
        if form["D"] == "shared":
            array = self._array_at("global", spans[0][0])[0] if spans else ""
            nbytes = sum(each for _, each in spans)
            self.signals.append(WatchedSignal("copy", warp, tuple(barriers), array, nbytes))
        if not spans:
            return
        kind = "load" if form["D"] == "shared" else "store"
        if kind == "store" and "O" in form.modifiers:
            kind = "reduction"
        array, base = self._array_at("global", spans[0][0])
        self.copies.append(
            WatchedCopy(
                number=number,
                array=array,
                kind=kind,
                warp=warp,
                spans=tuple((address - base, nbytes) for address, nbytes in spans),
            )
        )

    def signal(
        self,
        kind: SignalKind,
        warp: int,
        barriers: Sequence[tuple[int, int]] = (),
        *,
        number: int = -1,
        count: int = 0,
    ) -> None:
        """Record what a warp signals, or has waited for; see `WatchedSignal`."""
        made = WatchedSignal(kind, warp, tuple(barriers), number=number, count=count)
        if self.signals and kind in ("multiply", "arrive"):
            last = self.signals[-1]
            if replace(last, count=count) == made:
                # Of arrivals, those of a warp's threads count as one.
                self.signals[-1] = replace(last, count=last.count + count)
                return
        self.signals.append(made)

    def barrier(self, rows: Rows) -> None:
        """Each of these warps arrives at a barrier."""
        self._barriers.update(rows.tolist())

    def _array_at(self, space: str, address: int) -> tuple[str, int]:
        """Name and start of the array at an address; dynamic shared memory is one array."""
        if space == "global":
            found = self._memory.find(address)
            return (found.name, found.address) if found is not None else ("", 0)
        variables = getattr(self._flow.kernel, space, {})
        below = [(each.offset, name) for name, each in variables.items() if each.offset <= address]
        start, name = max(below, default=(0, space))
        return source_name(name), start
