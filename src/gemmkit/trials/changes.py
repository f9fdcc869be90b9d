"""How often this process has written to stores, for whoever remembers what was read from them."""

from __future__ import annotations

count = 0


def note() -> None:
    """Something was written."""
    global count
    count += 1
