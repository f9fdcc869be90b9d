"""Where the CUDA toolkit's command-line tools are, if this machine has them."""

from __future__ import annotations

import shutil
from pathlib import Path


def find_tool(name: str) -> Path | None:
    """A tool such as `nvdisasm`: from NVIDIA's wheel, a CUDA toolkit, or PATH; None without."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility(name)
    found = found or shutil.which(name)
    return None if found is None else Path(found)
