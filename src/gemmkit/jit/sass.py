"""Machine code as text: a cubin through NVIDIA's disassembler, wherever it is installed."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from gemmkit.errors import CompileError, CompilerMissing
from gemmkit.jit.toolkit import find_tool

_TOOL = "nvdisasm"


def disassembler() -> Path | None:
    """Where nvdisasm is; None where there is none."""
    return find_tool(_TOOL)


def disassemble(cubin: bytes) -> str:
    """The SASS of every kernel in a cubin.

    Raises:
        CompilerMissing: there is no nvdisasm on this machine.
        CompileError: nvdisasm refuses the cubin.
    """
    tool = disassembler()
    if tool is None:
        raise CompilerMissing(
            f"{_TOOL} is not installed: `pip install 'gemmkit[sass]'` brings it, as does the "
            "CUDA toolkit"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [tool, "--print-code", path], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise CompileError(f"{_TOOL} failed: {done.stderr.strip()}")
    return done.stdout
