"""Ctrl-C where Python cannot handle it promptly: during imports, at exit, in native code."""

from __future__ import annotations

import os
import sys

# This is the first module of a command, and until it has run Ctrl-C shows a traceback: slow imports
# come later. `signal` adds enumerations to `_signal`, which takes ten times as long.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object]
else:
    import _signal as signal

# The exit status of a command that was interrupted.
INTERRUPTED = 130

# The names of entry-point scripts that pip installs.
_SCRIPTS = ("gemmkit", "gemmkit.exe", "gemmkit-script.py", "gemmkit-script.pyw")

# Python's own handler runs when the main thread returns from native code.
_GRACE_SECONDS = 0.7
# After it has run, tables may still be completed.
_CLOSING_SECONDS = 2.5

# What `_end` writes first, to restore a terminal with a progress bar.
_undo = b""

# The numbers of the signals for which `raise_again` raised.
_raised: list[int] = []


def end_command_at_once() -> None:
    """`end_at_once` if this process is the command `gemmkit`, or `python -m gemmkit`.

    Called by the package itself, which is imported before the entry point; a program that uses
    gemmkit as a library keeps its own handling of Ctrl-C.
    """
    program = getattr(sys, "argv", [""])[0]
    if program == "-m":
        # Python has not yet replaced this with the module's path.
        words = f" {' '.join(sys.orig_argv)} "
        is_command = " -m gemmkit " in words or " -mgemmkit " in words
    else:
        is_command = os.path.basename(program) in _SCRIPTS  # noqa: PTH119 (pathlib takes long)
    if is_command:
        end_at_once()


def end_at_once() -> None:
    """From now on, Ctrl-C ends the process with one line instead of a traceback.

    If SIGINT is ignored, as for a background job, or has another handler, this does nothing.
    """
    _replace(signal.default_int_handler, _end)


def raise_again() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt again, if `end_at_once` was called."""
    _raised.clear()
    _replace(_end, _raise)


def has_raised() -> bool:
    """Whether Ctrl-C has raised KeyboardInterrupt since `raise_again`.

    Python's own C code may replace that exception with another: a SyntaxError while compiling a
    module, an ImportError while importing one.
    """
    return bool(_raised)


def end_soon() -> None:
    """End the process if Python cannot handle an interrupt within a second.

    NVRTC and LLVM cannot be interrupted, and Python handles signals only between its own
    instructions. Completed rows and records are already printed and flushed; cache files appear
    atomically.
    """
    import socket
    import threading
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
                    if _raised:
                        time.sleep(_CLOSING_SECONDS)
                    _end(signal.SIGINT, None)

    threading.Thread(target=wait, name="interrupt", daemon=True).start()


def undo_at_end(codes: bytes) -> None:
    """Write these control codes to standard error before the process ends on Ctrl-C.

    For code that hides the cursor or redraws a line; empty when that is over.
    """
    global _undo
    _undo = codes


def _replace(present: Handler, handler: Handler) -> None:
    if signal.getsignal(signal.SIGINT) is present:
        try:
            signal.signal(signal.SIGINT, handler)
        except ValueError:
            # A separate thread, since only the main thread handles signals.
            return


def _raise(number: int, frame: FrameType | None) -> None:
    _raised.append(number)
    signal.default_int_handler(number, frame)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, _undo + b"interrupted\n")
    os._exit(INTERRUPTED)
