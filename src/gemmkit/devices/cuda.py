"""`CudaDevice`: an NVIDIA GPU through cuda.core; it runs kernels and times them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.cuda_spec import spec_of
from gemmkit.devices.device import Launch, Work
from gemmkit.devices.host import host_environment, package_version
from gemmkit.devices.limits import refusal
from gemmkit.devices.packing import ParameterSpace, bound_values, packed
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

if TYPE_CHECKING:
    from gemmkit.devices.device import Buffer


class CudaBuffer:
    """Memory on the GPU, aligned to 256 bytes, freed with this object."""

    def __init__(self, nbytes: int) -> None:
        from cuda.bindings import driver

        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"):
            address = result(driver.cuMemAlloc(max(nbytes, 1)))
        self.address = int(address)
        self.nbytes = nbytes
        # An error is not raised: it can only repeat one that a launch or a copy has reported.
        weakref.finalize(self, driver.cuMemFree, address).atexit = False


class CudaReplay:
    """Launches recorded as one CUDA graph."""

    def __init__(self, device: CudaDevice, graph: Any, kept: Sequence[object]) -> None:
        from cuda.core import EventOptions

        self._device, self._graph = device, graph
        # A graph holds addresses; what they belong to must stay.
        self._kept = list(kept)
        timing = EventOptions(timing_enabled=True)
        self._start, self._end = (device.context.create_event(timing) for _ in range(2))

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

    `stream` is the cuda.core stream on which it works, `context` its cuda.core device. The object
    belongs to the thread that made it. `printf_bytes` is the size of the buffer in which the GPU
    keeps what kernels print until they have ended; by default as the driver has it.

    Raises:
        DeviceError: there is no driver or no GPU, or it is too old or taken.
    """

    kind = "cuda"

    def __init__(self, *, printf_bytes: int | None = None) -> None:
        with cuda_errors("opening the GPU"):
            from cuda.bindings import driver
            from cuda.core import Device

            self.context = Device()
            self.context.set_current()
            self.stream = self.context.create_stream()
            name, properties = self.context.name, self.context.properties
            major, minor = self.context.compute_capability
        if printf_bytes is not None:
            with cuda_errors(f"setting aside {printf_bytes:,} bytes for printf"):
                limit = driver.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE
                result(driver.cuCtxSetLimit(limit, printf_bytes))
        self.name = str(name)
        self.spec = spec_of(self.name, (int(major), int(minor)), properties)
        self._kernels: dict[tuple[str, str], Any] = {}
        self._libraries: dict[tuple[str, str], Any] = {}

    def empty(self, nbytes: int) -> CudaBuffer:
        """Device memory, its content undefined.

        Raises:
            DeviceError: there is not enough of it.
        """
        return CudaBuffer(nbytes)

    def upload(
        self,
        array: NDArray[Any],
        *,
        initialized: bool = True,  # noqa: ARG002 (a GPU has no sanitizer of its own)
    ) -> CudaBuffer:
        """A device copy of a C-contiguous array."""
        from cuda.bindings import driver

        buffer = CudaBuffer(array.nbytes)
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

    def launch(
        self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, int | float]
    ) -> Launch:
        """Run the plan's grid and wait.

        Raises:
            DeviceError: the launch failed, or the kernel did.
        """
        try:
            work = self.work(binary, plan, arguments)
            with cuda_errors(f"'{plan.kernel}'"):
                work(self.stream)
                self.stream.sync()
        except DeviceError as error:
            static = binary.resources.shared_bytes if binary.resources is not None else 0
            reason = refusal(self.spec, binary, plan, static)
            if reason is None:
                raise
            raise DeviceError(f"{reason}. {error}") from error
        return Launch()

    def work(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, int | float]) -> Work:
        """A function that puts this launch on a stream and does not wait.

        The stream is a cuda.core one or any object with `__cuda_stream__`, such as PyTorch's.
        """
        from cuda.core import LaunchConfig, Stream, launch

        if plan.blocks == 0:
            return _nothing
        kernel = self._kernel(binary, plan)
        if plan.constants:
            self._set_variables(binary, plan)
        values = bound_values(binary, plan, arguments)
        if plan.structs:
            return self._packed_work(kernel, plan, packed(binary, values))
        # cuda.core counts the grid in clusters where there are any.
        clusters = None if plan.cluster == (1, 1, 1) else plan.cluster
        grid = tuple(blocks // size for blocks, size in zip(plan.grid, plan.cluster, strict=True))
        config = LaunchConfig(
            grid=grid, block=plan.block, cluster=clusters, shmem_size=plan.shared_bytes
        )

        def enqueue(stream: Any) -> None:
            if not isinstance(stream, Stream):
                stream = self.context.create_stream(stream)
            launch(stream, config, kernel, *values)

        return enqueue

    def _packed_work(self, kernel: Any, plan: LaunchPlan, parameters: bytes) -> Work:
        """The launch of a kernel that takes structs, which cuda.core does not pass."""
        from cuda.bindings import driver
        from cuda.core import Stream

        space = ParameterSpace(parameters)
        function = driver.CUfunction(int(kernel.handle))

        def enqueue(stream: Any) -> None:
            if not isinstance(stream, Stream):
                stream = self.context.create_stream(stream)
            shared, handle, pointer = plan.shared_bytes, stream.handle, space.pointer.value
            result(
                driver.cuLaunchKernel(function, *plan.grid, *plan.block, shared, handle, 0, pointer)
            )

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
        """GPU, driver, compiler, clocks now and at most (where the driver tells), and the host."""
        found: dict[str, Any] = {
            "gpu": self.name,
            "compute_capability": str(self.spec.capability),
            "nvrtc": package_version("nvidia-cuda-nvrtc"),
            "cuda_core": package_version("cuda-core"),
            "cuda_bindings": package_version("cuda-bindings"),
        }
        return found | self._management() | host_environment()

    def _management(self) -> dict[str, Any]:
        """What NVML adds; containers and old drivers lack parts of it, which are left out."""
        from cuda.core import system

        def clock() -> Any:
            return self.context.to_system_device().get_clock("sm")

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

    def _kernel(self, binary: Binary, plan: LaunchPlan) -> Any:
        """The loaded kernel, with leave to use as much dynamic shared memory as the plan asks."""
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        kernel = self._kernels.get((binary.key, binary.entry))
        with cuda_errors(f"loading '{plan.kernel}'"):
            if kernel is None:
                # Without a cubin, the driver assembles the PTX.
                code = (
                    ObjectCode.from_cubin(binary.cubin)
                    if binary.cubin
                    else ObjectCode.from_ptx(binary.ptx.encode())
                )
                kernel = code.get_kernel(binary.entry)
                self._kernels[binary.key, binary.entry] = kernel
                self._libraries[binary.key, binary.entry] = code
            if plan.shared_bytes:
                limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                result(
                    driver.cuKernelSetAttribute(
                        limit, plan.shared_bytes, kernel.handle, self.context.device_id
                    )
                )
        return kernel

    def _set_variables(self, binary: Binary, plan: LaunchPlan) -> None:
        """Fill `__constant__` and `__device__` variables, as `cudaMemcpyToSymbol` does."""
        from cuda.bindings import driver

        from gemmkit.devices.variables import find_symbol, variable_symbols

        for name, data in plan.constants:
            symbol = find_symbol(name, variable_symbols(binary.ptx)) if data else None
            if symbol is None:
                continue
            with cuda_errors(f"setting '{name}'"):
                library = self._libraries[binary.key, binary.entry].handle
                address = result(driver.cuLibraryGetGlobal(library, symbol.encode()))
                result(driver.cuMemcpyHtoD(address, data, len(data)))


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
