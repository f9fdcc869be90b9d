"""One-time work at first use (importing, compiling), protected from signal handlers and forks.

A signal handler runs in the main thread, even in the middle of an import, where it would see a
partially initialized module; so another thread imports, and a handler waits for it. A forked
process would wait forever for locks that another thread holds while it imports or compiles; so
forks wait until that is done. While the main thread itself is importing a module, such as
`warnings` for `python -W`, another thread could wait forever for that module; so then the main
thread imports.
"""

from __future__ import annotations

# This registers fork hooks, which must not happen while a fork waits.
import logging  # noqa: F401
import sys
import threading
from contextlib import AbstractContextManager
from importlib import import_module

from gemmkit.native_calls import NativeCalls


def load(*names: str) -> None:
    """Import these modules.

    Raises:
        ImportError: as importing them does.
    """
    missing = [name for name in names if not _is_loaded(name)]
    if not missing:
        return
    if threading.current_thread() is not threading.main_thread() or _main_may_be_importing():
        _import(missing)
        return
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _import(missing)
        except BaseException as failure:
            failures.append(failure)
        finally:
            _importers.discard(threading.current_thread())

    thread = threading.Thread(target=work, name="gemmkit-import", daemon=True)
    _importers.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _importers.discard(thread)
        # No threads can be started while the process ends.
        work()
    else:
        thread.join()
    if failures:
        raise failures[0]


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


# Threads that import for the main one.
_importers: set[threading.Thread] = set()


def _main_may_be_importing() -> bool:
    """Whether a module is partially imported, and not by a thread that imports for the main one."""
    if _importers:
        return False
    specs = (getattr(each, "__spec__", None) for each in list(sys.modules.values()))
    return any(getattr(spec, "_initializing", False) for spec in specs)


def _import(names: list[str]) -> None:
    with first_use():
        for name in names:
            import_module(name)


# Created at import, because a fork must wait for all of the first use.
_first_uses = NativeCalls()


def first_use() -> AbstractContextManager[None]:
    """Context for one-time work that takes locks of Python or of a native library."""
    return _first_uses.running()
