"""One-time work at first use (importing, compiling), protected from signal handlers and forks.

A signal handler runs in the main thread, even in the middle of an import, where it would see a
partially initialized module; so another thread imports, and a handler waits for it. A forked
process would wait forever for locks that another thread holds while it imports or compiles; so
forks wait until that is done. While the main thread itself is importing a module, such as
`warnings` for `python -W`, another thread could wait forever for that module; so then the main
thread imports.

Threads import one after another: if one imports a package while another imports a module of it,
each holds the lock that the other needs, and Python refuses one of the imports.
"""

from __future__ import annotations

import logging  # noqa: F401  It registers fork hooks, which must not happen while a fork waits.
import sys
import threading
from contextlib import AbstractContextManager
from importlib import import_module
from types import FrameType

from gemmkit.native_calls import NativeCalls


def load(*names: str) -> None:
    """Import these modules.

    Raises:
        ImportError: as importing them does.
    """
    missing = [name for name in names if not _is_loaded(name)]
    if not missing:
        return
    if threading.current_thread() is not threading.main_thread() or _is_importing():
        _import(missing)
        return
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _import(missing)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work, name="gemmkit-import", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # No threads can be started while the process ends.
        work()
    else:
        thread.join()
    if failures:
        raise failures[0]


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _is_importing() -> bool:
    """Whether the current thread is in the middle of an import, and so holds a module's lock."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


# Reentrant: a module may load others while it is imported.
_one_at_a_time = threading.RLock()

# The file name in the frames of an import.
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"

# How long a thread waits for another's imports, in seconds, if it holds the lock of a module, which
# those may be waiting for.
_PATIENCE_SECONDS = 3.0


def _import(names: list[str]) -> None:
    with first_use():
        acquired = _one_at_a_time.acquire(timeout=_PATIENCE_SECONDS if _is_importing() else -1)
        try:
            for name in names:
                import_module(name)
        finally:
            if acquired:
                _one_at_a_time.release()


# Created at import, because a fork must wait for all of the first use.
_first_uses = NativeCalls()


def first_use() -> AbstractContextManager[None]:
    """Context for one-time work that takes locks of Python or of a native library."""
    return _first_uses.running()
