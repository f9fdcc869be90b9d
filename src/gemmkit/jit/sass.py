"""Machine code as text: a cubin through NVIDIA's disassembler, wherever it is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from gemmkit.errors import CompileError, CompilerMissing

_TOOL = "nvdisasm"


def disassembler() -> Path | None:
    """Where nvdisasm is: NVIDIA's wheel, a CUDA toolkit, or PATH; None where there is none."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility(_TOOL)
    found = found or shutil.which(_TOOL)
    return None if found is None else Path(found)


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
