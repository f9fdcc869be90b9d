"""Devices to which host arrays are brought: a GPU, or the emulator with a warning, once."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gemmkit.devices.choose import gpu_problem
from gemmkit.devices.device import Buffer, Device, Scratch, Transfers
from gemmkit.errors import (
    DeviceError,
    EmulationWarning,
    SanitizerFinding,
    UnsupportedType,
    UsageError,
)
from gemmkit.gpu import DEFAULT_BOARD, GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import OFFSETS, LaunchPlan
from gemmkit.loading import first_use, load
from gemmkit.ops.compiled import compiled
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.devices.emulated import EmulatedDevice
    from gemmkit.devices.staging import Staging


class Carrier(ABC):
    """A device to which host arrays are brought, as one call uses it.

    `alignment` is what kernels may take its buffers' addresses to be multiples of, at most.
    With `by_columns` it reads matrices as well whose transpose is row-major.
    """

    alignment: int
    by_columns: bool

    def __init__(self, board: Transfers) -> None:
        self._board, self.spec = board, board.spec

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A device copy of a C-contiguous array."""
        return self._board.upload(array)

    def empty(self, nbytes: int) -> Buffer:
        """Device memory, its content undefined."""
        return self._board.empty(nbytes)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """Fill a C-contiguous array, when all launches are done."""
        self._board.download(buffer, out)

    @abstractmethod
    def chosen(self, problem: GemmProblem) -> tuple[LaunchPlan, Binary]:
        """The launch for a problem."""

    @abstractmethod
    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """Run a plan's grid, with scratch memory, and a table of its products, of its own."""


class _OnGpu(Carrier):
    """A carrier that computes on a GPU."""

    alignment = 256
    by_columns = True

    def __init__(self, gpu: Staging) -> None:
        super().__init__(gpu)
        self._gpu = gpu

    def chosen(self, problem: GemmProblem) -> tuple[LaunchPlan, Binary]:
        """As `Carrier.chosen`."""
        return chosen_on_gpu(problem, self.spec)

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """As `Carrier.launch`.

        Raises:
            DeviceError: the driver refuses it.
        """
        if plan.table is None or not plan.blocks:
            self._gpu.launch(binary, plan, arguments)
            return
        from gemmkit.devices.tensor_maps import DRIVER_MAPS

        table = self.upload(plan.table.of_storage(arguments, DRIVER_MAPS))
        listed = {"groups": table.address, OFFSETS: table.address, **plan.table.arguments}
        self._gpu.launch(binary, plan, {**arguments, **listed})


class _OnEmulator(Carrier):
    """A carrier that computes on the CPU, with memory of its own: any number of threads may.

    Buffers are taken to be aligned to their elements alone, which spares further kernels.
    """

    alignment = 0
    by_columns = False

    def __init__(self, emulator: EmulatedDevice) -> None:
        self._emulator = emulator.with_own_memory()
        super().__init__(self._emulator)

    def chosen(self, problem: GemmProblem) -> tuple[LaunchPlan, Binary]:
        """As `Carrier.chosen`."""
        if problem.groups is not None:
            # Others are few, and take less memory to remember.
            return chosen_on_emulator.__wrapped__(problem, self.spec)
        return chosen_on_emulator(problem, self.spec)

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """As `Carrier.launch`.

        Raises:
            SanitizerFinding: the device looks for faults and has found one.
        """
        if not plan.blocks:
            return
        scratch = Scratch.of(self._emulator, plan, arguments)
        bound = {**arguments, **scratch.arguments}
        if not self._emulator.sanitize:
            self._emulator.execute(binary, plan, bound)
            return
        found = self._emulator.launch(binary, plan, bound).findings
        if found:
            raise SanitizerFinding(f"'{plan.kernel}': {found[0].message}")


def chosen_on_gpu(problem: GemmProblem, gpu: GpuSpec) -> tuple[LaunchPlan, Binary]:
    """The launch for a problem on a board, by measurements and estimates.

    Raises:
        UnsupportedProblem: no kernel takes it.
        CompileError, CompilerMissing: as `compiled`.
    """
    from gemmkit.dispatch.choose import choose

    choice = choose(problem, gpu)
    return compiled(problem, choice.kernel, choice.config, gpu)


