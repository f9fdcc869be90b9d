"""Configurations that were measured: the user's own store, and the tables that ship.

Nothing that is wrong with a store or a table stops a choice: it is reported in a warning, and
counts as if it held nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gemmkit.dispatch import shipped_file
from gemmkit.dtypes import OPERAND_TYPES, Dtype, is_narrow
from gemmkit.errors import TuningError, UsageError
from gemmkit.gpu import BOARDS, GpuSpec
from gemmkit.scales import Scales
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.exchange import decode_table
from gemmkit.trials.freshness import Freshness
from gemmkit.trials.store import Store, fastest

# How far a tuned shape may be away: the root of the summed squares of its sizes' ratios' logarithms
# to base 2, so that 0.5 is one size 1.41 times as large. Other alignment and another layout count
# as distances too; other types and precisions are no neighbors, but for those that run alike.
MOST_DISTANCE = 0.5
OTHER_ALIGNMENT = 0.3
OTHER_LAYOUT = 0.3


# The user's own store, another one or its path, or none.
StoreChoice = Store | Path | Literal["user"] | None

# The usual scales of chunks.
_BLOCKS = Scales.parse("blocks")

OTHER_HALF: Mapping[Dtype, Dtype] = {"float16": "bfloat16", "bfloat16": "float16"}


def running_alike(problem: ProblemClass) -> tuple[ProblemClass, ...]:
    """The class, and that of the other 16-bit type if it is of one; of products with scales of
    chunks, those of others and that without; of results of 8 bits, those of the other type and of
    results of 16 bits."""
    if is_narrow(problem.out_dtype):
        half = problem.dtype if problem.dtype in OTHER_HALF else "bfloat16"
        own, *_ = of_halves = running_alike(msgspec.structs.replace(problem, out_dtype=half))
        narrow = [problem.out_dtype, *(each for each in OPERAND_TYPES if each != problem.out_dtype)]
        return (*(msgspec.structs.replace(own, out_dtype=each) for each in narrow), *of_halves)
    if problem.scales:
        others = dict.fromkeys((problem.scales, str(_BLOCKS), ""))
        return tuple(msgspec.structs.replace(problem, scales=each) for each in others)
    if problem.dtype not in OTHER_HALF:
        return (problem,)
    types = {name: OTHER_HALF.get(getattr(problem, name)) for name in ("dtype", "out_dtype")}
    changes = {name: other for name, other in types.items() if other is not None}
    return problem, msgspec.structs.replace(problem, **changes)


class Neighbor(NamedTuple):
    """A tuned class of problems, how far it is away, and what won there."""

    distance: float
    entry: Entry


class Winners:
    """The fastest entry of each class of problems on one board, from a table."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._classes: dict[ProblemClass, list[Entry]] = {}
        for entry in entries:
            self._classes.setdefault(entry.problem, []).append(entry)

    def best(self, problem: ProblemClass, epilogue: str) -> Entry | None:
        """The fastest entry of just this class: with this epilogue, or else with any; where there
        is none, that of a class that runs alike."""
        for each in running_alike(problem):
            entries = self._classes.get(each, ())
            own = [entry for entry in entries if entry.epilogue == epilogue]
            if found := fastest(own) or fastest(entries):
                return found
        return None

    @cached_property
    def has_groups(self) -> bool:
        """Whether any class is of products of different shapes."""
        return any(each.groups for each in self._classes)

    def neighbors(self, problem: ProblemClass, epilogue: str) -> list[Neighbor]:
        """The winners of classes within `MOST_DISTANCE`, the nearest first.

        Where rows are aligned, those of rows that are not are left out: they won for their copies
        of single floats, or for their residue tiles.
        """
        found = []
        for each in self._classes:
            if problem.aligned and not each.aligned:
                continue
            distance = distance_between(problem, each)
            if distance <= MOST_DISTANCE and (entry := self.best(each, epilogue)) is not None:
                found.append(Neighbor(distance, entry))
        return sorted(found, key=lambda near: (near.distance, near.entry.label))


@lru_cache(maxsize=64)
def _types_alike(problem: ProblemClass) -> frozenset[tuple[Dtype, Dtype, str]]:
    """The types and scales of classes that run alike; kept, for a search asks once per entry."""
    return frozenset((each.dtype, each.out_dtype, each.scales) for each in running_alike(problem))


def distance_between(one: ProblemClass, other: ProblemClass) -> float:
    """How unlike two classes are; infinite if types, precisions or groups differ, or only one is
    empty."""
    if (other.dtype, other.out_dtype, other.scales) not in _types_alike(one):
        return math.inf
    if (one.precision, one.groups) != (other.precision, other.groups):
        return math.inf
    total = 0.0 if one.aligned == other.aligned else OTHER_ALIGNMENT**2
    total += 0.0 if one.layout == other.layout else OTHER_LAYOUT**2
    sizes = zip(*((each.m, each.n, each.k, each.batch) for each in (one, other)), strict=True)
    for a, b in sizes:
        if a == b:
            continue
        if not a or not b:
            return math.inf
        total += math.log2(a / b) ** 2
    return math.sqrt(total)


