"""What is done once, at first use, undisturbed by signal handlers and forks: importing, compiling.

A signal handler runs in the main thread, in the middle of an import too, where it would find half a
module; so another thread imports, for which a handler has to wait. A forked process would wait for
ever for what another thread was importing or compiling, whose locks it inherits; so forks wait
until that is done. While the main thread itself is importing a module, such as `warnings` for
`python -W`, another thread could wait for that module for ever; so the main thread imports then.
"""

from __future__ import annotations

# It registers hooks for forks, which must not happen while a fork waits.
import logging  # noqa: F401
import sys
import threading
from contextlib import AbstractContextManager
from importlib import import_module

from gemmkit.native_calls import NativeCalls


def load(*names: str) -> None:
    """Have these modules imported.

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
        # A process that ends starts no more threads.
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
    """Whether a module is half imported, and not by a thread that imports for the main one."""
    if _importers:
        return False
    specs = (getattr(each, "__spec__", None) for each in list(sys.modules.values()))
    return any(getattr(spec, "_initializing", False) for spec in specs)


def _import(names: list[str]) -> None:
    with first_use():
        for name in names:
            import_module(name)


# Made before there can be a first use, since a fork is to wait for all of it.
_first_uses = NativeCalls()


def first_use() -> AbstractContextManager[None]:
    """For as long as something is made ready that takes locks of Python or of a native library."""
    return _first_uses.running()
