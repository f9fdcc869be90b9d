"""Reads what a kernel takes of the machine: registers, spills, shared and local memory.

ptxas's verbose log is the source, since nothing else tells spills; the cubin's own notes serve to
check it.
"""

from __future__ import annotations

import io
import re
import struct

from gemmkit.errors import CompileError
from gemmkit.jit.binary import Resources

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_CUMULATIVE_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+) bytes smem")

# The attribute of `.nv.info` that holds registers per thread, and the format of its value: a
# 16-bit size, then (symbol index, count) as two 32-bit words.
_REGISTER_COUNT = 0x2F
_SIZED_VALUE = 0x04
_COMPILE_TIME = re.compile(r"^ptxas info    : Compile time = .*\n?", re.MULTILINE)


def resources_from_log(log: str, entry: str) -> Resources:
    """The figures that `--ptxas-options=-v` printed for the kernel with the symbol `entry`.

    Raises:
        CompileError: the log has none.
    """
    block = _entry_block(log, entry)
    registers = _REGISTERS.search(block)
    # Device functions that were not inlined follow with lines of their own, anew for every
    # kernel that calls them; their spills are its spills too.
    frames = [
        tuple(int(figure) for figure in found.group("stack", "stores", "loads"))
        for found in _STACK.finditer(block)
    ]
    if registers is None or not frames:
        raise CompileError(
            f"the compiler's log has no resource figures for '{entry}': this NVRTC writes it in "
            "a form that gemmkit does not know; use nvidia-cuda-nvrtc 13.0 to 13.5"
        )
    cumulative = _CUMULATIVE_STACK.search(block)
    shared = _SHARED.search(block)
    return Resources(
        registers=int(registers[1]),
        spill_bytes=sum(stores + loads for _, stores, loads in frames),
        shared_bytes=int(shared[1]) if shared else 0,
        local_bytes=int(cumulative[1]) if cumulative else max(stack for stack, _, _ in frames),
    )


def barriers_from_log(log: str, entry: str) -> int:
    """Numbered barriers that a block of the kernel uses; 0 where the log tells none."""
    found = _BARRIERS.search(_entry_block(log, entry))
    return int(found[1]) if found else 0


def registers_from_cubin(cubin: bytes, entry: str) -> int:
    """Registers per thread of one kernel, as the cubin's `.nv.info` section notes them.

    Raises:
        CompileError: the bytes are no cubin, or it does not hold that kernel.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(cubin))
        symbols = elf.get_section_by_name(".symtab")
        notes = elf.get_section_by_name(".nv.info").data()
        for index, count in _register_counts(notes):
            if symbols.get_symbol(index).name == entry:
                return count
    except (ELFError, AttributeError, OverflowError, ValueError, struct.error) as error:
        raise CompileError("these bytes are no cubin with resource notes") from error
    raise CompileError(f"the cubin holds no kernel '{entry}'")


def _entry_block(log: str, entry: str) -> str:
    starts = [*_ENTRY.finditer(log)]
    for index, start in enumerate(starts):
        if start["name"] == entry:
            end = starts[index + 1].start() if index + 1 < len(starts) else len(log)
            return log[start.start() : end]
    return ""


def _register_counts(notes: bytes) -> list[tuple[int, int]]:
    counts = []
    offset = 0
    while offset < len(notes):
        form, attribute, size = struct.unpack_from("<BBH", notes, offset)
        offset += 4
        if form != _SIZED_VALUE:
            continue
        if attribute == _REGISTER_COUNT:
            counts.append(struct.unpack_from("<II", notes, offset))
        offset += size
    return counts


def without_compile_time(log: str) -> str:
    """ptxas's log without the one part that is another each time."""
    return _COMPILE_TIME.sub("", log)
