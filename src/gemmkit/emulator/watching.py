"""Memory requests recorded by the oracle's watch, with names of arrays and source lines."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.oracle.watch import Touch
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.names import source_name

_KINDS = {"load": "load", "store": "store", "copy_async": "copy"}


@dataclass(frozen=True, slots=True)
class WatchedAccess:
    """One memory request of one warp.

    `array` is the name of an allocation or of a shared or local variable. `offsets` are in bytes
    from the array's start, one for each of the 32 lanes, None for inactive lanes; `base` is the
    address of that start in its space. `warp` is counted over the blocks that run, `barriers` are
    those at which the warp has waited before. `kind` is "load", "store", "copy" (a cp.async makes
    two requests, one per space) or "atomic". If the kernel has no line information, `file` is empty
    and `line` is one of the PTX.
    """

    file: str
    line: int
    number: int
    opcode: str
    array: str
    space: str
    kind: str
    bytes_per_lane: int
    warp: int
    barriers: int
    base: int
    offsets: tuple[int | None, ...]


def watched_access(touch: Touch, flow: ControlFlow, memory: DeviceMemory) -> WatchedAccess:
    """Name the array of a request and its position in the source."""
    address = next(
        each for each, active in zip(touch.addresses, touch.active, strict=True) if active
    )
    instruction, form = flow.kernel.body[touch.number], flow.forms[touch.number]
    array, base = _array_at(flow, touch.space, address, memory)
    source = instruction.source
    return WatchedAccess(
        file=source.file if source is not None else "",
        line=source.line if source is not None else instruction.line,
        number=touch.number,
        opcode=instruction.opcode,
        array=array,
        space=touch.space,
        kind=_KINDS.get(form.operation, "atomic"),
        bytes_per_lane=touch.nbytes,
        warp=touch.row,
        barriers=touch.barriers,
        base=base,
        offsets=tuple(
            each - base if active else None
            for each, active in zip(touch.addresses, touch.active, strict=True)
        ),
    )


def _array_at(flow: ControlFlow, space: str, address: int, memory: DeviceMemory) -> tuple[str, int]:
    """Name and start of the array at an address; dynamic shared memory is one array."""
    if space == "global":
        found = memory.find(address)
        return (found.name, found.address) if found is not None else ("", 0)
    variables = getattr(flow.kernel, space, {})
    below = [(each.offset, name) for name, each in variables.items() if each.offset <= address]
    start, name = max(below, default=(0, space))
    return source_name(name), start
