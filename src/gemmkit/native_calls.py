"""`NativeCalls`: calls that neither a fork nor the end of the process may interrupt.

A native library may hold locks during a call. If another thread forks then, the child would find
them locked forever; if the process ends, the library would be torn down while it runs. So both wait
for running calls, and no new call starts meanwhile.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# The longest time that the end of the process waits, in seconds.
_PATIENCE_SECONDS = 10.0


class NativeCalls:
    """Counts the active calls of each thread; calls may be nested."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may acquire it in a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._depths: dict[int, int] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._stop,
                after_in_parent=self._changed.release,
                after_in_child=self._begin_child,
            )
        atexit.register(self._stop, _PATIENCE_SECONDS)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context of a call."""
        thread = threading.get_ident()
        with self._changed:
            self._depths[thread] = self._depths.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._depths[thread] -= 1
                if not self._depths[thread]:
                    del self._depths[thread]
                    self._changed.notify_all()

    def _stop(self, seconds: float | None = None) -> None:
        """Wait until no other thread is in a call, and block new calls."""
        end = None if seconds is None else time.monotonic() + seconds
        own = {threading.get_ident()}
        self._changed.acquire()
        while self._depths.keys() - own:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self._changed.wait(left)

    def _begin_child(self) -> None:
        self._depths = {
            thread: depth
            for thread, depth in self._depths.items()
            if thread == threading.get_ident()
        }
        self._changed.release()
