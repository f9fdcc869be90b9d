"""The target board of commands that run nothing."""

from __future__ import annotations

from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.errors import DeviceError
from gemmkit.gpu import DEFAULT_BOARD, GpuSpec, find_board


def board_at_hand(name: str | None) -> GpuSpec:
    """The named board; by default that of this machine's GPU, or an RTX 3090 without one.

    Raises:
        UsageError: no such board.
    """
    if name is not None:
        return find_board(name)
    if gpu_problem() is None:
        try:
            return open_device("cuda").spec
        except DeviceError:
            pass
    return DEFAULT_BOARD
