"""Refuses to be imported in a subinterpreter, where what gemmkit is built on does not work.

NumPy and LLVM's bindings hold state of the process: in a second interpreter NumPy either fails to
load or warns of subtle faults, and native threads that call back find the wrong interpreter.
"""

from __future__ import annotations

from importlib import import_module


def refuse_subinterpreters() -> None:
    """See that this is the main interpreter of its process.

    Raises:
        ImportError: it is not.
    """
    # By Python 3.13 and later, and by those before.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "gemmkit works in the main interpreter of a process alone, as NumPy and LLVM do: "
                "use threads or multiprocessing, and with mod_wsgi WSGIApplicationGroup %{GLOBAL}"
            )
        return
