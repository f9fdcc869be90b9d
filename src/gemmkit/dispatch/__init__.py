"""Dispatch: which kernel and configuration computes a problem on a board, and why."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable


def shipped_file(folder: str, name: str) -> Traversable:
    """A file of measurements that comes with the package; boards that were not measured have
    none."""
    return resources.files("gemmkit.dispatch") / folder / name
