"""`FileLock`: a lock between processes and threads, as a lock on a file.

The operating system releases it when its holder ends. A process that is forked meanwhile would
inherit it; so forks wait for first uses (see `loading`), in which all locks are held. Libraries
have hooks of their own for forks, which would wait for those that they hold up.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.01


class FileLock:
    """A lock on a file, which is created if it is missing; each instance excludes all others.

    An interrupt may come between any two steps, also between the last of `acquire` and the caller's
    next one. So callers acquire it inside the `try` whose `finally` releases or removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, seconds: float) -> None:
        """Wait for the lock.

        Raises:
            TimeoutError: it was not free within so many seconds.
            OSError: the file cannot be opened, or its file system has no locks.
        """
        descriptor = self._descriptor = _open(self.path, os.O_CREAT)
        try:
            end = time.monotonic() + seconds
            while not _try_lock(descriptor):
                if time.monotonic() >= end:
                    raise TimeoutError(f"{self.path} is locked")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            # Closing the file unlocks it.
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the file and release the lock, if it is held; otherwise remove the file if nobody
        holds a lock on it, as after an interrupt while it was acquired."""
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                self._descriptor = _open(self.path, 0)
                if not _try_lock(self._descriptor):
                    self.release()
                    return
            self.path.unlink()
        self.release()


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | flags | getattr(os, "O_CLOEXEC", 0), 0o666)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
