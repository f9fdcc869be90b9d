"""Warp-wide instructions that are too rare for native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of

Lanes = NDArray[np.bool_]
Results = tuple[NDArray[Any], ...]

_LANE = np.arange(LANES)
_WEIGHTS = (np.uint64(1) << _LANE.astype(np.uint64)).astype(np.uint64)


def _voters(members: NDArray[Any], active: Lanes) -> Lanes:
    """For each lane (row), the lanes that participate with it."""
    named: Lanes = members.astype(np.uint64)[:, None] & _WEIGHTS != 0
    return named & active


def _masks(chosen: Lanes) -> NDArray[np.uint32]:
    masks: NDArray[np.uint32] = np.where(chosen, _WEIGHTS, 0).sum(axis=1).astype(np.uint32)
    return masks


def _vote(action: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    predicate, members = operands
    voters = _voters(members, active)
    every = np.logical_and.reduce(predicate | ~voters, axis=1)
    some = np.logical_or.reduce(predicate & voters, axis=1)
    results = {"all": every, "any": some, "uni": every | ~some}
    return (results[action.form["M"]],)


def _ballot(_: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    predicate, members = operands
    return (_masks(_voters(members, active) & predicate),)


def _match_any(_: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    values, members = operands
    return (_masks((values[:, None] == values) & _voters(members, active)),)


def _match_all(_: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    values, members = operands
    voters = _voters(members, active)
    same = np.logical_and.reduce((values[:, None] == values) | ~voters, axis=1)
    return np.where(same, _masks(voters), 0).astype(np.uint32), same


def _reduce(action: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    values, members = operands
    form = form_of(f"{action.form['O']}.{action.form['T']}")
    assert form is not None
    voters = _voters(members, active)
    results = np.zeros(LANES, values.dtype)
    left = active.copy()
    while left.any():
        chosen = voters[left.argmax()]
        partial = values[chosen]
        # The operations are associative and commutative: halves are combined until one is left.
        while (count := partial.size) > 1:
            half = count // 2
            pairs = [partial[:half], partial[half : 2 * half]]
            rest = partial[2 * half :]
            partial = np.concatenate([*evaluate(form, pairs), rest])
        same = left & (voters == chosen).all(axis=1)
        results[same] = partial[0]
        left &= ~same
    return (results,)


def _elect(_: Action, operands: Sequence[NDArray[Any]], active: Lanes) -> Results:
    leader = _voters(operands[0], active).argmax(axis=1).astype(np.uint32)
    return leader, leader == _LANE


WARP_OPERATIONS: Mapping[str, Callable[[Action, Sequence[Any], Lanes], Results]] = {
    "vote": _vote,
    "ballot": _ballot,
    "match_any": _match_any,
    "match_all": _match_all,
    "reduce_warp": _reduce,
    "elect": _elect,
}
