"""Instructions in which the lanes of a warp cooperate; arrays are (warps, 32)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa import fragments
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import multiply
from gemmkit.emulator.isa.matrix_moves import transposed
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.semantics.raw import Bits, Mask, Raw
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.oracle.chunk import WARP, Group
from gemmkit.emulator.oracle.steps import Step

_LANE = np.arange(WARP)
_WEIGHTS = np.uint64(1) << _LANE.astype(np.uint64)


def _packed(lanes: Mask) -> Bits:
    """Per warp, a 32-bit mask of lanes, as a column."""
    packed: Bits = np.where(lanes, _WEIGHTS, 0).sum(axis=1, dtype=np.uint64).astype(np.uint32)
    return packed[:, None]


def _unpacked(masks: Bits) -> Mask:
    """The lanes that each lane's membership mask names: (warps, 32, 32)."""
    named: Mask = masks[..., None] >> _LANE.astype(np.uint32) & np.uint32(1) == 1
    return named


def _sources(group: Group, step: Step, lanes: Mask) -> list[Raw]:
    return [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]


def _write(group: Group, step: Step, lanes: Mask, *results: Raw) -> None:
    for (dest, of), result in zip(step.dests, results, strict=False):
        group.write(dest, of, np.broadcast_to(result, lanes.shape), lanes)


def shuffle(group: Group, step: Step, lanes: Mask) -> None:
    """`shfl.sync`: each lane reads another lane's value, or its own if outside its segment."""
    values, *_ = _sources(group, step, lanes)
    other, inside = shuffle_sources(group, step, lanes)
    _write(group, step, lanes, np.take_along_axis(values, other, axis=1), inside)


def shuffle_sources(group: Group, step: Step, lanes: Mask) -> tuple[NDArray[np.int64], Mask]:
    """The lane that each lane of a `shfl.sync` reads, and whether that is in its segment."""
    _, b, c, _ = (each.astype(np.int64) for each in _sources(group, step, lanes))
    segment, clamp, offset = c >> 8 & 31, c & 31, b & 31
    first = _LANE & segment
    bound = first | (clamp & ~segment)
    mode = step.form["M"]
    if mode == "up":
        other = _LANE - offset
        inside = other >= bound
    else:
        other = {
            "down": _LANE + offset,
            "bfly": _LANE ^ offset,
            "idx": first | (offset & ~segment),
        }[mode]
        inside = other <= bound
    return np.where(inside, other, _LANE), inside


def _voters(lanes: Mask, masks: Bits) -> Mask:
    """For each lane, the lanes that participate with it."""
    return _unpacked(masks) & lanes[:, None, :]


def vote(group: Group, step: Step, lanes: Mask) -> None:
    """`vote.sync`: whether a predicate holds in all, in any, or equally in all lanes."""
    predicate, masks = _sources(group, step, lanes)
    voters = _voters(lanes, masks)
    every: Mask = np.all(predicate[:, None, :] | ~voters, axis=2)
    some: Mask = np.any(predicate[:, None, :] & voters, axis=2)
    results = {"all": every, "any": some, "uni": every | ~some}
    _write(group, step, lanes, results[step.form["M"]])


def ballot(group: Group, step: Step, lanes: Mask) -> None:
    """`vote.sync.ballot`: the lanes in which a predicate holds."""
    predicate, masks = _sources(group, step, lanes)
    _write(group, step, lanes, _packed(predicate & lanes) & masks)


def active_mask(group: Group, step: Step, lanes: Mask) -> None:
    """`activemask`: the lanes that execute it."""
    _write(group, step, lanes, _packed(lanes))


def match_any(group: Group, step: Step, lanes: Mask) -> None:
    """`match.any.sync`: the lanes that hold the same value."""
    values, masks = _sources(group, step, lanes)
    same = (values[:, :, None] == values[:, None, :]) & _voters(lanes, masks)
    found = np.where(same, _WEIGHTS, 0).sum(axis=2, dtype=np.uint64).astype(np.uint32)
    _write(group, step, lanes, found)


def match_all(group: Group, step: Step, lanes: Mask) -> None:
    """`match.all.sync`: the participating lanes and a true predicate if all hold one value."""
    values, masks = _sources(group, step, lanes)
    voters = _voters(lanes, masks)
    same = np.all((values[:, :, None] == values[:, None, :]) | ~voters, axis=2)
    named = np.where(voters, _WEIGHTS, 0).sum(axis=2, dtype=np.uint64).astype(np.uint32)
    _write(group, step, lanes, np.where(same, named, np.uint32(0)), same)


def reduce_warp(group: Group, step: Step, lanes: Mask) -> None:
    """`redux.sync`: the reduction of all lanes' values."""
    values, masks = _sources(group, step, lanes)
    form = table()[f"{step.form['O']}.{step.form['T']}"]
    voters = _voters(lanes, masks)
    results: NDArray[np.uint32] = np.zeros(lanes.shape, np.uint32)
    for row, lane in np.argwhere(lanes).tolist():
        taking_part = values[row][voters[row, lane]]
        total = taking_part[:1]
        for value in taking_part[1:]:
            total = evaluate(form, [total, value])[0]
        results[row, lane] = total[0]
    _write(group, step, lanes, results)


def multiply_matrices(group: Group, step: Step, lanes: Mask) -> None:
    """`mma.sync`: the product of two matrices that the lanes of a warp hold, added to a third."""
    registers = [np.ascontiguousarray(each) for each in _sources(group, step, lanes)]
    capability = group.chunk.kernel.capability
    _write(group, step, lanes, *multiply(step.form, capability, registers))


def multiply_fragments(group: Group, step: Step, lanes: Mask) -> None:
    """`wmma.mma`: likewise, of larger matrices."""
    registers = [np.ascontiguousarray(each) for each in _sources(group, step, lanes)]
    capability = group.chunk.kernel.capability

    def product(form: Form, given: Sequence[Raw]) -> tuple[Raw, ...]:
        return multiply(form, capability, given)

    _write(group, step, lanes, *fragments.multiply_fragments(step.form, registers, product))


def transpose_matrix(group: Group, step: Step, lanes: Mask) -> None:
    """`movmatrix`: the transpose of an 8×8 matrix of 16-bit elements."""
    (register,) = _sources(group, step, lanes)
    _write(group, step, lanes, transposed(np.ascontiguousarray(register)))


def elect(group: Group, step: Step, lanes: Mask) -> None:
    """`elect.sync`: the lowest participating lane, and a predicate that is true only there."""
    (masks,) = _sources(group, step, lanes)
    leader = _voters(lanes, masks).argmax(axis=2).astype(np.uint32)
    _write(group, step, lanes, leader, leader == _LANE)
