"""CUDA C++ to PTX and cubin with NVRTC, with no driver."""

from __future__ import annotations

import functools
import re
import site
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gemmkit.errors import CompileError, CompilerMissing
from gemmkit.file_directives import in_log, in_ptx, with_stand_ins
from gemmkit.findings import CUDA_HEADERS
from gemmkit.jit.nvrtc_library import (
    COMPILATION,
    INVALID_OPTION,
    SUCCESS,
    NvrtcLibrary,
    open_library,
)
from gemmkit.jit.resources import without_compile_time
from gemmkit.loading import load

# Without `--no-source-include`, NVRTC would look for quoted includes in the working directory.
# Beside a driver NVRTC keeps a cache of its own, whose hits bring no ptxas figures: hence no-cache.
DEFAULT_OPTIONS = (
    "--std=c++17",
    "-lineinfo",
    "--no-source-include",
    "--no-cache",
    "--ptxas-options=-v",
)

# NVRTC puts the working directory before relative file names, which would make binaries differ
# from one folder to the next; a `#line` with an absolute name, cut off again, keeps them equal.
_ROOT = PurePosixPath("/gemmkit-sources")

_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")
_RELEASE = re.compile(r"^// Cuda compilation tools, release [\d.]+, V([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """NVRTC's output; `entry` is the symbol of the asked-for kernel in `ptx` and `cubin`, which is
    empty where it was not asked for.

    `log` holds warnings and ptxas's resource figures, `compiler` the release, such as
    `NVRTC 13.5.37`.
    """

    entry: str
    ptx: str
    cubin: bytes
    log: str
    compiler: str


def compile_program(
    source: str,
    entry: str,
    arch: str,
    *,
    headers: Mapping[str, str],
    file_name: str,
    options: Sequence[str] = DEFAULT_OPTIONS,
    include_dirs: Sequence[str] = (),
    assemble: bool = True,
) -> Program:
    """Compile one translation unit and look up one of its kernels.

    `entry` is a C++ name expression (`naive<32, 32>`) or the name of an `extern "C"` kernel;
    `headers` maps names, as they are included, to text. The PTX's `.file` entries carry
    `file_name` and the headers' names as given; files found in `include_dirs`, which are those of
    CUDA, have `<cuda>/` before their names in there. Without `assemble`, ptxas does not run: the
    PTX is the same, and the log has no resource figures.

    Raises:
        CompileError: the source, the entry, the options or the architecture are refused.
        CompilerMissing: there is no NVRTC on this machine.
    """
    if _ARCHITECTURE.fullmatch(arch) is None:
        raise CompileError(f"'{arch}' is not an architecture: write, for example, sm_86 or sm_90a")
    nvrtc = _load()
    named = with_stand_ins(file_name)
    included = {name.encode(): _numbered_from_one(name, text) for name, text in headers.items()}
    numbered = _numbered_from_one(named, source)
    with nvrtc.program(numbered, named.encode(), included) as program:
        program.add_name_expression(entry.encode())
        found = [f"-I{folder}" for folder in include_dirs]
        if not assemble:
            options = [each for each in options if not each.startswith("--ptxas-options")]
        target = arch if assemble else arch.replace("sm_", "compute_")
        status = program.compile([flag.encode() for flag in (f"-arch={target}", *options, *found)])
        log = in_log(_cut_roots(_decoded(program.log()), include_dirs))
        if status == INVALID_OPTION:
            raise CompileError(_refused_options(log, arch))
        if status not in (SUCCESS, COMPILATION):
            raise CompileError(f"NVRTC failed on {file_name}: {nvrtc.error_name(status)}\n{log}")
        # After an error of ptxas, which names PTX lines, there is PTX too.
        ptx = in_ptx(_cut_roots(_decoded(program.ptx()), include_dirs, CUDA_HEADERS))
        if status == COMPILATION:
            load("gemmkit.jit.architectures", "gemmkit.jit.diagnostics")
            from gemmkit.jit.architectures import needed_architecture
            from gemmkit.jit.diagnostics import render_log

            message = render_log(log, {**headers, file_name: source}, entry, ptx)
            needs = needed_architecture(log)
            said = f"{file_name} does not compile for {arch}: {needs}".rstrip()
            raise CompileError(f"{said}\n\n{message}")
        release = _RELEASE.search(ptx)
        return Program(
            entry=program.lowered_name(entry.encode()),
            ptx=ptx,
            cubin=program.cubin() if assemble else b"",
            log=without_compile_time(log),
            compiler=f"NVRTC {release[1] if release else nvrtc.version()}",
        )


def supported_architectures() -> tuple[str, ...]:
    """The architectures that this NVRTC compiles for, such as `sm_86`, oldest first.

    From sm_90 on it also takes the suffix `a` (architecture-specific instructions).

    Raises:
        CompilerMissing: there is no NVRTC on this machine.
    """
    return tuple(f"sm_{each}" for each in _load().architectures())


def unpack_headers(folder: Path) -> bool:
    """Write the CUDA headers that come with NVRTC 13.3 and later below `folder`.

    Returns whether this NVRTC has any.

    Raises:
        CompilerMissing: there is no NVRTC on this machine.
    """
    with _load().program(b"", b"headers.cu", {}) as program:
        return program.compile([f"--use-bundled-headers={folder}".encode()]) == SUCCESS


@functools.cache
def compiler_version() -> str | None:
    """NVRTC's version, such as `13.5.37`, or None where there is no NVRTC.

    Read, where possible, off the installed wheel without loading it: a cache hit needs the
    version only. (`importlib.metadata` would do that too, but its import alone costs 50 ms.)
    Wheels count where `cuda.pathfinder` looks for their libraries, which is not all of `sys.path`.
    """
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        # After those of a virtual environment, before those of the system.
        folders.insert(int(sys.prefix != sys.base_prefix), site.getusersitepackages())
    for folder in folders:
        for found in Path(folder).glob("nvidia_cuda_nvrtc-*.dist-info"):
            return found.stem.partition("-")[2]
    try:
        return _load().version()
    except CompilerMissing:
        return None


@functools.cache
def _load() -> NvrtcLibrary:
    if sys.platform == "darwin":
        raise CompilerMissing(
            "NVIDIA offers no CUDA compiler for macOS: run `gemmkit build --gpu NAME` on a Linux "
            "or Windows machine and copy its cache folder to this one"
        )
    try:
        return open_library()
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CompilerMissing(
            f"the CUDA compiler NVRTC cannot be loaded ({reason}): install it with `pip install "
            "nvidia-cuda-nvrtc cuda-pathfinder`, or run `gemmkit build --gpu NAME` on a machine "
            "that has it and copy its cache folder to this one"
        ) from error


def _decoded(output: bytes) -> str:
    # ptxas's and NVRTC's parts of a log each end with a zero byte.
    return output.replace(b"\0", b"").decode(errors="replace")


def _numbered_from_one(name: str, text: str) -> bytes:
    escaped = str(_ROOT / name).replace("\\", r"\\")
    return f'#line 1 "{escaped}"\n{text}'.encode()


def _cut_roots(text: str, include_dirs: Sequence[str], instead: str = "") -> str:
    text = text.replace(f"{_ROOT}/", "")
    # The longer ones first: one may lie in the other.
    for root in sorted(include_dirs, key=len, reverse=True):
        text = text.replace(f"{root}/", instead)
    return text


def _refused_options(log: str, arch: str) -> str:
    number = _ARCHITECTURE.sub(r"sm_\1", arch)
    if number not in supported_architectures():
        known = ", ".join(supported_architectures())
        return f"NVRTC {compiler_version()} does not compile for {arch}; it knows {known}"
    return f"NVRTC refuses its options: {log.strip()}"
