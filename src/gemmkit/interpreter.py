"""Refuses to be imported in a subinterpreter, where gemmkit's dependencies do not work.

NumPy and LLVM's bindings have per-process state: in a second interpreter NumPy fails to load or
warns of subtle errors, and callbacks from native threads run in the wrong interpreter.
"""

from __future__ import annotations

from importlib import import_module


def refuse_subinterpreters() -> None:
    """Check that this is the main interpreter of its process.

    Raises:
        ImportError: it is not.
    """
    # Python 3.13 and later, and earlier versions.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "gemmkit works only in the main interpreter of a process, as do NumPy and LLVM: "
                "use threads or multiprocessing, and with mod_wsgi WSGIApplicationGroup %{GLOBAL}"
            )
        return
