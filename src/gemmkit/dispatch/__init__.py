"""Dispatch: which kernel and configuration computes a problem on a board, and why."""

from __future__ import annotations

from pathlib import Path


def shipped_file(folder: str, name: str) -> Path:
    """A file of measurements that comes with the package; boards that nobody measured have none."""
    return Path(__file__).parent / folder / name
