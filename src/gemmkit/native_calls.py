"""`NativeCalls`: calls that neither a fork nor the end of the process may cut short.

A library that is called from one thread may hold locks of its own. A process that another thread
forks just then would find them held for ever, and one that ends would tear the library down while
it runs. So both wait for the calls that run, and no new one begins meanwhile.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# How long the end of the process waits at most.
_PATIENCE_SECONDS = 10.0


class NativeCalls:
    """Counts the calls that each thread is in; a thread may be in several, one inside another."""

    def __init__(self) -> None:
        # A signal handler may come to it in a thread that holds it.
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
        """For as long as a call may run."""
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
        """Wait until no other thread is in a call, and let none begin one."""
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
