"""`this_gpu`: the GPU that a script measures."""

from __future__ import annotations

import sys
from pathlib import Path

from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.devices.device import TimedDevice


def this_gpu() -> TimedDevice:
    """The GPU of this machine.

    Raises:
        SystemExit: there is none; in a sentence.
    """
    problem = gpu_problem()
    if problem is not None:
        raise SystemExit(f"{Path(sys.argv[0]).name} measures on a GPU: {problem}")
    device = open_device("cuda")
    assert isinstance(device, TimedDevice)
    return device
