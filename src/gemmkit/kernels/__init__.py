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
    """The headers that kernels may include: file name → text."""
    headers = sorted((_FOLDER / "include").glob("*.cuh"))
    return {header.name: header.read_text("utf-8") for header in headers}
