"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

# Why a file that may be written cannot be replaced: its folder is closed, others' files in it are
# protected, or the file is mounted by itself, as into a container.
_NOT_REPLACED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file: where that fails, as on a full disk, what was there before is still there.

    What is there and is not a file, such as a pipe, is written to; so are standard output and
    standard error, and a file that cannot be replaced by another.

    Raises:
        OSError: it cannot be written.
    """
    if (descriptor := _standard_stream(path)) is not None:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
        return
    file = _replaced(path)
    if file is None:
        path.write_bytes(data)
        return
    # File systems limit the length of a name.
    partial = file.with_name(f"{file.name[:40]}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    try:
        with partial.open("xb") as stream:
            stream.write(data)
        if file.exists():
            shutil.copymode(file, partial)
        partial.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if getattr(error, "errno", None) not in _NOT_REPLACED or not file.exists():
            raise
        file.write_bytes(data)


def _standard_stream(path: Path) -> int | None:
    """The descriptor of standard output or standard error if that is what is at a path: another
    file in its place would take away what else is written there."""
    try:
        there = path.stat()
    except OSError:
        return None
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), there):
                if stream is not None:
                    stream.flush()
                return descriptor
    return None


def _replaced(path: Path) -> Path | None:
    """The file that another may replace, behind any links, or None where what is at a path is to
    be opened: no file, one that must not be written, or one that has no name any more."""
    file = Path(os.path.realpath(path))
    if not path.exists():
        # Links that lead to each other stay one.
        return None if file.is_symlink() else file
    named = path.is_file() and file.exists() and file.samefile(path)
    return file if named and os.access(file, os.W_OK) else None
