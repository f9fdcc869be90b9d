"""Source positions of instructions, as findings and schedules name them."""

from __future__ import annotations

import re

from gemmkit.emulator.ptx.module import Instruction, SourceLine
from gemmkit.findings import CUDA_HEADERS

# CUDA's headers in the line tables of NVRTC or nvcc.
_CUDA_HEADER = re.compile(CUDA_HEADERS + r"|.*/(cuda[^/]*|cu\d+|targets/[^/]+)/include/")


def source_place(source: SourceLine) -> tuple[str, int, tuple[str, ...]]:
    """File, line and calls of the innermost position that is not in one of CUDA's own headers."""
    places = [str(source), *source.called_from]
    for number, index in enumerate(places):
        file, _, line = index.rpartition(":")
        if not _CUDA_HEADER.match(file):
            return file, int(line), tuple(places[number + 1 :])
    return source.file, source.line, source.called_from


def place_of(instruction: Instruction) -> tuple[str, int]:
    """File and line of an instruction; those of the PTX if it has no line information."""
    return source_place(instruction.named or SourceLine("PTX", instruction.line))[:2]
