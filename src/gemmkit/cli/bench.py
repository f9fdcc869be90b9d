"""`gemmkit bench`: one kernel, a rung or a file of the user's own, measured like a rung."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.options import (
    config_option,
    debug_option,
    device_option,
    epilogue_option,
    gpu_option,
    json_option,
    launch_options,
    scale_options,
    seed_option,
    shapes_option,
)
from gemmkit.cli.target import target_options

if TYPE_CHECKING:
    from gemmkit.devices.choose import DeviceKind

DEFAULT_SHAPE = "1024"


@click.command("bench")
@target_options
@shapes_option
@device_option
@gpu_option
@config_option
@epilogue_option
@scale_options
@seed_option
@launch_options
@json_option
@debug_option
def command(
    shapes: tuple[str, ...],
    device: DeviceKind,
    gpu: str | None,
    config: dict[str, int] | None,
    epilogue: str,
    alpha: float,
    beta: float,
    seed: int,
    max_steps: int | None,
    printf_bytes: int | None,
    json_path: str | None,
    **target: Any,
) -> None:
    """Measure one kernel: a rung, or a CUDA C++ or PTX file of your own.

    On a GPU it is timed in turn with cuBLAS, where that is installed. Without one its PTX runs on
    the CPU, and the table has the counts that explain the times. Each result is checked against
    a float64 reference. Without --shape, at 1024x1024x1024.

    The exit status is 1 if a result is wrong.
    """
    from gemmkit.bench.ladder import run_suite
    from gemmkit.cli.target import find_target
    from gemmkit.cli.watch import Watch, show_run
    from gemmkit.devices.choose import DEFAULT_MAX_STEPS, open_device
    from gemmkit.epilogue import Epilogue
    from gemmkit.problem import GemmProblem
    from gemmkit.record import Record
    from gemmkit.report.tables import bench_table

    kernel = find_target(**target)
    fused = Epilogue.parse(epilogue)
    problems = [
        GemmProblem.from_shape(shape, alpha=alpha, beta=beta, epilogue=fused)
        for shape in shapes or (DEFAULT_SHAPE,)
    ]

    def run(watch: Watch) -> list[Record]:
        opened = open_device(
            device,
            gpu,
            progress=watch.launched,
            max_steps=max_steps or DEFAULT_MAX_STEPS,
            printf_bytes=printf_bytes,
        )
        return run_suite(
            problems, kernels=[kernel], config=config, device=opened, seed=seed, progress=watch
        )

    show_run(run, bench_table, asked=device, json_path=json_path)
