"""Compiled kernels that are kept from one run of the tests to the next, with `--keep-compiled`."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path


def kept_cache(sources: Path, kept: Path) -> Path:
    """The folder below `kept` of what was compiled by these sources; others are removed.

    What is compiled is found by all that it is compiled from, but not by the code that calls the
    compilers, translates sources and stores the results: a change of that makes another folder.
    """
    digest = hashlib.sha256()
    for package in ("cxx", "emulator", "jit"):
        for file in sorted((sources / package).rglob("*.py")):
            digest.update(f"{file.relative_to(sources)}\0".encode() + file.read_bytes())
    folder = kept / digest.hexdigest()[:16]
    for other in kept.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder
