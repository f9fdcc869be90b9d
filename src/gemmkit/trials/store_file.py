"""The file of a `Store`: its table, older versions brought up to date, and damage repaired.

Only a file that gemmkit made is ever written to: it bears gemmkit's mark, or the table and version
of stores from before there was one.
"""

from __future__ import annotations

import sqlite3
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gemmkit.errors import TuningError
from gemmkit.file_lock import POLL_SECONDS, FileLock

SCHEMA_VERSION = 6
BUSY_SECONDS = 30.0

# "gKTS", in the field of SQLite's header that says whose file it is.
APPLICATION_ID = 0x674B5453
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID = slice(68, 72)

KEY = (
    *("gpu", "m", "n", "k", "batch", "groups", "aligned", "layout", "dtype", "out_dtype"),
    *("precision", "scales", "epilogue", "kernel", "config", "source", "compiler"),
)
_TABLE = f"""
CREATE TABLE IF NOT EXISTS trials (
    gpu TEXT NOT NULL, m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL,
    batch INTEGER NOT NULL DEFAULT 1, groups TEXT NOT NULL DEFAULT '',
    layout TEXT NOT NULL DEFAULT 'nn', dtype TEXT NOT NULL DEFAULT 'float32',
    out_dtype TEXT NOT NULL DEFAULT 'float32', precision TEXT NOT NULL DEFAULT 'ieee',
    scales TEXT NOT NULL DEFAULT '',
    aligned INTEGER NOT NULL, epilogue TEXT NOT NULL, kernel TEXT NOT NULL,
    config TEXT NOT NULL, source TEXT NOT NULL, compiler TEXT NOT NULL,
    outcome TEXT NOT NULL, final INTEGER NOT NULL, samples INTEGER NOT NULL, time_us REAL,
    measured_at REAL NOT NULL, origin TEXT NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY ({", ".join(KEY)})
) WITHOUT ROWID
"""
_ALWAYS = {"gpu", "m", "n", "k", "aligned", "epilogue", "kernel", "config", "source", "entry"}
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
# one shape, up to version 4 of one precision, up to version 5 without scales.
_BRING_UP = {
    0: (_TABLE,),
    1: _from_version("batch", "groups", "layout", "dtype", "out_dtype", "precision", "scales"),
    2: _from_version("groups", "layout", "dtype", "out_dtype", "precision", "scales"),
    3: _from_version("groups", "precision", "scales"),
    4: _from_version("precision", "scales"),
    5: _from_version("scales"),
}


def opened(path: Path, *, own: bool = False) -> sqlite3.Connection:
    """A connection to the store at a path, which is made or brought up to date first.

    A file that is not a store, or is damaged, stays as it is, unless it is gemmkit's `own`: then
    it is moved aside with a `RuntimeWarning`, and the store starts anew.

    Raises:
        sqlite3.Error, OSError: the file or its folder cannot be used.
        TuningError: it is not a store, is damaged, or a later gemmkit made it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _open(path)
    except (sqlite3.DatabaseError, _NotAStoreError) as error:
        # Busy, read-only, no space: these are of another class.
        if isinstance(error, sqlite3.OperationalError):
            raise
        if not own:
            raise _refusal(path, error) from None
    with _alone(path):
        with suppress(sqlite3.DatabaseError, _NotAStoreError):
            # Another process was faster.
            return _open(path)
        aside = _move_aside(path)
        warnings.warn(
            f"the tuning store {path} was damaged: it is now {aside.name} beside it, and "
            "a new one was begun",
            RuntimeWarning,
            stacklevel=2,
        )
        return _open(path)


def read(
    path: Path, query: str, values: Sequence[object] = (), *, own: bool = False
) -> list[tuple[str, ...]]:
    """The rows of a query; neither the file nor its folder is written to.

    Of a damaged store that is gemmkit's `own` there are none, with a `RuntimeWarning`.

    Raises:
        sqlite3.Error, OSError: the file cannot be read.
        TuningError: it is not a store, is damaged, or a later gemmkit made it.
    """
    try:
        if not (path.exists() and _looks_like_a_store(path)):
            return []
        return _read(path, query, values)
    except (sqlite3.DatabaseError, _NotAStoreError) as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        refusal = _refusal(path, error)
        if not own:
            raise refusal from None
        warnings.warn(
            f"{refusal}; going on without it, and the next `gemmkit tune` begins a new one",
            RuntimeWarning,
            stacklevel=2,
        )
        return []


class _NotAStoreError(Exception):
    """A file that something else than gemmkit wrote."""


def _refusal(path: Path, error: Exception) -> TuningError:
    if isinstance(error, _NotAStoreError):
        return TuningError(f"{path} is not a tuning store of gemmkit, and was left as it is")
    return TuningError(f"the tuning store {path} is damaged ({error}), and was left as it is")


def _looks_like_a_store(path: Path) -> bool:
    """Whether there is anything in the file; read without SQLite, which could write to it.

    Raises:
        _NotAStoreError: it has something in it that is not SQLite's, or another application's mark.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _NotAStoreError
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        return False
    mark = int.from_bytes(header[_APPLICATION_ID], "big")
    if not header.startswith(_MAGIC) or mark not in (APPLICATION_ID, 0):
        raise _NotAStoreError
    return True


