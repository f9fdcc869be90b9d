"""Products on the emulator: few kernels for all shapes, so that little is compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.device import Buffer, Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.errors import SanitizerFinding
from gemmkit.gpu import DEFAULT_BOARD
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import find_kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.ops.arguments import step_numbers, step_places
from gemmkit.ops.compiled import compiled
from gemmkit.ops.placement import Step
from gemmkit.problem import GemmProblem

# Small tiles: they are compiled soonest, and most of what is emulated is small.
_TILES = {"BM": 16, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
_FP32 = {**_TILES, "stages": 2, "bursts": 1, "order": 2}

# The emulator's memory and programs are made for one thread at a time.
_lock = threading.Lock()


class Emulation:
    """A carrier (see `gemmkit.ops.host`) that computes on the CPU.

    Buffers are taken to be aligned to their elements alone, which spares further kernels.
    """

    alignment = 0
    by_columns = False

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.spec = device.spec

    def upload(self, array: NDArray[Any]) -> Buffer:
        """As `Carrier.upload`."""
        return self.device.upload(array)

    def empty(self, nbytes: int) -> Buffer:
        """As `Carrier.empty`."""
        return self.device.empty(nbytes)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """As `Carrier.download`."""
        self.device.download(buffer, out)

    def run(self, step: Step, buffers: Mapping[str, Buffer]) -> None:
        """As `Carrier.run`.

        Raises:
            SanitizerFinding: as `launch`.
        """
        kernel, config = _choice(step.problem)
        plan, binary = compiled(step.problem, kernel, config, self.device.spec)
        scratch = Scratch.of(self.device, plan)
        addresses = {
            name: buffers[role].address + offset
            for name, (role, offset) in step_places(step).items()
        }
        arguments = step_numbers(step) | addresses | scratch.arguments
        self.launch(plan, binary, arguments)

    def tiles(self, problem: GroupedProblem) -> TileConfig:  # noqa: ARG002 (all take the same)
        """As `Carrier.tiles`."""
        return TileConfig(**_FP32)

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """As `Carrier.launch`.

        Raises:
            SanitizerFinding: the device looks for faults and has found one.
        """
        if not self.device.sanitize:
            self.device.count(binary, plan, arguments)
            return
        found = self.device.launch(binary, plan, arguments).findings
        if found:
            raise SanitizerFinding(f"'{plan.kernel}': {found[0].message}")


@contextmanager
def emulation(device: EmulatedDevice | None = None) -> Iterator[Emulation]:
    """The emulator, by default one that stands for an RTX 3090, while no other thread has it."""
    with _lock:
        yield Emulation(device or _default())


@cache
def _default() -> EmulatedDevice:
    return EmulatedDevice(DEFAULT_BOARD)


def _choice(problem: GemmProblem) -> tuple[Kernel, TileConfig]:
    """A kernel that takes any shape, with the least code."""
    if problem.dtype == problem.out_dtype == "float32":
        kernel = find_kernel("async_copy")
        return kernel, kernel.configure(_FP32)
    kernel = find_kernel("typed")
    return kernel, kernel.configure(_TILES)
