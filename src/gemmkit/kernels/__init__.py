"""The ladder: CUDA C++ kernels, each adding one idea, and how each is launched."""

from __future__ import annotations

from importlib import resources


def include_files() -> dict[str, str]:
    """The headers that kernels may include: file name → text."""
    folder = resources.files("gemmkit.kernels") / "include"
    return {
        header.name: header.read_text("utf-8")
        for header in sorted(folder.iterdir(), key=lambda each: each.name)
        if header.name.endswith(".cuh")
    }
