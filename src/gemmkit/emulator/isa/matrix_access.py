"""`pieces`: the accesses of lanes that a warp's load or store of a matrix consists of.

`ldmatrix` and `stmatrix` access rows of 16 bytes, whose addresses the lanes give. The fragments of
`wmma` are opaque in PTX; here they are those of `mma.sync`, as ptxas lays them out for sm_80 to
sm_90, and their accesses are those of its machine code: from shared memory `ldmatrix` wherever the
type allows it, otherwise one access of 1 to 16 bytes per lane, where needed with a transposition in
registers (`movmatrix`) afterward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.types import TYPES

LANES = 32
ALL_LANES = (1 << LANES) - 1
ROW_BYTES = 16
ROWS = 8

# How the registers of a fragment follow from what the lanes access. lanes: each lane has its own
# numbers. rows, columns: lanes have rows of matrices, which are distributed as by `ldmatrix`,
# without and with `.trans`. transposed: as lanes, transposed as by `movmatrix`. byte: one of the
# four bytes of a register.
Arrangement = Literal["lanes", "rows", "columns", "transposed", "byte"]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A number for each lane: `start`, plus a weight for each bit set in the lane's index."""

    start: int
    weights: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def of_lanes(self) -> NDArray[np.int64]:
        """The numbers of all lanes."""
        bits = np.arange(LANES)[:, None] >> np.arange(len(self.weights)) & 1
        found: NDArray[np.int64] = self.start + bits @ np.array(self.weights)
        return found


