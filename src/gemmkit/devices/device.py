"""The one protocol that both devices follow; nothing above asks which of the two it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import DeviceError
from gemmkit.findings import Finding
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.operand_copies import PREPARED
from gemmkit.kernels.plan import ARRIVAL_ARGUMENTS, OFFSETS, OWN_ROWS, SCALE_ARGUMENTS, LaunchPlan
from gemmkit.record import AccessCounts
from gemmkit.tensor_maps import MapFormat


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch showed: counters where the device counts, seconds where it emulates.

    `line_counters` holds the same metrics per (file, line) of the source, `accesses` the counts of
    each memory instruction. `findings` are a sanitizer's, where the device has one switched on,
    `printed` the lines that the kernel printed; a GPU writes them to standard output itself.
    """

    counters: Mapping[str, float] = field(default_factory=dict)
    line_counters: Mapping[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)
    accesses: tuple[AccessCounts, ...] = ()
    findings: tuple[Finding, ...] = ()
    printed: tuple[str, ...] = ()
    emulation_seconds: float | None = None


# An argument's value: a number, an address, or the bytes of what is passed by value.
Value = int | float | bytes


class Buffer(Protocol):
    """Device memory: `address` as the kernel sees it, `nbytes` in size."""

    @property
    def address(self) -> int:
        """Device address of the first byte."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


class Transfers(Protocol):
    """The memory of a board, and copies there and back."""

    spec: GpuSpec

    def empty(self, nbytes: int) -> Buffer:
        """Device memory of that size, its content undefined, aligned to 256 bytes.

        Raises:
            DeviceError: there is not enough memory.
        """

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A device copy of a C-contiguous array.

        Raises:
            DeviceError: there is not enough memory.
        """

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """Copy from the start of `buffer` into a C-contiguous array, waiting for running work."""


class Device(Transfers, Protocol):
    """A place that runs kernels."""

    kind: str
    # How it holds tensor maps in memory.
    maps: MapFormat

    def upload(self, array: NDArray[Any], *, initialized: bool = True) -> Buffer:
        """As `Transfers.upload`.

        Without `initialized` the bytes count as never written, for a sanitizer that minds.
        """

    def launch(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> Launch:
        """Run the plan's grid and wait. `arguments` binds each name of the plan's signature.

        Copies of prepared operands are made first.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """

    def environment(self) -> dict[str, Any]:
        """What a result measured here depends on: board, driver, clocks, host, versions."""


# Puts a launch on a stream (a cuda.core one) and does not wait for it.
Work = Callable[[Any], None]


class Replay(Protocol):
    """Launches recorded once, to be run again and again."""

    def microseconds(self) -> float:
        """Run them all once more, one after the other, and wait: the time that the device took."""


@runtime_checkable
class TimedDevice(Device, Protocol):
    """A device with a clock worth reading: one that runs kernels at its own speed."""

    stream: Any

    def work(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> Work:
        """The launch that `Device.launch` would make, to be put on a stream later.

        Copies of prepared operands are made at once, so that they are no part of it.
        """

    def record(self, works: Sequence[Work], kept: Sequence[object] = ()) -> Replay:
        """Record launches in their order; `kept` are the buffers that they use."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a launch needs besides its matrices; None where it needs none.

    Launches that follow each other may share it, launches that overlap may not. `prepared` is that
    of copies of prepared operands, by argument.
    """

    workspace: Buffer | None = None
    semaphores: Buffer | None = None
    table: Buffer | None = None
    products: Mapping[str, int] = field(default_factory=dict)
    prepared: Mapping[str, Buffer] = field(default_factory=dict)

    @classmethod
    def of(cls, device: Device, plan: LaunchPlan, arguments: Mapping[str, int | float]) -> Scratch:
        """Allocate what the plan needs on the device, for the matrices in the arguments.

        Raises:
            DeviceError: there is not enough memory.
        """
        zeros = np.zeros(plan.semaphores, np.int32)
        found = cls(
            workspace=device.empty(plan.workspace_bytes) if plan.workspace_bytes else None,
            semaphores=device.upload(zeros) if plan.semaphores else None,
        )
        return found.with_matrices(device, plan, arguments)

    def with_matrices(
        self, device: Device, plan: LaunchPlan, arguments: Mapping[str, int | float]
    ) -> Scratch:
        """The same memory for other matrices: only a table of products, and memory of prepared
        operands, are new.

        Raises:
            DeviceError: there is not enough memory.
        """
        found = self
        if plan.prepared:
            made = {each.name: device.empty(each.nbytes) for each in plan.prepared}
            found = replace(found, prepared=made)
        if plan.table is not None:
            table = device.upload(plan.table.of_storage(arguments, device.maps))
            found = replace(found, table=table, products=plan.table.arguments)
        return found

    def check(self, device: Device, plan: LaunchPlan) -> None:
        """Check that a launch left all semaphores at zero, as the next one needs them.

        Raises:
            DeviceError: it did not.
        """
        if self.semaphores is None:
            return
        counters = np.empty(plan.semaphores, np.int32)
        device.download(self.semaphores, counters)
        odd = np.flatnonzero(counters)
        if odd.size:
            raise DeviceError(
                f"'{plan.kernel}' left {odd.size} of its {plan.semaphores} semaphores other "
                f"than zero, number {odd[0]} at {counters[odd[0]]}: its next launch would go wrong"
            )

    @property
    def arguments(self) -> dict[str, int | float]:
        """The addresses by argument name, 0 if there is none, and the arguments of a table."""
        buffers = {"workspace": self.workspace, "semaphores": self.semaphores}
        # One kernel reads one of these.
        buffers |= {"groups": self.table, OFFSETS: self.table}
        buffers |= self.prepared
        return {**{name: _address(each) for name, each in buffers.items()}, **self.products}

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers that exist."""
        every = (self.workspace, self.semaphores, self.table, *self.prepared.values())
        return tuple(each for each in every if each is not None)


def _address(buffer: Buffer | None) -> int:
    return buffer.address if buffer is not None else 0


# How each name is passed: C type of the kernel parameter, as a NumPy scalar type.
ARGUMENT_TYPES: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("M", "N", "K", "lda", "ldb", "ldc", "batch", "ldr", "ldx"), np.int32),
    **dict.fromkeys(("stride_a", "stride_b", "stride_c", "stride_r", "stride_x"), np.int64),
    **dict.fromkeys(("alpha", "beta", "scale"), np.float32),
    **dict.fromkeys(("A", "B", "C", "bias", "workspace", "semaphores"), np.uint64),
    **dict.fromkeys(("residual", "auxiliary", "scale_a", "scale_b", "scale_result"), np.uint64),
    **dict.fromkeys(SCALE_ARGUMENTS[1:4] + SCALE_ARGUMENTS[5:], np.int64),
    **dict.fromkeys(PREPARED, np.uint64),
    # Of a table of products: its address, its length, and the tiles of all.
    "groups": np.uint64,
    **dict.fromkeys(("group_count", "tile_count"), np.int32),
    # Where the rows of each group end, of one A whose rows are divided among groups.
    OFFSETS: np.uint64,
    # Of rows of A that come from other GPUs, and of this GPU's own.
    **dict.fromkeys((ARRIVAL_ARGUMENTS[0], OWN_ROWS[0]), np.uint64),
    **dict.fromkeys((*ARRIVAL_ARGUMENTS[1:], *OWN_ROWS[1:]), np.int32),
}
