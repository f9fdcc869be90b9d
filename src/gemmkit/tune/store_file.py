"""The file of a `Store`: its table, older versions brought up to date, and damage repaired."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from gemmkit.errors import TuningError
from gemmkit.file_lock import FileLock

SCHEMA_VERSION = 4
BUSY_SECONDS = 30.0

KEY = (
    *("gpu", "m", "n", "k", "batch", "groups", "aligned", "layout", "dtype", "out_dtype"),
    *("epilogue", "kernel", "config", "source", "compiler"),
)
_TABLE = f"""
CREATE TABLE IF NOT EXISTS trials (
    gpu TEXT NOT NULL, m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL,
    batch INTEGER NOT NULL DEFAULT 1, groups TEXT NOT NULL DEFAULT '',
    layout TEXT NOT NULL DEFAULT 'nn', dtype TEXT NOT NULL DEFAULT 'float32',
    out_dtype TEXT NOT NULL DEFAULT 'float32',
    aligned INTEGER NOT NULL, epilogue TEXT NOT NULL, kernel TEXT NOT NULL,
    config TEXT NOT NULL, source TEXT NOT NULL, compiler TEXT NOT NULL,
    outcome TEXT NOT NULL, final INTEGER NOT NULL, samples INTEGER NOT NULL, time_us REAL,
    measured_at REAL NOT NULL, origin TEXT NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY ({", ".join(KEY)})
) WITHOUT ROWID
"""
COLUMNS = (*KEY, "outcome", "final", "samples", "time_us", "measured_at", "origin", "entry")


def _from_version(*missing: str) -> tuple[str, ...]:
    """How to carry over a table without these columns: the key of a table cannot be changed."""
    columns = ", ".join(name for name in COLUMNS if name not in missing)
    return (
        "ALTER TABLE trials RENAME TO old_trials",
        _TABLE,
        f"INSERT INTO trials ({columns}) SELECT {columns} FROM old_trials",
        "DROP TABLE old_trials",
    )


# Version 1 knew no batches; up to version 2 all problems were row-major fp32, up to version 3 of
# one shape.
_BRING_UP = {
    0: (_TABLE,),
    1: _from_version("batch", "groups", "layout", "dtype", "out_dtype"),
    2: _from_version("groups", "layout", "dtype", "out_dtype"),
    3: _from_version("groups"),
}


def opened(path: Path) -> sqlite3.Connection:
    """A connection to the store at a path, which is made, brought up to date or repaired first.

    Raises:
        sqlite3.Error, OSError: the file or its folder cannot be used.
        TuningError: a later gemmkit made it, or another process holds it for too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _open(path)
    except sqlite3.DatabaseError as error:
        # Busy, read-only, no space: these are of another class.
        if isinstance(error, sqlite3.OperationalError):
            raise
    with _alone(path):
        with suppress(sqlite3.DatabaseError):
            # Another process was faster.
            return _open(path, alone=True)
        aside = _move_aside(path)
        warnings.warn(
            f"the tuning store {path} was damaged: it is now {aside.name} beside it, and "
            "a new one was begun",
            RuntimeWarning,
            stacklevel=2,
        )
        return _open(path, alone=True)


class _Connection(sqlite3.Connection):
    """Closes itself: when a thread ends, nothing else is left to do it."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):
            self.close()


def _open(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """A connection in WAL mode to a file that is whole and of this version.

    `alone` says that the caller keeps other processes from making the file, too.

    Raises:
        sqlite3.DatabaseError: it is not a store, or damaged.
        TuningError: a later gemmkit made it.
    """
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        factory=_Connection,
        # One thread uses it; where that thread has ended, another may have to close it.
        check_same_thread=False,
    )
    try:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            # Of two that change the mode at once, SQLite turns one away without waiting.
            with nullcontext() if alone else _alone(path):
                connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may take the last trials, never the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        (seen,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if seen != "ok":
            raise sqlite3.DatabaseError(seen)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise TuningError(
                f"a later gemmkit wrote the tuning store {path} (schema {version}, this one reads "
                f"{SCHEMA_VERSION}): update gemmkit, or name another store"
            )
        if version < SCHEMA_VERSION:
            _bring_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up(connection: sqlite3.Connection) -> None:
    """Make the table, or carry that of an older version over: all of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for statement in _BRING_UP.get(version, ()):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    path.replace(aside)
    # The journal belongs to the file that is gone.
    for suffix in ("-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process repairs the file meanwhile."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    lock.acquire(BUSY_SECONDS)
    try:
        yield
    finally:
        lock.release()
