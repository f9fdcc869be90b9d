"""Whether a kernel left its inputs as they were: C and the auxiliary output alone may change."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.storage import Placement, Stored, placements
from gemmkit.verify.encoding import decode
from gemmkit.verify.inputs import Inputs
from gemmkit.verify.row_blocks import on_all_cores, row_blocks

_NAMES = {"a": "A", "b": "B", "bias": "bias", "residual": "residual"}


def overwritten(problem: GemmProblem, inputs: Inputs, after: Mapping[str, Stored]) -> str:
    """What a launch has changed of its inputs, in one sentence; empty if nothing.

    `after` is the storage of the inputs as the launch left it, by the names of `Inputs.arrays`.
    Bits count: a NaN that stays the same is no change.
    """
    clauses = []
    for name, before in inputs.arrays.items():
        if name not in after or name not in _NAMES:
            continue
        now = after[name]
        if _equal(_bits(now), _bits(before)):
            continue
        changed = np.flatnonzero(_bits(now) != _bits(before))
        first = int(changed[0])
        dtype = problem.dtype if name in ("a", "b") else problem.result_dtype
        was, found = (decode(each[first : first + 1], dtype)[0] for each in (before, now))
        where = _place(_NAMES[name], placements(problem)[name], first)
        more = f", and {changed.size - 1:,} more elements" if changed.size > 1 else ""
        clauses.append(f"{where} was {was:.9g} and is now {found:.9g}{more}")
    if not clauses:
        return ""
    return f"the kernel overwrites its inputs: {'; '.join(clauses)} (seed {inputs.seed})"


def _equal(now: Stored, before: Stored) -> bool:
    """Whether all bits are equal, block by block on all cores."""
    blocks = row_blocks(now.size, 1)
    return all(on_all_cores(lambda block: np.array_equal(now[block], before[block]), blocks))


def _bits(values: Stored) -> NDArray[np.unsignedinteger]:
    return values.view(np.dtype(f"u{values.itemsize}"))


def _place(name: str, layout: Placement, element: int) -> str:
    """An element of the storage by its row and column, and its matrix if there are several."""
    views = layout.view(np.arange(layout.size))
    for number, view in enumerate(views):
        rows, columns = np.nonzero(view == element)
        if rows.size:
            at = f"{columns[0]}" if name == "bias" and view.shape[0] == 1 else (
                f"{rows[0]}, {columns[0]}"
            )  # fmt: skip
            of = f" of product {number}" if len(views) > 1 else ""
            return f"{name}[{at}]{of}"
    return f"the padding of {name} at element {element}"
