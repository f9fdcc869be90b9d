"""`Store`: every trial that was ever made, in one SQLite file that many processes may use at once.

A trial is written as soon as it is over, so nothing is lost to Ctrl-C or a crash.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gemmkit.decoding import from_json
from gemmkit.diskcache import default_cache_directory
from gemmkit.errors import TuningError
from gemmkit.trials import changes
from gemmkit.trials.entry import Entry, ProblemClass
from gemmkit.trials.freshness import Freshness, Staleness
from gemmkit.trials.store_file import COLUMNS, KEY, opened, read

# A time that was not taken in turn with the other leaders' counts as that much longer: clocks and
# temperature differ by so much within a minute. A look counts as longer by what the leaders slowed
# down from look to finals, if that is more: at the power limit it is.
UNSURE = 1.05

# What was measured here outlives what came from elsewhere, times taken in turn outlive others, and
# otherwise the later word counts.
_PUT = f"""
INSERT INTO trials ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
ON CONFLICT DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in KEY)}
WHERE (excluded.origin = 'measured', excluded.final, excluded.measured_at)
   >= (trials.origin = 'measured', trials.final, trials.measured_at)
"""


def default_store_path() -> Path:
    """The user's own store, below the user's cache folder of this platform."""
    return default_cache_directory("tuning") / "store.sqlite3"


class Store:
    """Trials by GPU, class of problems, epilogue, kernel, configuration, source and compiler.

    Nothing is written before the first trial is put: reading changes neither the file nor its
    folder. A file that is not a store, or is damaged, stays as it is, and is a `TuningError`; only
    the user's own is then moved aside at the next trial, with a `RuntimeWarning`, and starts anew.
    Objects may be shared by threads and survive a fork.

    Args:
        path: the file; by default the user's own.
        freshness: what is true of kernels and compiler now; read off this installation by default.
    """

    def __init__(self, path: Path | str | None = None, freshness: Freshness | None = None) -> None:
        self.path = Path(path) if path is not None else default_store_path()
        self._freshness = freshness
        self._local = threading.local()

    @property
    def freshness(self) -> Freshness:
        """What entries are compared with to find stale ones."""
        if self._freshness is None:
            self._freshness = Freshness()
        return self._freshness

    def staleness(self, entry: Entry) -> Staleness | None:
        """Why an entry is no longer to be trusted, or None where it is."""
        return self.freshness.staleness(entry)

    # --- writing ----------------------------------------------------------------------------

    def put(self, *entries: Entry) -> int:
        """Store `entries`, all or none, and return how many were new or replaced another.

        The same trial again replaces the old one, unless that one was measured here and this one
        imported, or that one's time was taken in turn with others' and this one's was not.

        Raises:
            TuningError: the file cannot be written.
        """
        with self._transaction() as connection:
            before = connection.total_changes
            connection.executemany(_PUT, [_row(entry) for entry in entries])
            return connection.total_changes - before

    # --- reading ----------------------------------------------------------------------------

    def entries(
        self,
        gpu: str | None = None,
        problem: ProblemClass | None = None,
        *,
        epilogue: str | None = None,
    ) -> list[Entry]:
        """All trials of `gpu`, of the class `problem` and of `epilogue`; None stands for any.

        They include stale ones, which `staleness` tells apart, and are in no particular order.

        Raises:
            TuningError: the file cannot be read.
        """
        wanted: dict[str, object] = {}
        if gpu is not None:
            wanted["gpu"] = gpu
        if problem is not None:
            wanted |= msgspec.structs.asdict(problem)
        if epilogue is not None:
            wanted["epilogue"] = epilogue
        where = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        query = f"SELECT entry FROM trials WHERE {where}"
        return [_read(text) for (text,) in self._select(query, list(wanted.values()))]

    def best(self, gpu: str, problem: ProblemClass, epilogue: str = "none") -> Entry | None:
        """The fastest correct configuration on `gpu` for the class `problem`, or None.

        Stale entries do not count. Trials with another epilogue count where there are none with
        this one. See `fastest` for how times are compared.

        Raises:
            TuningError: the file cannot be read.
        """
        fresh = [each for each in self.entries(gpu, problem) if self.staleness(each) is None]
        own = [each for each in fresh if each.epilogue == epilogue]
        return fastest(own) or fastest(fresh)

    def winners(self, gpu: str, epilogue: str | None = None) -> list[Entry]:
        """The best entry of each class and epilogue on a GPU; stale entries do not count.

        Raises:
            TuningError: the file cannot be read.
        """
        groups: dict[tuple[ProblemClass, str], list[Entry]] = {}
        for entry in self.entries(gpu, epilogue=epilogue):
            if self.staleness(entry) is None:
                groups.setdefault((entry.problem, entry.epilogue), []).append(entry)
        found = [fastest(groups[key]) for key in sorted(groups)]
        return [entry for entry in found if entry is not None]

    def has_groups(self, gpu: str) -> bool:
        """Whether there are entries for products of different shapes on a GPU.

        Raises:
            TuningError: the file cannot be read.
        """
        query = "SELECT gpu FROM trials WHERE gpu = ? AND groups != '' LIMIT 1"
        return bool(self._select(query, [gpu]))

    def gpus(self) -> list[str]:
        """The keys of all GPUs that have entries.

        Raises:
            TuningError: the file cannot be read.
        """
        return [gpu for (gpu,) in self._select("SELECT DISTINCT gpu FROM trials ORDER BY gpu", [])]

    # --- the file ---------------------------------------------------------------------------

    def check(self) -> None:
        """See whether there is a store to read; nothing is written.

        Raises:
            TuningError: there is none, or it cannot be read.
        """
        if not self.path.exists():
            raise TuningError(f"there is no tuning store {self.path}: `gemmkit tune` makes one")
        self._select("SELECT gpu FROM trials LIMIT 1", [])

    def close(self) -> None:
        """Close this thread's connection; the next call opens another."""
        connection = getattr(self._local, "connection", None)
        if connection is not None and self._local.place[0] == os.getpid():
            connection.close()
        self._local.connection = None

    def _select(self, query: str, values: Sequence[object]) -> list[tuple[str, ...]]:
        with self._told():
            found = self._current()
            if found is not None:
                return found.execute(query, values).fetchall()
            return read(self.path, query, values, own=self._is_own())

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            changes.note()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors, and those of the folder, as one sentence."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise TuningError(
                f"the tuning store {self.path} cannot be used ({error}): name another with "
                "--store, or `Store(path)`"
            ) from error

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection for writing, opened and checked on first use."""
        found = self._current()
        if found is None:
            found = opened(self.path, own=self._is_own())
            self._local.connection, self._local.place = found, self._place()
        return found

    def _current(self) -> sqlite3.Connection | None:
        """This thread's connection, if it has one.

        SQLite's connections must not be carried over a fork, nor belong to a file that was moved.
        """
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        return found if found is not None and self._local.place == self._place() else None

    def _is_own(self) -> bool:
        """Whether this is the file that gemmkit made unasked, and may make again."""
        return self.path == default_store_path()

    def _place(self) -> tuple[int, int | None]:
        return os.getpid(), self.path.stat().st_ino if self.path.exists() else None


def fastest(entries: Iterable[Entry]) -> Entry | None:
    """The first of `by_time`, or None."""
    found = by_time(entries)
    return found[0] if found else None


def by_time(entries: Iterable[Entry]) -> list[Entry]:
    """The entries of one problem that gave right results, the fastest first.

    What was measured here goes before what was imported: another machine's clock is another. A
    time that was not taken in turn with the other leaders' counts as 5 % longer, or as much longer
    as the leaders' times in turn are than their brief looks.
    """
    timed = [each for each in entries if each.outcome == "ok" and each.time_us is not None]
    slowdowns = [
        each.time_us / each.look_us
        for each in timed
        if each.final and each.time_us and each.look_us
    ]
    slowdown = max(UNSURE, statistics.median(slowdowns)) if slowdowns else UNSURE

    def rank(entry: Entry) -> tuple[bool, float]:
        assert entry.time_us is not None
        unsure = UNSURE if entry.look_us else slowdown
        return entry.origin == "imported", entry.time_us * (1.0 if entry.final else unsure)

    return sorted(timed, key=rank)


def _row(entry: Entry) -> tuple[object, ...]:
    problem = entry.problem
    return (
        entry.gpu,
        problem.m,
        problem.n,
        problem.k,
        problem.batch,
        problem.groups,
        problem.aligned,
        problem.layout,
        problem.dtype,
        problem.out_dtype,
        problem.precision,
        problem.scales,
        entry.epilogue,
        entry.kernel,
        ",".join(f"{key}={value}" for key, value in sorted(entry.config.items())),
        entry.source,
        entry.compiler,
        entry.outcome,
        entry.final,
        entry.samples,
        entry.time_us,
        entry.measured_at,
        entry.origin,
        msgspec.json.encode(entry).decode(),
    )


def _read(text: str) -> Entry:
    return from_json(text, Entry)
