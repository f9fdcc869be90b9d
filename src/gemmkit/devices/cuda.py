"""`CudaDevice`: an NVIDIA GPU that runs kernels and times them, by CUDA graphs of cuda.core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.context import context_of, refuse_forks
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.device import Buffer, Launch, Value, Work
from gemmkit.devices.host import host_environment, package_version
from gemmkit.devices.launcher import prepared_launches
from gemmkit.devices.limits import refusal
from gemmkit.devices.packing import preparing_launches
from gemmkit.devices.streams import stream_handle
from gemmkit.devices.tensor_maps import DRIVER_MAPS
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.tensor_maps import MapFormat


class CudaReplay:
    """Launches recorded as one CUDA graph."""

    def __init__(self, device: CudaDevice, graph: Any, kept: Sequence[object]) -> None:
        from cuda.core import EventOptions

        self._device, self._graph = device, graph
        # A graph holds addresses; what they belong to must stay.
        self._kept = list(kept)
        timing, gpu = EventOptions(timing_enabled=True), device.stream.device
        self._start, self._end = (gpu.create_event(timing) for _ in range(2))

    def microseconds(self) -> float:
        """Run the graph once more and wait: its time on the GPU, between two events."""
        stream = self._device.stream
        with cuda_errors("a timed launch"):
            stream.record(self._start)
            self._graph.launch(stream)
            stream.record(self._end)
            self._end.sync()
            return float(self._end - self._start) * 1e3


class CudaDevice:
    """The current CUDA device (the first that `CUDA_VISIBLE_DEVICES` leaves).

    `stream` is the cuda.core stream on which it works, `context` what it shares with the library.
    The object belongs to the thread that made it. `printf_bytes` is the size of the buffer in which
    the GPU keeps what kernels print until they have ended; by default as the driver has it.

    Raises:
        DeviceError: there is no driver or no GPU, or it is too old or taken.
    """

    kind = "cuda"
    maps: MapFormat = DRIVER_MAPS

    def __init__(self, *, printf_bytes: int | None = None) -> None:
        refuse_forks()
        with cuda_errors("opening the GPU"):
            from cuda.bindings import driver
            from cuda.core import Device

            gpu = Device()
            gpu.set_current()
            self.stream = gpu.create_stream()
        self.context = context_of(gpu.device_id)
        self.name, self.spec = self.context.name, self.context.spec
        if printf_bytes is not None:
            with cuda_errors(f"setting aside {printf_bytes:,} bytes for printf"):
                limit = driver.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE
                result(driver.cuCtxSetLimit(limit, printf_bytes))

    def empty(self, nbytes: int) -> Buffer:
        """Device memory, its content undefined, aligned to 256 bytes and freed with the buffer.

        Raises:
            DeviceError: there is not enough of it.
        """
        return self.context.allocate_apart(nbytes)

    def upload(
        self,
        array: NDArray[Any],
        *,
        initialized: bool = True,  # noqa: ARG002 (a GPU has no sanitizer of its own)
    ) -> Buffer:
        """A device copy of a C-contiguous array."""
        from cuda.bindings import driver

        buffer = self.empty(array.nbytes)
        if array.nbytes:
            with cuda_errors("copying to the GPU"):
                source = np.ascontiguousarray(array)
                handle = self.stream.handle
                result(
                    driver.cuMemcpyHtoDAsync(
                        buffer.address, source.ctypes.data, source.nbytes, handle
                    )
                )
                self.stream.sync()
        return buffer

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """Fill a C-contiguous array from the start of a buffer, after all work on `stream`."""
        from cuda.bindings import driver

        if not out.flags.c_contiguous or out.nbytes > buffer.nbytes:
            raise ValueError(f"cannot copy {buffer.nbytes} bytes into {out.nbytes} of this array")
        with cuda_errors("copying from the GPU"):
            if out.nbytes:
                handle = self.stream.handle
                result(
                    driver.cuMemcpyDtoHAsync(out.ctypes.data, buffer.address, out.nbytes, handle)
                )
            self.stream.sync()

    def launch(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> Launch:
        """Run the plan's grid and wait.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """
        try:
            self.work(binary, plan, arguments)(self.stream)
            with cuda_errors(f"'{plan.kernel}'"):
                self.stream.sync()
        except DeviceError as error:
            static = binary.resources.shared_bytes if binary.resources is not None else 0
            reason = refusal(self.spec, binary, plan, static)
            if reason is None:
                raise
            raise DeviceError(f"{reason}. {error}") from error
        return Launch()

    def work(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> Work:
        """A function that puts this launch on a stream and does not wait.

        The stream is a cuda.core one or any object with `__cuda_stream__`, such as PyTorch's.
        Copies of prepared operands are there when this returns.

        Raises:
            DeviceError: the driver refuses a kernel.
        """
        for other, code in preparing_launches(plan, binary):
            self.launch(code, other, arguments)
        launches = prepared_launches(self.context, plan, binary, arguments)
        if not launches:
            return _nothing

        def enqueue(stream: Any) -> None:
            for launch in launches:
                launch.run((), stream_handle(stream))

        return enqueue

    def record(self, works: Sequence[Work], kept: Sequence[object] = ()) -> CudaReplay:
        """Record launches, one after the other, as a CUDA graph that can be replayed and timed.

        `kept` are the buffers that they use; the replay holds on to them.
        """
        with cuda_errors("recording launches"):
            builder = self.stream.create_graph_builder().begin_building()
            try:
                for work in works:
                    work(self.stream)
                graph = builder.end_building().complete()
            except BaseException:
                # The stream must leave capture; the first error is the one to tell.
                with suppress(Exception):
                    builder.close()
                raise
            return CudaReplay(self, graph, kept)

    def environment(self) -> dict[str, Any]:
        """GPU, driver, clocks now and at most (where the driver tells), and the host.

        What compiled a kernel is known of its binary.
        """
        found: dict[str, Any] = {
            "gpu": self.name,
            "compute_capability": str(self.spec.capability),
            "cuda_core": package_version("cuda-core"),
            "cuda_bindings": package_version("cuda-bindings"),
        }
        return found | self._management() | host_environment()

    def _management(self) -> dict[str, Any]:
        """What NVML adds; containers and old drivers lack parts of it, which are left out."""
        from cuda.core import system

        def clock() -> Any:
            return self.stream.device.to_system_device().get_clock("sm")

        probes: dict[str, Callable[[], Any]] = {
            "cuda_driver": lambda: _dotted(system.get_user_mode_driver_version()),
            "driver": lambda: _dotted(system.get_kernel_mode_driver_version()),
            "sm_clock_mhz": lambda: clock().get_current_mhz(),
            "sm_clock_max_mhz": lambda: clock().get_max_mhz(),
        }
        found: dict[str, Any] = {}
        for name, probe in probes.items():
            with suppress(Exception):
                found[name] = probe()
        return found


def copy_work(source: Buffer, target: Buffer) -> Work:
    """A function that puts a copy of all of `source` to `target` on a stream and does not wait."""
    from cuda.bindings import driver

    def enqueue(stream: Any) -> None:
        with cuda_errors("copying on the GPU"):
            result(
                driver.cuMemcpyDtoDAsync(
                    target.address, source.address, source.nbytes, stream.handle
                )
            )

    return enqueue


def _nothing(stream: Any) -> None:
    """The work of an empty grid."""


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))
