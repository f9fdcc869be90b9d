"""Where CUDA's own headers are, such as `cuda_fp16.h`: they come with NVRTC, or with a toolkit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from gemmkit.diskcache import default_cache_directory
from gemmkit.jit.nvrtc import compiler_version, unpack_headers

_KIND = "headers"
# libcu++ lies a folder deeper.
_LIBRARIES = "cccl"
_SAMPLE = "cuda_fp16.h"


def cuda_include_dirs(cache_dir: Path | None = None) -> tuple[str, ...]:
    """Folders to search for CUDA's headers; empty where there are none on this machine.

    NVRTC 13.3 and later bring them (25 MB); they are unpacked once, below the cache folder.

    Raises:
        CompilerMissing: there is no NVRTC on this machine.
    """
    root = default_cache_directory(_KIND) if cache_dir is None else cache_dir / _KIND
    folder = root / (compiler_version() or "unknown")
    if not folder.is_dir() and not _unpack(folder):
        toolkit = _toolkit_headers()
        return () if toolkit is None else _with_libraries(toolkit)
    return _with_libraries(folder)


def _unpack(folder: Path) -> bool:
    """Fill the folder, at once for all who look for it; whether there is anything to fill it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        if not unpack_headers(scratch) or not (scratch / _SAMPLE).is_file():
            return False
        try:
            scratch.rename(folder)
        except OSError:
            # Another process was faster.
            return folder.is_dir()
        return True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _toolkit_headers() -> Path | None:
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return None
    found = find_nvidia_header_directory("cudart")
    return Path(found) if found is not None and (Path(found) / _SAMPLE).is_file() else None


def _with_libraries(folder: Path) -> tuple[str, ...]:
    return tuple(str(each) for each in (folder, folder / _LIBRARIES) if each.is_dir())
