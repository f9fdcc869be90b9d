"""Loads and stores of matrices by a warp: `ldmatrix`, `stmatrix`, and those of `wmma`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.matrix_access import (
    LANES,
    Piece,
    bytes_moved,
    copies,
    default_stride,
    element_bytes,
    is_fragment,
    pieces,
    registers_of,
)
from gemmkit.emulator.isa.matrix_moves import collected, distributed, transposed
from gemmkit.emulator.isa.semantics.raw import Raw
from gemmkit.emulator.oracle.access import space_of, spans_by_space
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import Addresses, Lanes
from gemmkit.emulator.oracle.steps import Step

_NARROW = np.uint64((1 << 32) - 1)


def load_matrix(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """Load a matrix into the registers of a fragment."""
    parts = []
    for piece, addresses, acting in requests(group, step, lanes):
        count(step, lanes, tally)
        words = [np.zeros(lanes.shape, f"u{piece.bits // 8}") for _ in range(piece.count)]
        space = space_of(group, step)
        for span in spans_by_space(group, step, space, addresses, acting, piece.nbytes, tally):
            for number, word in enumerate(words):
                loaded = span.moved(number * piece.bits // 8).load(piece.bits // 8)
                words[number] = np.where(span.lanes, loaded, word)
        parts.append((piece, words))
    tally.data_bytes[step.number] += bytes_moved(step.form) * int(np.count_nonzero(lanes))
    values = assembled(parts)
    for (dest, of), number in zip(step.dests, copies(step.form), strict=True):
        group.write(dest, of, values[number], lanes)


def store_matrix(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """Store the registers of a fragment to a matrix."""
    width = registers_of(step.form)
    values = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources[:width]]
    space = space_of(group, step)
    for piece, addresses, acting in requests(group, step, lanes):
        count(step, lanes, tally)
        words = taken_apart(piece, values)
        for span in spans_by_space(group, step, space, addresses, acting, piece.nbytes, tally):
            for number, word in enumerate(words):
                span.moved(number * piece.bits // 8).store(word)
    tally.data_bytes[step.number] += bytes_moved(step.form) * int(np.count_nonzero(lanes))


def count(step: Step, lanes: Lanes, tally: Tally) -> None:
    """Count a request of each warp that executes a piece."""
    tally.requests[step.number] += int(np.count_nonzero(lanes.any(axis=1)))


def requests(group: Group, step: Step, lanes: Lanes) -> Iterator[tuple[Piece, Addresses, Lanes]]:
    """The pieces of a load or store, with the lanes' addresses and the lanes that take part."""
    start, form = group.address(step.addresses[0]), step.form
    stride = np.zeros(lanes.shape, np.uint64)
    if is_fragment(form):
        given = step.sources[0 if form.operation == "load" else registers_of(form) :]
        stride = (
            np.broadcast_to(group.read(*given[0]), lanes.shape).astype(np.uint64)
            if given
            else np.full(lanes.shape, default_stride(form), np.uint64)
        )
    for piece in pieces(form):
        chosen = piece.lanes >> np.arange(LANES) & 1 == 1
        addresses = np.broadcast_to(start, lanes.shape)
        if piece.line is not None and piece.along is not None:
            line, along = (each.of_lanes().astype(np.uint64) for each in (piece.line, piece.along))
            addresses = addresses + (line * stride + along) * np.uint64(element_bytes(form))
        if form["S"].startswith("shared"):
            addresses = addresses & _NARROW
        yield piece, addresses, lanes & chosen


def assembled(parts: Sequence[tuple[Piece, Sequence[Raw]]]) -> list[Raw]:
    """The registers of a fragment from what the lanes loaded, piece by piece."""
    found: dict[int, Raw] = {}
    for piece, words in parts:
        values = list(words)
        if piece.by_rows:
            rows = np.stack(values, axis=-2)
            spread = distributed(rows, len(piece.registers), transposed=piece.arrange == "columns")
            values = [spread[..., number, :] for number in range(len(piece.registers))]
        elif piece.arrange == "transposed":
            values = [transposed(np.ascontiguousarray(words[0]))]
        elif piece.arrange == "byte":
            (register,) = piece.registers
            byte = words[0].astype(np.uint32) << np.uint32(8 * piece.place)
            values = [found.get(register, np.zeros_like(byte)) | byte]
        found |= zip(piece.registers, values, strict=True)
    return [found[number] for number in sorted(found)]


def taken_apart(piece: Piece, registers: Sequence[Raw]) -> list[Raw]:
    """What the lanes store in a piece, from all registers of a fragment."""
    values = [registers[number] for number in piece.registers]
    if piece.by_rows:
        words = collected(np.stack(values, axis=-2), transposed=piece.arrange == "columns")
        return [words[..., number, :] for number in range(piece.count)]
    if piece.arrange == "transposed":
        return [transposed(np.ascontiguousarray(values[0]))]
    return values
