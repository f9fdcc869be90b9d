"""Brings a matrix from one placement to another, by collective operations of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.distributed.placements import Word
from gemmkit.distributed.process_group import (
    GroupCommunicator,
    gather_collectively,
    reduce_collectively,
    scatter_collectively,
)
from gemmkit.distributed.splits import consecutive


def redistribute(
    group: GroupCommunicator,
    matrix: Any,
    have: Word,
    wanted: Word,
    rows: Sequence[int],
    columns: Sequence[int],
) -> Any:
    """This rank's part of a matrix in another placement.

    Args:
        group: the ranks.
        matrix: this rank's part now.
        have: how the matrix is placed now.
        wanted: how it is to be placed.
        rows: each rank's share of the rows, where rows are or become spread.
        columns: likewise.

    Raises:
        DistributedError: a rank failed.
    """
    if have == wanted or group.size == 1:
        return matrix
    if wanted == "S(1)" or (wanted == "R" and have == "S(1)"):
        turned: dict[Word, Word] = {"S(0)": "S(1)", "S(1)": "S(0)", "R": "R", "P": "P"}
        made = redistribute(group, matrix.T, turned[have], turned[wanted], columns, rows)
        return made.T
    if have == "P":
        if wanted == "S(0)":
            return scatter_collectively(group, matrix, rows)
        return reduce_collectively(group, matrix.clone())
    if wanted == "R":
        return gather_collectively(group, matrix, rows)
    # To rows: of a matrix that is all there, or is gathered first.
    whole = redistribute(group, matrix, have, "R", rows, columns)
    start, stop = consecutive(rows)[group.rank]
    return whole[start:stop]
