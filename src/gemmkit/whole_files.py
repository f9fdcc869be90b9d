"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file: where that fails, as on a full disk, what was there before is still there.

    What is there and is not a file, such as a pipe, is written to; so is a file in a folder where
    no other can be made.

    Raises:
        OSError: it cannot be written.
    """
    # A link stays one.
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    # File systems limit the length of a name.
    partial = path.with_name(f"{path.name[:40]}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    try:
        try:
            with partial.open("xb") as file:
                file.write(data)
        except PermissionError:
            if not path.exists():
                raise
            path.write_bytes(data)
            return
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