@dataclass(frozen=True, slots=True)
class Piece:
    """One access of the lanes in `lanes`: `count` numbers of `bits` each.

    `registers` are the fragment's registers that it concerns. The numbers are at element `line` ·
    stride + `along`, counted from the start of the matrix; with None, at the lane's own address.
    `place` is the byte of the register for the arrangement "byte".
    """

    arrange: Arrangement
    bits: int
    count: int
    registers: tuple[int, ...]
    line: Coordinate | None = None
    along: Coordinate | None = None
    lanes: int = ALL_LANES
    place: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes per lane."""
        return self.bits // 8 * self.count

    @property
    def by_rows(self) -> bool:
        """Whether it is `ldmatrix` or `stmatrix`: eight lanes to a phase, which never merge."""
        return self.arrange in ("rows", "columns")


def is_matrix(form: Form) -> bool:
    """Whether a form is a load or store of a matrix."""
    return form.operation in ("load", "store") and "G" in form.modifiers


def is_fragment(form: Form) -> bool:
    """Whether a load or store of a matrix is one of `wmma`, with a stride."""
    return "F" in form.modifiers


def pieces(form: Form) -> tuple[Piece, ...]:
    """The accesses of a matrix load or store, in order; all have the same size."""
    if is_fragment(form):
        return _fragment(
            form["F"].replace("d", "c"), form["G"], form["T"], form["L"], _in_shared(form)
        )
    return _rows(int(form["N"][1:]), transposed=form["R"] == "trans")


def has_rows(form: Form) -> bool:
    """Whether a load or store consists of accesses as those of `ldmatrix`."""
    return is_matrix(form) and pieces(form)[0].by_rows


def addressing_lanes(form: Form) -> int:
    """The lanes whose addresses count: of `ldmatrix` and `stmatrix`, eight for each matrix."""
    return pieces(form)[0].lanes if is_matrix(form) else ALL_LANES


def _in_shared(form: Form) -> bool:
    return form["S"].startswith("shared")


def copies(form: Form) -> tuple[int, ...]:
    """For each register of a fragment, the register that `pieces` fills with its value.

    The eight registers of an fp16 operand hold its numbers more than once.
    """
    spec = next(each for each in form.operands if each.role in ("dest", "source"))
    distinct = 1 + max(register for piece in pieces(form) for register in piece.registers)
    return tuple(register % distinct for register in range(spec.count))


def registers_of(form: Form) -> int:
    """The number of registers in a fragment."""
    return len(copies(form))


def default_stride(form: Form) -> int:
    """The distance between lines in elements if an instruction names none."""
    m, n, k = sizes(form["G"])
    rows, columns = {"a": (m, k), "b": (k, n)}.get(form["F"], (m, n))
    return columns if form["L"] == "row" else rows


def element_bytes(form: Form) -> int:
    """The size of an element in memory."""
    return TYPES[form["T"]].bytes


def bytes_moved(form: Form) -> int:
    """The bytes of all accesses, per lane of a full warp."""
    return sum(piece.nbytes * piece.lanes.bit_count() for piece in pieces(form)) // LANES


@cache
def sizes(shape: str) -> tuple[int, int, int]:
    """m, n and k of a shape such as `m16n16k16`."""
    m, n, k = map(int, re.findall(r"\d+", shape))
    return m, n, k


@cache
def _rows(matrices: int, *, transposed: bool) -> tuple[Piece, ...]:
    lanes = (1 << ROWS * matrices) - 1
    arrange: Arrangement = "columns" if transposed else "rows"
    return (Piece(arrange, 32, 4, tuple(range(matrices)), lanes=lanes),)


@cache
def _fragment(
    fragment: str, shape: str, kind: str, layout: str, in_shared: bool
) -> tuple[Piece, ...]:
    if fragment == "c":
        return tuple(_accumulator(shape, kind, layout))
    return tuple(_operand(fragment, shape, kind, layout, in_shared))


# Where a tile of a fragment begins: along the dimension by lane / 4, and along that by lane % 4.
_Tile = tuple[int, int]


def is_left(fragment: str, shape: str) -> bool:
    """Whether A or B is the first factor, with 16 rows, of the `mma.sync` that compute a product:
    A is, except that m8n32k16 computes the transpose."""
    return (fragment == "a") != (shape == "m8n32k16")


def tiles(fragment: str, shape: str, kind: str) -> tuple[_Tile, ...]:
    """The tiles of A or B that its registers hold, in order."""
    m, n, k = sizes(shape)
    packed = max(32 // TYPES[kind].bits, 1)
    outer = m if fragment == "a" else n
    height = 16 if is_left(fragment, shape) and outer > ROWS else ROWS
    return tuple(
        (block + half, step)
        for block in range(0, outer, height)
        for step in range(0, k, 4 * packed)
        for half in range(0, height, ROWS)
    )


def _operand(fragment: str, shape: str, kind: str, layout: str, in_shared: bool) -> Iterator[Piece]:
    bits, found = TYPES[kind].bits, tiles(fragment, shape, kind)
    packed = max(32 // bits, 1)
    natural = (fragment == "a") == (layout == "row")
    if in_shared and (bits == 16 or (bits == 8 and natural)):
        together = 4 if bits == 16 else 2
        for start in range(0, len(found), together):
            yield _from_rows(found[start : start + together], start, natural)
        return
    for register, (outer, inner) in enumerate(found):
        if natural:
            line, along = _by_group(outer), _by_quad(inner, packed)
            yield Piece("lanes", max(bits, 32), 1, (register,), line, along)
        elif bits == 16:
            yield _transposed(register, inner, outer)
        elif bits == 8:
            for place in range(packed):
                line, along = _by_quad(inner + place, packed), _by_group(outer)
                yield Piece("byte", 8, 1, (register,), line, along, place=place)
        else:
            yield Piece("lanes", bits, 1, (register,), _by_quad(inner, 1), _by_group(outer))


def _accumulator(shape: str, kind: str, layout: str) -> Iterator[Piece]:
    m, n, _ = sizes(shape)
    bits, turned = TYPES[kind].bits, shape == "m8n32k16"
    groups, across = (n, m) if turned else (m, n)
    natural = (layout == "row") != turned
    register, height = 0, min(groups, 16)
    blocks = [(g, v) for g in range(0, groups, height) for v in range(0, across, ROWS)]
    for outer, inner in ((g + half, v) for g, v in blocks for half in range(0, height, ROWS)):
        if bits == 16:
            own = Piece("lanes", 32, 1, (register,), _by_group(outer), _by_quad(inner, 2))
            yield own if natural else _transposed(register, inner, outer)
            register += 1
            continue
        pair = register, register + 1
        if natural:
            yield Piece("lanes", bits, 2, pair, _by_group(outer), _by_quad(inner, 2))
        else:
            for odd, each in enumerate(pair):
                line, along = _by_quad(inner + odd, 2), _by_group(outer)
                yield Piece("lanes", bits, 1, (each,), line, along)
        register += 2


def _by_group(start: int) -> Coordinate:
    return Coordinate(start, (0, 0, 1, 2, 4))


def _by_quad(start: int, step: int) -> Coordinate:
    return Coordinate(start, (step, 2 * step, 0, 0, 0))


def _transposed(register: int, line: int, along: int) -> Piece:
    return Piece("transposed", 32, 1, (register,), _by_group(line), _by_quad(along, 2))


def _from_rows(group: Sequence[_Tile], first: int, natural: bool) -> Piece:
    """An `ldmatrix` of up to four tiles; each of eight lanes gives the address of a row."""
    starts = [tile if natural else tile[::-1] for tile in group]

    def spread(axis: int) -> tuple[int, tuple[int, int]]:
        start = starts[0][axis]
        steps = [starts[each][axis] - start if each < len(starts) else 0 for each in (1, 2)]
        return start, (steps[0], steps[1])

    (line, lines), (along, alongs) = spread(0), spread(1)
    return Piece(
        "rows" if natural else "columns",
        32,
        4,
        tuple(range(first, first + len(group))),
        Coordinate(line, (1, 2, 4, *lines)),
        Coordinate(along, (0, 0, 0, *alongs)),
        (1 << ROWS * len(group)) - 1,
    )
