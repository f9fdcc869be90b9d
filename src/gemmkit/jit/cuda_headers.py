"""Where CUDA's own headers are, such as `cuda_fp16.h`: they come with NVRTC, or with a toolkit."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from gemmkit.diskcache import default_cache_directory, warn_unwritable
from gemmkit.errors import CompileError
from gemmkit.file_lock import FileLock
from gemmkit.jit.nvrtc import compiler_version, unpack_headers

_KIND = "headers"
# libcu++ lies a folder deeper.
_LIBRARIES = "cccl"
_SAMPLE = "cuda_fp16.h"
# In the folder of the headers: the digest of all others there.
_DIGEST = "digest"
# Unpacking takes a second, and who waits for a process that hangs may unpack its own.
_LOCK_PATIENCE_SECONDS = 60.0


def cuda_include_dirs(cache_dir: Path | None = None) -> tuple[str, ...]:
    """Folders to search for CUDA's headers; empty where there are none on this machine.

    NVRTC 13.3 and later bring them (25 MB); they are unpacked once, below the cache folder, and
    again where they are damaged there. If that folder is not writable, they are unpacked for this
    process alone, with a `RuntimeWarning`.

    Raises:
        CompilerMissing: there is no NVRTC on this machine.
        CompileError: no folder is writable.
    """
    root = default_cache_directory(_KIND) if cache_dir is None else cache_dir / _KIND
    folder = root / (compiler_version() or "unknown")
    try:
        if _is_intact(folder) or _unpacked(folder):
            return _with_libraries(folder)
        # NVRTC does not say whether it has none or could not write them.
        failure = OSError("no headers arrived there")
    except OSError as error:
        failure = error
    own = _temporary()
    if own is not None:
        warn_unwritable(root.parent, failure)
        return _with_libraries(own)
    toolkit = _toolkit_headers()
    return () if toolkit is None else _with_libraries(toolkit)


def _is_intact(folder: Path) -> bool:
    """Whether all headers are there, as they were unpacked."""
    try:
        seen = folder.stat()
        return _matches(folder, seen.st_ino, seen.st_mtime_ns)
    except (OSError, UnicodeDecodeError):
        return False


@functools.cache
def _matches(folder: Path, number: int, changed_ns: int) -> bool:  # noqa: ARG001
    """Whether the headers have the digest beside them; read once per process and folder, as
    that takes a tenth of a second.

    Raises:
        OSError: one of them cannot be read.
    """
    return (folder / _DIGEST).read_text() == _digest(folder)


def _digest(folder: Path) -> str:
    """Of the names and contents of all files below a folder but the one that holds it."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name != _DIGEST and path.is_file():
            text = path.read_bytes()
            total.update(f"{path.relative_to(folder).as_posix()}\0{len(text)}\0".encode())
            total.update(text)
    return total.hexdigest()


def _unpacked(folder: Path) -> bool:
    """Unpack into the folder, unless another process was faster; whether there are any headers.

    Raises:
        OSError: the folder around it is not writable, or another process keeps it for too long.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(_LOCK_PATIENCE_SECONDS)
        return _is_intact(folder) or _unpack(folder)
    finally:
        lock.release()


def _unpack(folder: Path) -> bool:
    """Replace the folder by one with the headers, at once for all who look for it; whether there
    are any.

    Raises:
        OSError: the folder around it is not writable.
    """
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        # Inside the `try`, for an interrupt may come as soon as it exists.
        scratch.mkdir(mode=0o700)
        new, old = scratch / "new", scratch / "old"
        new.mkdir()
        if not _fill(new):
            return False
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)  # is damaged
        new.rename(folder)
        return True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fill(folder: Path) -> bool:
    """Write the headers and their digest into an empty folder; whether NVRTC wrote any."""
    if not unpack_headers(folder) or not (folder / _SAMPLE).is_file():
        return False
    (folder / _DIGEST).write_text(_digest(folder))
    return True


@functools.cache
def _temporary() -> Path | None:
    """A folder with the headers that is removed when this process ends; None if there are none.

    Raises:
        CompileError: the folder for temporary files is not writable either.
    """
    from multiprocessing.util import Finalize

    try:
        folder = Path(tempfile.mkdtemp(prefix="gemmkit-headers-"))
        # Unlike `atexit`, also at the end of a worker process, and not at that of a fork.
        Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
        return folder if _fill(folder) else None
    except OSError as error:
        raise CompileError(
            "CUDA's headers cannot be unpacked: neither the cache folder nor the one for temporary "
            f"files is writable ({error.strerror or error}); set XDG_CACHE_HOME or TMPDIR to a "
            "folder that is"
        ) from error


def _toolkit_headers() -> Path | None:
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return None
    found = find_nvidia_header_directory("cudart")
    return Path(found) if found is not None and (Path(found) / _SAMPLE).is_file() else None


def _with_libraries(folder: Path) -> tuple[str, ...]:
    return tuple(str(each) for each in (folder, folder / _LIBRARIES) if each.is_dir())