def _check(connection: sqlite3.Connection, path: Path) -> tuple[bool, int]:
    """Whether a file has gemmkit's mark, and its version: 0 where nothing is in it.

    Raises:
        _NotAStoreError: another application made it.
        TuningError: a later gemmkit made it.
    """
    # One transaction: another process may be making the file.
    connection.execute("BEGIN")
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    names = {each[1] for each in connection.execute("PRAGMA table_info(trials)")}
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute("COMMIT")
    # Stores had no mark at first, but always a version and their table.
    older = mark == 0 and version and names >= _ALWAYS
    if mark != APPLICATION_ID and not older and (pages or mark):
        raise _NotAStoreError
    if version > SCHEMA_VERSION:
        raise TuningError(
            f"a later gemmkit wrote the tuning store {path} (schema {version}, this one reads "
            f"{SCHEMA_VERSION}): update gemmkit, or name another store"
        )
    return mark == APPLICATION_ID, version


def _read(path: Path, query: str, values: Sequence[object]) -> list[tuple[str, ...]]:
    """`read` for a file that may be a store."""
    wal, journal = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))

    def state() -> tuple[bool, int, int, int]:
        status = path.stat()
        in_use = journal.exists() or (wal.exists() and wal.stat().st_size > 0)
        return in_use, status.st_ino, status.st_size, status.st_mtime_ns

    def rows(mode: str) -> list[tuple[str, ...]]:
        with closing(_connect(f"{path.absolute().as_uri()}?{mode}")) as connection:
            return _rows(connection, path, query, values)

    # As long as nobody writes, no file beside this one is needed; a writer has made them.
    before = state()
    if not before[0]:
        try:
            found = rows("mode=ro&immutable=1")
        except (sqlite3.Error, _NotAStoreError):
            if state() == before:
                raise
        else:
            if state() == before:
                return found
    return rows("mode=ro")


def _rows(
    connection: sqlite3.Connection, path: Path, query: str, values: Sequence[object]
) -> list[tuple[str, ...]]:
    _, version = _check(connection, path)
    if not version:
        return []
    if version == SCHEMA_VERSION:
        return connection.execute(query, values).fetchall()
    with closing(_connect(":memory:")) as copy:
        connection.backup(copy)
        _bring_up(copy)
        return copy.execute(query, values).fetchall()


class _Connection(sqlite3.Connection):
    """Closes itself: when a thread ends, nothing else is left to do it."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):
            self.close()


def _connect(place: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(
        place,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        factory=_Connection,
        # One thread uses it; where that thread has ended, another may have to close it.
        check_same_thread=False,
        uri=isinstance(place, str),
    )


def _open(path: Path) -> sqlite3.Connection:
    """A connection in WAL mode to a file that is whole and of this version.

    Raises:
        _NotAStoreError: it is not a store.
        sqlite3.DatabaseError: it is damaged.
        TuningError: a later gemmkit made it.
    """
    if path.exists() and _looks_like_a_store(path):
        # Opening another application's database for writing could already change it.
        _read(path, "SELECT 1 WHERE 0", ())
    connection = _connect(path)
    try:
        (seen,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if seen != "ok":
            raise sqlite3.DatabaseError(seen)
        if _check(connection, path) != (True, SCHEMA_VERSION):
            _bring_up(connection)
        _use_journal(connection)
        # A power cut may take the last trials, never the file.
        connection.execute("PRAGMA synchronous = NORMAL")
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
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _use_journal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode, which lasts: of two that do so at once, SQLite turns one away."""
    end = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_SECONDS)


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
    try:
        lock.acquire(BUSY_SECONDS)
        yield
    finally:
        lock.release()
