"""The tuner: which configuration is the fastest for a shape on this GPU, found once and kept.

The package can be called: `gemmkit.tune(...)` is `gemmkit.tune.run.tune(...)`, whose docstring has
the arguments.

Raises:
    DeviceError: there is no GPU, or not enough memory on it.
    UsageError: an argument is not valid, or no kernel accepts a shape.
    TuningError: the store cannot be used, or the GPU was lost.
    CompilerMissing: there is no compiler.
    KeyboardInterrupt: after an interrupt; the trials so far are kept.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Tune(ModuleType):
    """A module with a function's manners: the folder and the function share one name."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from gemmkit.tune.run import tune

        return tune(*arguments, **named)


sys.modules[__name__].__class__ = _Tune
