"""Ctrl-C before the command line can handle it: while it is imported, and when it is over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# The exit status of a command that was interrupted.
INTERRUPTED = 130

Handler = Callable[[int, FrameType | None], object]


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with one line, not a traceback of half an import.

    Where SIGINT is ignored, as of a job in the background, or has another handler, it stays so.
    """
    _replace(signal.default_int_handler, _end)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again, if `end_at_once` was called."""
    _replace(_end, signal.default_int_handler)


def _replace(present: Handler, handler: Handler) -> None:
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is present:
        signal.signal(signal.SIGINT, handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