@cache
def shipped_table(gpu: GpuSpec) -> Winners:
    """The table that ships for a board, with those of boards with the same SMs where it has none.

    Such boards differ in their memory: an H200 in its from an H100. Where that is not the limit,
    what wins on one is hardly ever slow on the other, and tables of few classes are filled up with
    what was measured there; where it is, such an entry must hold against other candidates.
    """
    entries: list[Entry] = []
    for table in _tables_of(gpu):
        known = {each.problem for each in entries}
        entries += [each for each in table if each.problem not in known]
    return Winners(entries)


def shipped_entries(gpu: GpuSpec, problem: ProblemClass) -> list[Entry]:
    """What the tables for a board and for boards with the same SMs have of one class."""
    return [each for table in _tables_of(gpu) for each in table if each.problem == problem]


@cache
def _tables_of(gpu: GpuSpec) -> list[list[Entry]]:
    return [_entries_of(each) for each in (gpu, *_boards_with_its_sms(gpu))]


def _boards_with_its_sms(gpu: GpuSpec) -> list[GpuSpec]:
    """Known boards with the same architecture and as many SMs, those with the nearest memory
    bandwidth first."""
    found = [
        each
        for each in BOARDS.values()
        if (each.capability, each.sm_count) == (gpu.capability, gpu.sm_count)
        and each.key != gpu.key
    ]
    return sorted(found, key=lambda each: abs(math.log(each.dram_gb_per_s / gpu.dram_gb_per_s)))


@cache
def _boards_by_key() -> Mapping[str, GpuSpec]:
    return {gpu_key(each): each for each in BOARDS.values()}


def other_board(entry: Entry, gpu: GpuSpec) -> GpuSpec | None:
    """The board on which an entry was measured, if that is another one than this."""
    return None if entry.gpu == gpu_key(gpu) else _boards_by_key().get(entry.gpu)


def _entries_of(gpu: GpuSpec) -> list[Entry]:
    """The entries of a board's own table, without those of code that has changed since.

    Another compiler than the table's does not make it worthless: what was the fastest with one
    hardly ever is slow with the next.
    """
    path = shipped_file("tables", f"{gpu.key}.json")
    try:
        entries = decode_table(path.read_bytes(), str(path))
    except FileNotFoundError:
        return []
    except (OSError, TuningError) as error:
        _warn(f"the table of tuned shapes for {gpu.name} is left out: {error}")
        return []
    code = Freshness(compiler=None)
    own = gpu_key(gpu)
    return [each for each in entries if each.gpu == own and code.staleness(each) is None]


def opened(store: StoreChoice) -> Store | None:
    """The store that is meant.

    Raises:
        UsageError: it is none.
        TuningError: there is no store at that path.
    """
    if store == "user":
        return Store()
    if store is None or isinstance(store, Store):
        return store
    if isinstance(store, Path):
        named = Store(store)
        # A store that was asked for by name is not left out with a warning.
        named.check()
        return named
    raise UsageError("store is a Store, a Path, 'user' or None")


class UserStore:
    """A store that is opened at the first question, and asked no more once it has failed."""

    def __init__(self, store: Store | None, gpu: GpuSpec) -> None:
        self._store, self._gpu = store, gpu_key(gpu)
        self._winners: Winners | None = None
        self._has_groups: bool | None = None

    @property
    def has_groups(self) -> bool:
        """Whether it holds anything on products of different shapes; asked once."""
        if self._has_groups is None:
            try:
                known = self._store is not None and self._store.has_groups(self._gpu)
            except TuningError as error:
                self._fail(error)
                known = False
            self._has_groups = known
        return self._has_groups

    def best(self, problem: ProblemClass, epilogue: str) -> Entry | None:
        """The fastest entry of just this class, or of one that runs alike."""
        if self._store is None:
            return None
        try:
            for each in running_alike(problem):
                if found := self._store.best(self._gpu, each, epilogue):
                    return found
        except TuningError as error:
            self._fail(error)
        return None

    def neighbors(self, problem: ProblemClass, epilogue: str) -> list[Neighbor]:
        """The winners of near classes; the store is read once for all questions."""
        if self._winners is None:
            self._winners = Winners(self._all_winners())
        return self._winners.neighbors(problem, epilogue)

    def forget(self) -> None:
        """The store has changed: read it again."""
        self._winners = None
        self._has_groups = None

    def _all_winners(self) -> list[Entry]:
        if self._store is None:
            return []
        try:
            return self._store.winners(self._gpu)
        except TuningError as error:
            self._fail(error)
            return []

    def _fail(self, error: TuningError) -> None:
        self._store = None
        _warn(f"{error}; going on without it")


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
