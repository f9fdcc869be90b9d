"""`gemmkit show`: everything about one kernel that does not require running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import (
    as_asked,
    config_option,
    debug_option,
    gpu_option,
    groups_option,
    one_problem,
    problem_options,
)
from gemmkit.cli.target import target_options
from gemmkit.units import counted

if TYPE_CHECKING:
    from gemmkit.gpu import GpuSpec
    from gemmkit.jit.binary import Binary
    from gemmkit.kernels.asked import Asked
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.kernels.plan import LaunchPlan, TileConfig
    from gemmkit.problem import GemmProblem

DEFAULT_SHAPE = "1024x1024x1024"

# What a host program must do to launch with this much shared memory.
_OPT_IN = " (the host must set cudaFuncAttributeMaxDynamicSharedMemorySize)"


@click.command("show", cls=Verb)
@target_options
@click.option(
    "--shape",
    metavar="MxNxK",
    help="The problem to plan the launch for.  [default: 1024x1024x1024, or the nearest that the "
    "kernel accepts]",
)
@groups_option
@problem_options
@as_asked
@gpu_option
@config_option
@click.option("--ptx", "form", flag_value="ptx", help="Print only the PTX.")
@click.option("--sass", "form", flag_value="sass", help="Print only the SASS.")
@debug_option
def command(
    shape: str | None,
    groups: GemmProblem | None,
    asked: Asked,
    gpu: str | None,
    config: dict[str, int] | None,
    form: str | None,
    **target: Any,
) -> None:
    """Show a kernel's idea, configuration, launch, resources and source: a rung or a file.

    The default board is that of this machine's GPU, or an RTX 3090 without one.
    """
    from gemmkit.cli.board import board_at_hand
    from gemmkit.cli.output import Printer
    from gemmkit.cli.target import find_target
    from gemmkit.jit.compiler import compile_plan
    from gemmkit.kernels.fitting import default_problem

    found = find_target(**target)
    board = board_at_hand(gpu)
    given = one_problem(shape, groups and asked.of_kernel(groups, found))
    problem = asked.problem(given or DEFAULT_SHAPE, found)
    settings = found.configure(config or {})
    problem = found.lay_out(problem) if given else default_problem(found, problem, board, settings)
    plan = found.plan(problem, settings, board)
    binary = compile_plan(plan, board.arch)
    if form == "ptx":
        click.echo(binary.ptx, nl=False)
        return
    if form == "sass":
        from gemmkit.jit.sass import disassemble

        click.echo(disassemble(binary.cubin), nl=False)
        return
    from rich.syntax import Syntax

    from gemmkit.report.layout import TEXT_WIDTH, wrapped

    out = Printer()
    out.print(f"{found.name}, rung {found.rung}" if found.rung else found.name, style="bold")
    if found.idea:
        out.print(wrapped(found.idea, out.width or TEXT_WIDTH))
    if settings.as_dict():
        out.print(_configurations(found, settings, board))
    out.print(_launch(plan, binary, board, problem))
    if out.is_terminal:
        theme = "ansi_dark"
        out.console.print(Syntax(found.source, "cuda", theme=theme, background_color="default"))
    else:
        click.echo(found.source, nl=False)


def _configurations(kernel: Kernel, config: TileConfig, board: GpuSpec) -> str:
    aliases = {key: alias for alias, key in kernel.aliases.items()}
    values = config.as_dict()
    width = max(map(len, values))
    lines = [f"{'key':{width}}  here  tuning values"]
    for key, value in values.items():
        worth = ", ".join(map(str, kernel.space.get(key, ())))
        also = f"  (also called {aliases[key]})" if key in aliases else ""
        lines.append(f"{key:{width}} {value:5}  {worth}{also}")
    allowed = sum(1 for _ in kernel.configurations(board))
    lines.append(f"{allowed:,} combinations of these are valid on {board.name}")
    return "\n".join(lines) + "\n"


def _launch(plan: LaunchPlan, binary: Binary, board: GpuSpec, problem: GemmProblem) -> str:
    from gemmkit.dtypes import types_text
    from gemmkit.kernels.layouts import layout_text

    words = [problem.shape]
    if problem.layout != "nn":
        words.append(layout_text(problem.layout))
    types = types_text(problem.dtype, problem.result_dtype, problem.precision, str(problem.scales))
    if types != "fp32":
        words.append(types)
    rows = {
        "problem": f"{', '.join(words)} on {board.name} ({board.arch})",
        "entry": plan.entry,
        "arguments": plan.arguments,
        "grid": f"{_dims(plan.grid)} = {counted(plan.blocks, 'block')}",
        "block": f"{_dims(plan.block)} = {plan.threads_per_block} threads",
        **_residency(plan, binary, board),
        **_scratch(plan),
        "compiler": binary.compiler,
    }
    return "".join(f"{name:10} {value}\n" for name, value in rows.items())


def _residency(plan: LaunchPlan, binary: Binary, board: GpuSpec) -> dict[str, str]:
    from gemmkit.analysis import occupancy
    from gemmkit.devices.limits import MAX_STATIC_SHARED

    taken = binary.resources
    if taken is None:
        return {"registers": f"unknown: {binary.log}"}
    shared = taken.shared_bytes + plan.shared_bytes
    seen = occupancy(
        board,
        registers=taken.registers,
        threads=plan.threads_per_block,
        shared_bytes=shared,
        blocks=plan.blocks,
    )
    return {
        "registers": f"{taken.registers} per thread, {taken.spill_bytes} bytes spilled, "
        f"{taken.local_bytes} bytes of local memory",
        "shared": f"{shared:,} bytes per block"
        + (f", {plan.shared_bytes:,} of them dynamic" if plan.shared_bytes else "")
        + (_OPT_IN if shared > MAX_STATIC_SHARED else ""),
        "occupancy": f"{100 * seen.theoretical:.2f} % theoretical, "
        f"{counted(seen.blocks_per_sm, 'block')} per SM, limited by {seen.limiter}",
        "waves": f"{seen.waves_per_sm:.2f} per SM",
    }


def _scratch(plan: LaunchPlan) -> dict[str, str]:
    if not plan.workspace_bytes and not plan.semaphores:
        return {}
    semaphores = f", and {counted(plan.semaphores, 'semaphore')}" if plan.semaphores else ""
    found = {"workspace": f"{plan.workspace_bytes:,} bytes of global memory{semaphores}"}
    if plan.before is not None:
        blocks = f"{_dims(plan.before.grid)} blocks of {plan.before.threads_per_block} threads"
        found["before"] = (
            f"{plan.before.kernel} copies {' and '.join(plan.copied)} to the workspace, "
            f"{plan.before.purpose}: {blocks}"
        )
    return found


def _dims(dims: tuple[int, int, int]) -> str:
    return " × ".join(map(str, dims))
