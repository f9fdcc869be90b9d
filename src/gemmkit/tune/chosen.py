"""`chosen`: the products for which this process has chosen kernels, as `tune` takes them."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.dispatch.choose import Choice, dispatcher
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.problem import GemmProblem


def chosen(gpu: GpuSpec | str | None = None, *, untuned: bool = False) -> list[GemmProblem]:
    """The products for which this process has chosen a kernel on a board, in order of the choices.

    A product of the library on a GPU chooses its kernel the first time, so that after one pass of a
    model these are its products: `gemmkit.tune(gemmkit.chosen(untuned=True), budget=5)` measures
    those for which estimates decided, and later calls in this process and others use what it found.
    Products with prepared operands are listed without, as they are tuned, and products that have
    nothing to multiply are not listed.

    Args:
        gpu: the board, or its name; by default this machine's GPU.
        untuned: leave out products whose sizes, types and layout were measured, on this machine or
            for the table that ships.

    Raises:
        DeviceError: no board is named, and there is no GPU.
        UsageError: there is no such board.
    """
    if gpu is None:
        problem = gpu_problem()
        if problem is not None:
            raise DeviceError(f"{problem}: name the board whose choices are asked for")
        board = open_device("cuda").spec
    else:
        board = find_board(gpu)
    made = dispatcher(board).choices
    # Without copies of prepared operands, products may be the same.
    return list(
        dict.fromkeys(
            replace(problem, prepared="")
            for problem, choice in made.items()
            if problem.flops and not (untuned and _was_measured(choice))
        )
    )


def _was_measured(choice: Choice) -> bool:
    return choice.source in ("store", "shipped table")
