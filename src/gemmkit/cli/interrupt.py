"""Ctrl-C that works at once, also while a compiler or the emulator keeps the main thread busy."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

# Python's own handler runs as soon as the main thread is back from native code.
_GRACE_SECONDS = 0.7


def end_on_interrupt(status: int) -> None:
    """End the process with `status` where an interrupt is not handled within a second.

    NVRTC and LLVM cannot be interrupted, and Python handles signals between its own instructions
    only. Rows and records that are done were printed and flushed before; files of the caches
    appear atomically.
    """
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
                    sys.stderr.write("interrupted\n")
                    sys.stderr.flush()
                    os._exit(status)

    threading.Thread(target=wait, name="interrupt", daemon=True).start()
