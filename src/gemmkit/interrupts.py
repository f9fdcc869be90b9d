"""Ctrl-C where Python cannot handle it soon: during imports, at the end, in native code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# The exit status of a command that was interrupted.
INTERRUPTED = 130

# Python's own handler runs as soon as the main thread is back from native code.
_GRACE_SECONDS = 0.7

Handler = Callable[[int, FrameType | None], object]


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with one line, not a traceback of half an import.

    Where SIGINT is ignored, as of a job in the background, or has another handler, it stays so.
    """
    _replace(signal.default_int_handler, _end)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again, if `end_at_once` was called."""
    _replace(_end, signal.default_int_handler)


def end_soon() -> None:
    """End the process where an interrupt is not handled within a second.

    NVRTC and LLVM cannot be interrupted, and Python handles signals between its own instructions
    only. Rows and records that are done were printed and flushed before; files of the caches
    appear atomically.
    """
    # Not needed where the command line is not: this module is imported first of all.
    import socket
    import time

    if threading.current_thread() is not threading.main_thread():
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with sender:
            while number := receiver.recv(1):
                if number[0] == signal.SIGINT:
                    time.sleep(_GRACE_SECONDS)
                    _end(signal.SIGINT, None)

    threading.Thread(target=wait, name="interrupt", daemon=True).start()


def _replace(present: Handler, handler: Handler) -> None:
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is present:
        signal.signal(signal.SIGINT, handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
