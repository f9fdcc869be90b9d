"""Files that users ask for: pages, pictures, traces."""

from __future__ import annotations

from pathlib import Path

from gemmkit.errors import UsageError
from gemmkit.whole_files import write_whole


def write_output(path: Path, data: bytes) -> None:
    """Write a file as a whole, in place of what was there.

    Raises:
        UsageError: it cannot be written; what was there is unchanged.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
