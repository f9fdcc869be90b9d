"""Products on the emulator, each with memory of its own: any number of threads may make them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.device import Buffer, Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.choose import choose
from gemmkit.dispatch.prices import EMULATED_GROUPS
from gemmkit.errors import SanitizerFinding
from gemmkit.gpu import DEFAULT_BOARD, GpuSpec
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.loading import first_use
from gemmkit.ops.arguments import step_numbers, step_places
from gemmkit.ops.compiled import compiled
from gemmkit.ops.placement import Step
from gemmkit.problem import GemmProblem


class Emulation:
    """A carrier (see `gemmkit.ops.host`) that computes on the CPU.

    Buffers are taken to be aligned to their elements alone, which spares further kernels.
    """

    alignment = 0
    by_columns = False

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device.with_own_memory()
        self.spec = device.spec

    def upload(self, array: NDArray[Any]) -> Buffer:
        """As `Carrier.upload`."""
        return self._device.upload(array)

    def empty(self, nbytes: int) -> Buffer:
        """As `Carrier.empty`."""
        return self._device.empty(nbytes)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """As `Carrier.download`."""
        self._device.download(buffer, out)

    def run(self, step: Step, buffers: Mapping[str, Buffer]) -> None:
        """As `Carrier.run`.

        Raises:
            SanitizerFinding: as `launch`.
        """
        plan, binary = _planned(step.problem, self.spec)
        scratch = Scratch.of(self._device, plan)
        addresses = {
            name: buffers[role].address + offset
            for name, (role, offset) in step_places(step).items()
        }
        arguments = step_numbers(step) | addresses | scratch.arguments
        self.launch(plan, binary, arguments)

    def tiles(self, problem: GroupedProblem) -> TileConfig:  # noqa: ARG002 (all take the same)
        """As `Carrier.tiles`."""
        return EMULATED_GROUPS

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """As `Carrier.launch`.

        Raises:
            SanitizerFinding: the device looks for faults and has found one.
        """
        if not self._device.sanitize:
            self._device.execute(binary, plan, arguments)
            return
        found = self._device.launch(binary, plan, arguments).findings
        if found:
            raise SanitizerFinding(f"'{plan.kernel}': {found[0].message}")


def emulation(device: EmulatedDevice | None = None) -> Emulation:
    """A carrier for one call, by default on an emulator that stands for an RTX 3090."""
    return Emulation(device or _default())


@lru_cache(maxsize=512)
def _planned(problem: GemmProblem, gpu: GpuSpec) -> tuple[LaunchPlan, Binary]:
    with first_use():
        choice = choose(problem, gpu, emulated=True)
        return compiled(problem, choice.kernel, choice.config, gpu)


@cache
def _default() -> EmulatedDevice:
    return EmulatedDevice(DEFAULT_BOARD)
