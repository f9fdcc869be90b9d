"""What ends a launch early: Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster
    from gemmkit.emulator.machine.turns import Turns
    from gemmkit.emulator.machine.worker import Worker


@contextmanager
def interrupting(worker: Worker | Cluster | Turns) -> Iterator[None]:
    """Let Ctrl-C stop a worker also where Python is called by native code.

    Python handles a signal that arrived in native code when a callback begins, and what is raised
    there reaches no caller: it is only reported to `sys.unraisablehook`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            worker.fail(lost.exc_value or KeyboardInterrupt())
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
