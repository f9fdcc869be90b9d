"""The number of cores that this process may use for parallel work."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on; its affinity may exclude some of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
