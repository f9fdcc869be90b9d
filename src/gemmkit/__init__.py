"""Write, check, explain, tune and ship CUDA matrix-multiply kernels; a GPU is needed only
for timing.

Heavy parts (the compiler, the emulator, the CUDA driver) are imported at first use.
"""

from __future__ import annotations

from gemmkit.interpreter import refuse_subinterpreters
from gemmkit.interrupts import end_command_at_once

# Before anything that is slow to import.
end_command_at_once()
# Some modules of the standard library do not load in a subinterpreter.
refuse_subinterpreters()

from importlib import import_module  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from gemmkit.loading import load  # noqa: E402
from gemmkit.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from gemmkit.analysis.explain import Explanation, explain
    from gemmkit.bench.check import check
    from gemmkit.bench.count import Counters, count
    from gemmkit.bench.ladder import ladder
    from gemmkit.bench.progress import Progress
    from gemmkit.bench.run import run_kernel
    from gemmkit.bench.sweep import sweep
    from gemmkit.check_record import CheckRecord
    from gemmkit.devices.choose import open_device
    from gemmkit.dispatch.choose import Choice, choose
    from gemmkit.dispatch.which import Decision, which
    from gemmkit.epilogue import Epilogue
    from gemmkit.errors import EmulationWarning, GemmkitError
    from gemmkit.findings import Finding
    from gemmkit.gpu import GpuSpec, find_board
    from gemmkit.kernels.catalog import LADDER, find_kernel
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.kernels.plan import TileConfig
    from gemmkit.ops.grouped import grouped_matmul
    from gemmkit.ops.matmul import gemm, matmul
    from gemmkit.ops.pinned_arrays import empty_pinned
    from gemmkit.ops.precision import get_precision, precision, set_precision
    from gemmkit.ops.prepared_groups import PreparedGroups, prepare_groups
    from gemmkit.ops.prepared_operands import PreparedOperand, prepare
    from gemmkit.ops.quantize import quantize
    from gemmkit.ops.ragged import ragged_matmul
    from gemmkit.problem import BROADCAST, GemmProblem
    from gemmkit.record import Record
    from gemmkit.trials.store import Store
    from gemmkit.tune.chosen import chosen
    from gemmkit.tune.result import Tuned
    from gemmkit.tune.run import tune

__all__ = [
    "BROADCAST",
    "LADDER",
    "CheckRecord",
    "Choice",
    "Counters",
    "Decision",
    "EmulationWarning",
    "Epilogue",
    "Explanation",
    "Finding",
    "GemmProblem",
    "GemmkitError",
    "GpuSpec",
    "Kernel",
    "PreparedGroups",
    "PreparedOperand",
    "Progress",
    "Record",
    "Store",
    "TileConfig",
    "Tuned",
    "__version__",
    "check",
    "choose",
    "chosen",
    "count",
    "empty_pinned",
    "explain",
    "find_board",
    "find_kernel",
    "gemm",
    "get_precision",
    "grouped_matmul",
    "ladder",
    "matmul",
    "open_device",
    "precision",
    "prepare",
    "prepare_groups",
    "quantize",
    "ragged_matmul",
    "run_kernel",
    "set_precision",
    "sweep",
    "tune",
    "which",
]

_HOME = {
    "BROADCAST": "gemmkit.problem",
    "LADDER": "gemmkit.kernels.catalog",
    "CheckRecord": "gemmkit.check_record",
    "Choice": "gemmkit.dispatch.choose",
    "Counters": "gemmkit.bench.count",
    "Decision": "gemmkit.dispatch.which",
    "EmulationWarning": "gemmkit.errors",
    "Epilogue": "gemmkit.epilogue",
    "Explanation": "gemmkit.analysis.explain",
    "Finding": "gemmkit.findings",
    "GemmProblem": "gemmkit.problem",
    "GemmkitError": "gemmkit.errors",
    "GpuSpec": "gemmkit.gpu",
    "Kernel": "gemmkit.kernels.kernel",
    "PreparedGroups": "gemmkit.ops.prepared_groups",
    "PreparedOperand": "gemmkit.ops.prepared_operands",
    "Progress": "gemmkit.bench.progress",
    "Record": "gemmkit.record",
    "Store": "gemmkit.trials.store",
    "TileConfig": "gemmkit.kernels.plan",
    "Tuned": "gemmkit.tune.result",
    "check": "gemmkit.bench.check",
    "choose": "gemmkit.dispatch.choose",
    "chosen": "gemmkit.tune.chosen",
    "count": "gemmkit.bench.count",
    "empty_pinned": "gemmkit.ops.pinned_arrays",
    "explain": "gemmkit.analysis.explain",
    "find_board": "gemmkit.gpu",
    "find_kernel": "gemmkit.kernels.catalog",
    "gemm": "gemmkit.ops.matmul",
    "get_precision": "gemmkit.ops.precision",
    "grouped_matmul": "gemmkit.ops.grouped",
    "ladder": "gemmkit.bench.ladder",
    "matmul": "gemmkit.ops.matmul",
    "open_device": "gemmkit.devices.choose",
    "precision": "gemmkit.ops.precision",
    "prepare": "gemmkit.ops.prepared_operands",
    "prepare_groups": "gemmkit.ops.prepared_groups",
    "quantize": "gemmkit.ops.quantize",
    "ragged_matmul": "gemmkit.ops.ragged",
    "run_kernel": "gemmkit.bench.run",
    "set_precision": "gemmkit.ops.precision",
    "sweep": "gemmkit.bench.sweep",
    "tune": "gemmkit.tune.run",
    "which": "gemmkit.dispatch.which",
}


# Submodules accessed as attributes, such as `gemmkit.nn.linear`.
_PARTS = ("distributed", "jax", "nn", "torch")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return _module(f"gemmkit.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gemmkit' has no attribute '{name}'")
    return getattr(_module(home), name)


def _module(name: str) -> ModuleType:
    load(name)
    return import_module(name)


def __dir__() -> list[str]:
    return sorted(__all__)
