"""Boards for tests that run every rung: some rungs are for Hopper alone, some need aligned rows."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.kernel import Kernel

HOPPER = ("wgmma", "tma", "warp_specialized", "cluster_multicast", "persistent")
# Those to which TMA brings the operands, and the one whose results it takes.
BY_TMA, STORED_BY_TMA = HOPPER[1:], HOPPER[4:]
# A Hopper board with room for two clusters, so that persistent ones get several tiles each.
H100 = find_board("h100")
SMALL_H100 = replace(H100, sm_count=4)

# Small tiles of them, quick to compile for the emulator.
SMALL_HOPPER = {
    "wgmma": {"BM": 64, "BN": 64, "stages": 3},
    "tma": {"BM": 128, "BN": 64, "stages": 2},
    "warp_specialized": {"BN": 64, "stages": 2},
    "cluster_multicast": {"BN": 128, "stages": 2},
    "persistent": {"BN": 128, "stages": 2},
}


def board_for(kernel: Kernel, board: GpuSpec) -> GpuSpec:
    """The board, or a Hopper one for the rungs that only that runs."""
    return SMALL_H100 if kernel.name in HOPPER else board


def device_for(kernel: Kernel, device: EmulatedDevice) -> EmulatedDevice:
    """The device, or one like it of a board that runs the kernel."""
    board = board_for(kernel, device.spec)
    if board is device.spec:
        return device
    return EmulatedDevice(board, threads=device.threads, sanitize=device.sanitize)
