"""`Explanation`: the metrics of a kernel, and why it is faster or slower than another."""

from __future__ import annotations

from typing import Literal

import msgspec

from gemmkit.error_histogram import ErrorHistogram
from gemmkit.record import Diagnosis

Favors = Literal["this", "other", "neither"]
Mark = Literal["bad", "good", "neither"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A metric behind a sentence, for this kernel and for the other one if there is one.

    `operand` is the array that the metric is restricted to; empty for all.
    """

    metric: str
    this: float
    other: float | None = None
    operand: str = ""


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """A statement and its evidence. `favors` is the kernel that it makes faster.

    Of a statement about one kernel, `mark` says whether it costs time, `weight` is the estimated
    share of the time that it concerns, 0 to 1. `places` are the source lines that it is about, as
    `file:line`, the one with the largest count first; they are lines of the kernel `places_of`, in
    a comparison the one that is worse.
    """

    text: str
    evidence: tuple[Evidence, ...]
    favors: Favors = "neither"
    mark: Mark = "neither"
    weight: float = 0.0
    places: tuple[str, ...] = ()
    places_of: Literal["this", "other"] = "this"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a section; `value` may be text, and `unit` may be empty."""

    label: str
    metric: str
    value: float | str | None
    unit: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one section, named as in Nsight Compute."""

    title: str
    figures: tuple[Figure, ...]


class Operand(msgspec.Struct, frozen=True, kw_only=True):
    """All accesses of one kind to one array; all but the two counts are means per request.

    `requests` are those of the PTX, `instructions` those after ptxas has merged some; wavefronts
    are means per instruction. `data_bytes` is what the lanes of a warp request. Figures that do not
    apply to a memory space are 0.
    """

    array: str
    space: str
    kind: str
    requests: int
    instructions: int
    data_bytes: float
    sectors: float
    ideal_sectors: float
    tag_wavefronts: float
    wavefronts: float
    ideal_wavefronts: float


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one source line."""

    file: str
    line: int
    text: str
    instructions: float
    fma: float
    global_requests: float
    global_sectors: float
    shared_wavefronts: float
    bank_conflicts: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `gemmkit explain` shows for one kernel, on one problem and one board.

    `kernel` is its name with the configuration keys that differ from the default. Counters,
    operands and source lines are of the problem `counted`, which is smaller than `problem` if that
    is large; occupancy, waves and predictions are of `problem`. `sentences` are about the kernel
    alone, the limiter and what costs most first, good news last; `comparison` compares it with
    `against`, the advantages of the faster one first. `wrong` is empty if the result of the counted
    launch is right; otherwise it describes the error, and `diagnosis` has the details. `errors`
    counts the elements of that result by error / bound, and `error_ratio` is the largest, null if
    it is not finite.
    """

    kernel: str
    idea: str
    config: dict[str, int]
    gpu: str
    problem: str
    counted: str
    metrics: dict[str, float]
    sections: tuple[Section, ...]
    operands: tuple[Operand, ...]
    source: tuple[SourceLine, ...]
    sentences: tuple[Sentence, ...]
    wrong: str = ""
    diagnosis: Diagnosis | None = None
    against: Explanation | None = None
    comparison: tuple[Sentence, ...] = ()
    errors: ErrorHistogram | None = None
    error_ratio: float | None = None

    @property
    def launches_nothing(self) -> bool:
        """Whether the grid has no blocks, so nothing is counted."""
        return self.metrics.get("launch__grid_size") == 0
