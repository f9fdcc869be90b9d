"""Which files of the user's own a source includes, directly or through one another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gemmkit.cxx.declarations import without_comments
from gemmkit.errors import UsageError

INCLUDE = re.compile(
    r'^(?P<head>[ \t]*#[ \t]*include[ \t]*)(?:"(?P<quoted>[^"\n]+)"|<(?P<bracketed>[^>\n]+)>)',
    re.MULTILINE,
)


def find_include(
    quoted: str | None, bracketed: str | None, folder: Path, include_dirs: Sequence[str]
) -> Path | None:
    """The file on disk that an include names, as a compiler looks it up, or None."""
    folders = [*([folder] if quoted else []), *map(Path, include_dirs)]
    for each in folders:
        path = each / (quoted or bracketed or "")
        try:
            if path.is_file():
                return path.resolve()
        except (OSError, ValueError):
            # No name that a file could have.
            return None
    return None


def included_files(text: str, folder: Path, include_dirs: Sequence[str]) -> dict[Path, str]:
    """The text of every file on disk that `text`, itself in `folder`, includes.

    Conditions of the preprocessor are not looked at: a file that is included in any case counts.

    Raises:
        UsageError: an included file cannot be read.
    """
    found: dict[Path, str] = {}
    pending = [(text, folder)]
    while pending:
        current, here = pending.pop()
        for match in INCLUDE.finditer(without_comments(current, keep_literals=True)):
            path = find_include(match["quoted"], match["bracketed"], here, include_dirs)
            if path is not None and path not in found:
                found[path] = _read(path)
                pending.append((found[path], path.parent))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
