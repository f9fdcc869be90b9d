"""Captions of pictures of accesses, for terminal and figures."""

from __future__ import annotations

from gemmkit.analysis.patterns import Ownership, lines_of, phases_of
from gemmkit.analysis.trace import Trace, sectors
from gemmkit.emulator.watching import WatchedAccess

# Bytes per lane of the widest access.
_WIDEST = 16


def plural(count: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def access_name(access: WatchedAccess) -> str:
    """Array, kind, instruction and source line of an access."""
    kind = {"copy": "copy from" if access.space == "global" else "copy into"}
    verb = kind.get(access.kind, f"{access.kind} of")
    # Line 0 stands for code without a line.
    place = f"{access.file}:{access.line}" if access.line else access.file
    return f"{verb} {access.array}: {access.opcode} at {place}"


def address_caption(access: WatchedAccess) -> str:
    """Bytes that the lanes request, and the sectors and lines that are moved."""
    lanes = sum(offset is not None for offset in access.offsets)
    moved = f"{plural(sectors(access), 'sector')} in {plural(len(lines_of(access)), 'line')}"
    return f"{plural(lanes, 'lane')} × {access.bytes_per_lane} bytes: {moved}"


def bank_caption(access: WatchedAccess) -> str:
    """How many phases and wavefronts the access takes."""
    phases = phases_of(access)
    passes = sum(phase.wavefronts for phase in phases)
    conflicts = passes - len(phases)
    summary = f"{plural(conflicts, 'bank conflict')}" if conflicts else "no bank conflicts"
    return (
        f"{access.bytes_per_lane} bytes per lane: {plural(len(phases), 'phase')}, "
        f"{plural(passes, 'wavefront')}, {summary}{_merged(access)}"
    )


def _merged(access: WatchedAccess) -> str:
    if access.kind != "load" or access.bytes_per_lane >= _WIDEST:
        return ""
    return " (in the PTX; ptxas may merge adjacent loads)"


def element_name(trace: Trace, access: WatchedAccess, offset: int) -> str:
    """`A[3][32]`, or the byte offset in an array that is not a matrix of the problem."""
    place = trace.element(access.array, offset)
    return f"{access.array}[{place[0]}][{place[1]}]" if place else f"{access.array}+{offset}"


def owner_caption(owned: Ownership) -> str:
    """What a picture of a tile shows."""
    rows, cols = owned.threads.shape
    what = "the threads that store it" if owned.array == "C" else "the threads that load it"
    shared = f"; up to {owned.sharers} threads per element" if owned.sharers > 1 else ""
    return f"{owned.array}, {rows} × {cols}: {what}{shared}"
