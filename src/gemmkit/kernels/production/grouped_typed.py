"""`grouped_typed`: groups of every type, with the mainloop of `typed`."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.production import grouped, typed
from gemmkit.kernels.production.arguments import scales_argument
from gemmkit.problem import GemmProblem

_UNSCALED = grouped.of_any_type(
    typed,
    "grouped_typed",
    "Products of different shapes in one launch, of every type: elements become what the sums are "
    "made of on their way to shared memory.",
)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As `grouped.of_any_type` has it; scales stand in the table."""
    shape = _UNSCALED.launch(problem, config, gpu)
    if not problem.scales:
        return shape
    template = (*shape.template, scales_argument(problem.scales))
    return replace(shape, template=template, entry="grouped_typed_scaled")


KERNEL = replace(_UNSCALED, launch=launch)
