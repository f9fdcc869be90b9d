"""Products over several GPUs, or over several processes without one.

`matmul` is for `DTensor`s and for plain tensors with a process group; `plan` says without any GPU
how ranks would go about a product. Only what multiplies needs PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemmkit.loading import load

if TYPE_CHECKING:
    from gemmkit.distributed.dtensors import stop_using_gemmkit, use_gemmkit, using_gemmkit
    from gemmkit.distributed.front import matmul
    from gemmkit.distributed.layers import ColumnParallelLinear, RowParallelLinear, parallelize
    from gemmkit.distributed.planning import DistributedPlan, plan, predicted_timeline
    from gemmkit.distributed.strategy import Strategy
    from gemmkit.distributed.styles import ColwiseParallel, RowwiseParallel

__all__ = [
    "ColumnParallelLinear",
    "ColwiseParallel",
    "DistributedPlan",
    "RowParallelLinear",
    "RowwiseParallel",
    "Strategy",
    "matmul",
    "parallelize",
    "plan",
    "predicted_timeline",
    "stop_using_gemmkit",
    "use_gemmkit",
    "using_gemmkit",
]

_HOME = {
    "ColwiseParallel": "gemmkit.distributed.styles",
    "ColumnParallelLinear": "gemmkit.distributed.layers",
    "DistributedPlan": "gemmkit.distributed.planning",
    "RowParallelLinear": "gemmkit.distributed.layers",
    "RowwiseParallel": "gemmkit.distributed.styles",
    "Strategy": "gemmkit.distributed.strategy",
    "matmul": "gemmkit.distributed.front",
    "parallelize": "gemmkit.distributed.layers",
    "plan": "gemmkit.distributed.planning",
    "predicted_timeline": "gemmkit.distributed.planning",
    "stop_using_gemmkit": "gemmkit.distributed.dtensors",
    "use_gemmkit": "gemmkit.distributed.dtensors",
    "using_gemmkit": "gemmkit.distributed.dtensors",
}

# Those that are written on PyTorch.
_OF_TORCH = (
    "gemmkit.distributed.dtensors",
    "gemmkit.distributed.front",
    "gemmkit.distributed.layers",
    "gemmkit.distributed.styles",
)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gemmkit.distributed' has no attribute '{name}'")
    if home in _OF_TORCH:
        try:
            import torch.distributed  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"gemmkit.distributed.{name} needs PyTorch: pip install 'gemmkit[torch]'"
            ) from error
    load(home)
    # Found at once from now on.
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
