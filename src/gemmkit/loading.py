"""What is done once, at first use, undisturbed by signal handlers and forks: importing, compiling.

A signal handler runs in the main thread, in the middle of an import too, where it would find half a
module; so another thread imports, for which a handler has to wait. A forked process would wait for
ever for what another thread was importing or compiling, whose locks it inherits; so forks wait
until that is done.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from functools import cache
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
    if threading.current_thread() is not threading.main_thread():
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
        # A process that ends starts no more threads.
        work()
    else:
        thread.join()
    if failures:
        raise failures[0]


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _import(names: list[str]) -> None:
    # It has hooks of forks, which it must not register while one waits.
    import_module("logging")
    with first_use():
        for name in names:
            import_module(name)


def first_use() -> AbstractContextManager[None]:
    """For as long as something is made ready that takes locks of Python or of a native library."""
    return _first_uses().running()


@cache
def _first_uses() -> NativeCalls:
    return NativeCalls()
