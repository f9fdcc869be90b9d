"""gemmkit's kernels: the ladder, the production kernels, and how each is launched."""

from __future__ import annotations

from pathlib import Path

# (`importlib.resources` would find it too, but imports what reads archives first.)
_FOLDER = Path(__file__).parent


def source_text(name: str) -> str:
    """The text of a kernel's `.cu` file, a rung's or a production kernel's."""
    rung = _FOLDER / "ladder" / f"{name}.cu"
    path = rung if rung.is_file() else _FOLDER / "production" / f"{name}.cu"
    return path.read_text("utf-8")


def include_files() -> dict[str, str]:
    """The headers that kernels may include: name → text.

    Those of production kernels are named by their folders: `mainloop/cp_async_fma.cuh`.
    """
    found = {}
    for folder in (_FOLDER / "include", _FOLDER / "production"):
        for header in sorted(folder.rglob("*.cuh")):
            found[header.relative_to(folder).as_posix()] = header.read_text("utf-8")
    return found
