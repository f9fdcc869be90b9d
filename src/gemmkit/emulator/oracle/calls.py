"""Calls to functions outside the kernel; the only one is printf."""

from __future__ import annotations

from functools import partial

import numpy as np

from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import LOCAL_WINDOW, Lanes, PrivateSpace, text_at
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.printf import format_printf
from gemmkit.emulator.ptx.module import Group as Names
from gemmkit.emulator.ptx.module import Symbol
from gemmkit.errors import UnsupportedInstruction


def print_formatted(group: Group, step: Step, lanes: Lanes, printed: list[str]) -> None:
    """`call vprintf`: one text per lane, in order; its result stays zero.

    Raises:
        UnsupportedInstruction: another function is called.
    """
    operands = step.instruction.operands
    callee = next((each.name for each in operands if isinstance(each, Symbol)), "?")
    lists = [each.names for each in operands if isinstance(each, Names)]
    if callee != "vprintf" or [len(each) for each in lists] != [1, 2]:
        raise UnsupportedInstruction(
            f"the emulator cannot call '{callee}' ({step.instruction.where})"
        )
    chunk, memory = group.chunk, group.chunk.memory
    arguments, local = chunk.spaces["arguments"], chunk.spaces["local"]
    template, buffer = (chunk.variable(name) for name in lists[1])
    for row, lane in np.argwhere(lanes).tolist():
        thread = int(chunk.owners["local"][group.rows[row], lane])
        start = _pointer(arguments, thread, buffer) - LOCAL_WINDOW
        data = local.text(thread, start, local.nbytes - start) if start >= 0 else b""
        text = text_at(memory, _pointer(arguments, thread, template))
        printed.append(format_printf(text, data, partial(text_at, memory)))


def _pointer(arguments: PrivateSpace, thread: int, offset: int) -> int:
    return int.from_bytes(arguments.text(thread, offset, 8), "little")