@lru_cache(maxsize=512)
def chosen_on_emulator(problem: GemmProblem, gpu: GpuSpec) -> tuple[LaunchPlan, Binary]:
    """The launch for a problem that the emulator runs fastest, for a board."""
    from gemmkit.dispatch.choose import choose

    with first_use():
        choice = choose(problem, gpu, emulated=True)
        return compiled(problem, choice.kernel, choice.config, gpu, assemble=False)


# --- which one ----------------------------------------------------------------------------------


@contextmanager
def carrier_on(device: Device | str | None) -> Iterator[Carrier]:
    """The carrier of a `compute_device`.

    Raises:
        UsageError, DeviceError: as `compute_device`.
    """
    own = compute_device(device)
    if not isinstance(own, int):
        yield _OnEmulator(own)
        return
    load("gemmkit.devices.staging", "gemmkit.dispatch.choose", "cuda.bindings.driver")
    from gemmkit.devices.staging import staging

    with staging(own) as gpu:
        yield _OnGpu(gpu)


def compute_device(device: Device | str | None) -> EmulatedDevice | int:
    """Where products of host arrays are computed: an emulator, or the GPU of an ordinal.

    By default that is the GPU if there is one, else the emulator. The emulator comes with an
    `EmulationWarning`, once, unless `device` asks for it or for either.

    Raises:
        UsageError: `device` is no device that computes here.
        DeviceError: there is no GPU, and one is asked for.
    """
    emulated = getattr(device, "kind", None) == "emulator"
    ordinal = 0 if emulated or device in ("auto", "cuda", None) else _ordinal(device)
    if device == "cuda" and (problem := _no_gpu()):
        raise DeviceError(f"no usable GPU: {problem}; device='emulator' needs none")
    if emulated or device == "emulator" or (device in ("auto", None) and _no_gpu()):
        load("gemmkit.devices.emulated", "gemmkit.dispatch.choose", "gemmkit.dispatch.prices")
        from gemmkit.devices.emulated import EmulatedDevice

        if device is None:
            _warn_once(_no_gpu())
        if emulated and not isinstance(device, EmulatedDevice):
            raise _no_device(device)
        return device if isinstance(device, EmulatedDevice) else _default_emulator()
    return ordinal


def _ordinal(device: object) -> int:
    """Which GPU a device of gemmkit is; 0 for the emulator by its name."""
    found = getattr(getattr(device, "context", None), "ordinal", None)
    if found is None and device != "emulator":
        raise _no_device(device)
    return int(found or 0)


def _no_device(device: object) -> UsageError:
    kind = UsageError if isinstance(device, str) else UnsupportedType
    return kind(f"device = {device!r}: use 'auto', 'cuda', 'emulator', or a device of open_device")


@cache
def _no_gpu() -> str | None:
    """Why there is no usable GPU, or None; asked once."""
    return gpu_problem()


@cache
def _default_emulator() -> EmulatedDevice:
    from gemmkit.devices.emulated import EmulatedDevice

    return EmulatedDevice(DEFAULT_BOARD)


# --- the warning --------------------------------------------------------------------------------

# Packages between a user's line and the warning: our own, and those that call us back.
_BETWEEN = ("gemmkit", "contextlib", "functools", "torch", "jax")

_warned = False


def _warn_once(reason: str | None) -> None:
    """Warn at the line that called gemmkit, the first time in this process.

    Args:
        reason: why there is no usable GPU.
    """
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"no usable GPU: {reason}. Products of arrays in host memory run on gemmkit's emulator, a "
        "thousand times slower than on a GPU; pass device='emulator' to silence this warning",
        EmulationWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """The `stacklevel` of the nearest frame outside of gemmkit, as `_warn_once` passes it."""
    level = 2
    frame = sys._getframe(level)
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    return level


def _is_between(module: str) -> bool:
    return module.partition(".")[0] in _BETWEEN
