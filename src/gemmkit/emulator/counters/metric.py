"""`Metric`: one line of the table of metrics, and how closely its value matches the hardware's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Basis(Enum):
    """How closely a metric's value matches the hardware's."""

    EXACT = "exact: what the hardware counts"
    MERGED = "what the hardware counts, given the rule by which ptxas merges shared-memory accesses"
    COPIED = "what the hardware counts, unless cp.async.cg crosses a 128-byte line of shared memory"
    PATTERN = "of the addresses alone; the hardware also counts waits for other traffic"
    WARM = "of the addresses alone, for lines in the L1 cache; others may take more"
    TENSOR = "what the hardware counts; mma.sync of fp8 is left out, and wmma was not compared"
    SWIZZLED = "what the hardware counts with K-major operands and a 128-byte swizzle"
    PTX = "of PTX instructions, which are not machine instructions"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a count of the tally, times `scale`, summed over the instructions it is `of`.

    `count` is a field of the tally or one of the counts that follow from it. `of` is one of the
    `groups` of forms: an access (`global read`, `shared store`), an opcode class of the instruction
    table, a group of `asynchronous_metrics`, or `all`. A ratio is divided by the metric named in
    `per`, and is 0 if that is 0.
    """

    name: str
    description: str
    basis: Basis
    count: str
    of: str
    scale: int = 1
    per: str | None = None
