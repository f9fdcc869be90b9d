"""`DiskCache`: bytes by key in a folder, for many processes at once, with a cap on its size.

Problems with the folder (read-only, full, corrupt files) cost time, never the user's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmkit.file_lock import FileLock
from gemmkit.loading import load

MIB = 1024 * 1024
DEFAULT_LIMIT_BYTES = 512 * MIB

_MAGIC = b"gemmkit\x01"
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES

_ENTRY = ".entry"
_TEMPORARY = ".partial"
_LOCK = ".lock"

# A process that was suspended while holding a lock must not block the others forever.
_LOCK_PATIENCE_SECONDS = 120.0
# Partial and lock files this old belong to a process that was killed.
_ABANDONED_SECONDS = 3600.0


def default_cache_directory(kind: str) -> Path:
    """The folder for one kind of cache entry, in the user's cache folder of this platform."""
    load("platformdirs")
    import platformdirs

    return Path(platformdirs.user_cache_dir("gemmkit", appauthor=False)) / kind


class _Making(threading.local):
    """The entries that a thread is making: a signal handler may request one of them meanwhile."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_making = _Making()

# For each folder and limit, the bytes that may be written before the folder must be looked through
# again. Each look takes a system call per entry, as long as many a compilation takes in all.
_room: dict[tuple[Path, int], int] = {}


class DiskCache:
    """A folder of checksummed entries; the least recently used are removed beyond `limit_bytes`.

    Entries appear atomically and have a checksum over key and value, so a truncated or modified
    file is a miss. Other files in the folder are left alone. If the folder is not writable, nothing
    is cached, with one `RuntimeWarning` for all its sibling folders. While several processes write
    at once, the folder may for a short time be larger than its limit.
    """

    def __init__(self, directory: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.directory = Path(directory)
        self.limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """The value stored under `key`, or None if there is no intact one."""
        path = self._path(key, _ENTRY)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value = data[_HEADER_BYTES:]
        if data[:_HEADER_BYTES] != _header(key, value):
            return None
        _mark_used(path)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store `value`, replacing what was there; a value over the whole limit is not stored."""
        if _HEADER_BYTES + len(value) > self.limit_bytes:
            return
        path = self._path(key, _ENTRY)
        partial = path.with_name(f"{path.stem}.{os.getpid()}-{os.urandom(4).hex()}{_TEMPORARY}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                # No fsync: after a power failure the checksum detects a torn entry.
                with partial.open("xb") as file:
                    file.write(_header(key, value))
                    file.write(value)
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._warn(error)
            return
        _mark_used(path)
        place = self.directory, self.limit_bytes
        _room[place] = _room.get(place, 0) - _HEADER_BYTES - len(value)
        if _room[place] < 0:
            # Half of what is free: another process may be writing too.
            _room[place] = self._evict(keep=path) // 2

    def get_or_create(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The stored value, otherwise that of `make()`, which is then stored.

        If several processes or threads request the same missing key, one makes it while the others
        wait and then read it. An exception from `make` propagates; the next waiter tries again.
        """
        value = self.get(key)
        if value is not None:
            return value
        lock = FileLock(self._path(key, _LOCK))
        if lock.path in _making.paths:
            # This thread already holds the lock further up the stack: waiting would deadlock.
            return self._made(key, make)
        try:
            # An interrupt may come at any point, of the inner cleanup too; then the outer one
            # completes it. A context manager would not do: between its own last step and the body
            # of the `with` statement it is not closed.
            try:
                _making.paths.add(lock.path)
                self._acquire(lock)
                return self._made(key, make)
            finally:
                self._release(lock)
        finally:
            self._release(lock)

    def _made(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The value that another has stored meanwhile, otherwise that of `make()`."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def size(self) -> int:
        """Total size of the entries in bytes."""
        return sum(status.st_size for _, status in self._files(_ENTRY))

    def __len__(self) -> int:
        """Number of entries."""
        return sum(1 for _ in self._files(_ENTRY))

    def clear(self) -> None:
        """Remove every entry, and the leftovers of killed processes."""
        for suffix in (_ENTRY, _TEMPORARY, _LOCK):
            for path, _ in self._files(suffix):
                _remove(path)

    def _path(self, key: str, suffix: str) -> Path:
        return self.directory / (hashlib.sha256(key.encode()).hexdigest() + suffix)

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        for name, status in self._scan():
            if name.endswith(suffix):
                yield self.directory / name, status

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Names and sizes of all files."""
        try:
            with os.scandir(self.directory) as found:
                for each in found:
                    with contextlib.suppress(OSError):
                        yield each.name, each.stat()
        except OSError:
            return

    def _evict(self, keep: Path) -> int:
        """Remove what is too much, and what killed processes left; returns the bytes then free."""
        found = list(self._scan())
        entries = [(name, status) for name, status in found if name.endswith(_ENTRY)]
        excess = sum(status.st_size for _, status in entries) - self.limit_bytes
        if excess > 0:
            for name, status in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
                if excess <= 0:
                    break
                if name != keep.name:
                    _remove(self.directory / name)
                    excess -= status.st_size
        now = time.time()
        for name, status in found:
            abandoned = now - status.st_mtime > _ABANDONED_SECONDS
            if abandoned and name.endswith((_TEMPORARY, _LOCK)):
                _remove(self.directory / name)
        return max(0, -excess)

    def _acquire(self, lock: FileLock) -> None:
        """Acquire the lock of a key, or continue without it if the file system has no locks or
        another holds it for too long."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.acquire(_LOCK_PATIENCE_SECONDS)
        except TimeoutError:
            return
        except OSError as error:
            self._warn(error)

    def _release(self, lock: FileLock) -> None:
        """Release what is held of the lock of a key, once."""
        if lock.path in _making.paths:
            # Waiters find the entry after the removal. If making it failed, two may try again at
            # once, which is safe, because entries appear atomically.
            lock.remove()
            _making.paths.discard(lock.path)

    def _warn(self, error: Exception) -> None:
        warn_unwritable(self.directory.parent, error)


def warn_unwritable(folder: Path, error: Exception) -> None:
    """Tell that a cache folder cannot be used: once, by Python's default filter."""
    # Which shows a repeated text from one location only once.
    reason = getattr(error, "strerror", None) or type(error).__name__
    warnings.warn(
        f"the cache folder {folder} is not writable ({reason}); continuing without it, so later "
        "runs start as slowly as this one",
        RuntimeWarning,
        stacklevel=1,
    )


def _header(key: str, value: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(b"\0")
    digest.update(value)
    return _MAGIC + digest.digest()


def _mark_used(path: Path) -> None:
    # Set explicitly: file-system timestamps are too coarse to order entries.
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(path, ns=(now, now))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
