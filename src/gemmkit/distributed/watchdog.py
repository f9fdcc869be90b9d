"""Ends a process whose GPU waits for a rank that has died, as PyTorch does for NCCL's operations.

A stream that waits for a flag cannot be interrupted, and whoever waits for the stream cannot
either. So a thread looks whether calls end within the group's time-out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

# Seconds between looks.
_PAUSE = 0.5

# PyTorch's variable for what happens to a process with a failed NCCL operation; 0 is nothing.
_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def end_process() -> None:
    """End this process at once, as its other threads may wait for the GPU for ever."""
    sys.stderr.flush()
    os._exit(1)


class Watchdog:
    """Watches the calls of one communicator.

    Args:
        timeout: the seconds within which a call's last operation has to end.
        late: says which ranks are late.
        end: what happens to the process after the message.
    """

    def __init__(
        self, timeout: float, late: Callable[[], str], end: Callable[[], None] = end_process
    ) -> None:
        self._timeout, self._late, self._end = timeout, late, end
        self._lock = threading.Lock()
        self._pending: Callable[[], bool] | None = None
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def started(self, done: Callable[[], bool]) -> None:
        """A call has been put on the streams; `done` says whether it has ended."""
        with self._lock:
            self._pending, self._since = done, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_watch,
                    args=(weakref.ref(self), min(_PAUSE, self._timeout / 4)),
                    name="gemmkit-ranks",
                    daemon=True,
                )
                self._thread.start()

    def look(self) -> bool:
        """Look once; whether the last call is late, which has been reported."""
        with self._lock:
            done, since = self._pending, self._since
        if done is None:
            return False
        if _asked(done):
            with self._lock:
                if self._pending is done and self._since == since:
                    self._pending = None
        elif time.monotonic() - since > self._timeout:
            self._fail()
            return True
        return False

    def _fail(self) -> None:
        print(
            f"gemmkit: a product over several ranks did not end within {self._timeout:g} s, the "
            f"time-out of its process group: {self._late()}",
            file=sys.stderr,
            flush=True,
        )
        if os.environ.get(_HANDLING, "") != "0":
            self._end()


def _watch(of: weakref.ref[Watchdog], pause: float) -> None:
    """Look every `pause` seconds, until a call is late or its communicator is no more."""
    while True:
        time.sleep(pause)
        watchdog = of()
        if watchdog is None or watchdog.look():
            return
        del watchdog


def _asked(done: Callable[[], bool]) -> bool:
    """Whether a call has ended, or has failed, which whoever waits for it is told."""
    try:
        return done()
    except Exception:
        return True


def who_is_late(rank: int, late: Sequence[int]) -> str:
    """What `late` of a `Watchdog` says on a rank, of those that have not come as far as it has."""
    others = [str(each) for each in late if each != rank]
    if not others:
        return f"rank {rank} itself is late"
    return (
        f"rank {rank} waits for {'rank' if len(others) == 1 else 'ranks'} {', '.join(others)}, "
        "which may have ended"
    )


def timeout_of(group: Any, device: Any) -> float:
    """The seconds after which a process group's operations count as failed."""
    try:
        return float(group._get_backend(device).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        # Backends without options have PyTorch's default.
        return 600.0
