"""PTX to cubin and resource figures with ptxas, where a machine has it.

ptxas is the assembler that NVRTC has built in: of one version, both give the same registers for
the same PTX (nvJitLink does not, since it optimizes anew).
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gemmkit.errors import CompileError, CompilerMissing
from gemmkit.jit.architectures import needed_architecture
from gemmkit.jit.diagnostics import render_log
from gemmkit.jit.resources import without_compile_time
from gemmkit.jit.toolkit import find_tool

HOW_TO_GET = "`pip install 'gemmkit[ptx]'` brings it, as does the CUDA toolkit"

_TOOL = "ptxas"
_RELEASE = re.compile(r"release [\d.]+, V([\d.]+)")
_TOO_OLD = re.compile(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'")


@dataclass(frozen=True, slots=True)
class Assembled:
    """A cubin, and ptxas's log with its resource figures."""

    cubin: bytes
    log: str


def assembler() -> Path | None:
    """Where ptxas is; None where there is none."""
    return find_tool(_TOOL)


def assembler_version() -> str | None:
    """Such as `ptxas 13.5.37`; None where there is none."""
    tool = assembler()
    return None if tool is None else _version_of(tool)


def assemble(ptx: str, arch: str, file_name: str) -> Assembled:
    """Assemble a PTX text for one architecture; messages call it `file_name`.

    Raises:
        CompilerMissing: there is no ptxas on this machine, or it is too old for this PTX.
        CompileError: ptxas refuses the text; the message holds the lines that it names.
    """
    tool = assembler()
    if tool is None:
        raise CompilerMissing(f"{_TOOL} is not installed: {HOW_TO_GET}")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, "utf-8")
        done = subprocess.run(
            [tool, "-v", f"-arch={arch}", source.name, "-o", cubin.name],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return Assembled(cubin.read_bytes(), without_compile_time(done.stderr))
    too_old = _TOO_OLD.search(done.stderr)
    if too_old is not None:
        raise CompilerMissing(
            f"{_version_of(tool)} reads PTX up to version {too_old[2]}, and {file_name} is "
            f"version {too_old[1]}: a newer one is needed; {HOW_TO_GET}"
        )
    lines = [line for line in done.stderr.splitlines() if "aborted due to errors" not in line]
    message, needs = render_log("\n".join(lines), {}, "", ptx), needed_architecture(done.stderr)
    raise CompileError(
        f"{file_name} does not assemble for {arch}: {needs}".rstrip() + f"\n\n{message}"
    )


@functools.cache
def _version_of(tool: Path) -> str:
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    release = _RELEASE.search(done.stdout)
    return f"{_TOOL} {release[1] if release else 'of unknown version'}"
