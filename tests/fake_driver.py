"""CUDA's driver without a GPU: what `cuda.bindings.driver` is asked for, answered and noted.

Memory is the host's, and launches compute nothing: they are noted as `Launched`.
"""

import ctypes
import gc
from types import SimpleNamespace
from typing import NamedTuple

from cuda.bindings import driver

# What an H100 tells of itself; of all else, 1.
FIGURES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 132,
}
NAME = b"NVIDIA H100 80GB HBM3"
MOST_BYTES = 1 << 40

OK = driver.CUresult.CUDA_SUCCESS
NO_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class Launched(NamedTuple):
    """What `cuLaunchKernelEx` was given; `parameters` is the whole parameter space."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    stream: int
    parameters: bytes
    dependent: bool

    @property
    def words(self):
        return memoryview(self.parameters).cast("Q").tolist()


class FakeDriver:
    """`calls` are those that matter, with their arguments; `pool_limit` is its pool's."""

    def __init__(self):
        self.calls, self.pool_limit, self.memory = [], 0, {}
        self.depth = 0
        # What the next launches answer, the last first.
        self.errors = []
        # Bytes of the parameters at each list of their addresses.
        self.sizes = {}

    def note(self, *call):
        self.calls.append(call)
        return (OK,)

    def named(self, name):
        return [rest for kind, *rest in self.calls if kind == name]

    def push(self, _):
        self.depth += 1
        return (OK,)

    def pop(self):
        self.depth -= 1
        return OK, 1

    def set_pool(self, pool, attribute, value):
        self.pool_limit = int(value)
        return self.note("limit", pool, self.pool_limit)

    def allocate(self, nbytes, pool, stream):
        if nbytes > MOST_BYTES:
            return NO_MEMORY, 0
        kept = ctypes.create_string_buffer(nbytes + 256)
        address = -(-ctypes.addressof(kept) // 256) * 256
        self.memory[address] = kept
        self.note("allocate", address, nbytes, pool, stream)
        return OK, address

    def free(self, address, stream):
        assert self.depth == 1
        return self.note("free", address, stream)

    def pin(self, nbytes, *_):
        kept = ctypes.create_string_buffer(nbytes)
        self.memory[ctypes.addressof(kept)] = kept
        return OK, ctypes.addressof(kept)

    def copy(self, target, source, nbytes, _):
        ctypes.memmove(target, source, nbytes)
        return (OK,)

    def functions(self):
        def answer(*values):
            return lambda *_: (OK, *values)

        return {
            "cuInit": answer(),
            "cuDeviceGet": answer(7),
            "cuDeviceGetName": lambda length, _: (OK, NAME.ljust(length, b"\0")),
            "cuDeviceGetAttribute": lambda which, _: (OK, FIGURES.get(which.name, 1)),
            "cuDevicePrimaryCtxRetain": answer(0x77),
            "cuCtxPushCurrent": self.push,
            "cuCtxPopCurrent": self.pop,
            "cuThreadExchangeStreamCaptureMode": answer(0),
            "cuStreamCreate": answer(0x55),
            "cuStreamSynchronize": lambda stream: self.note("wait", stream),
            "cuDeviceGetMemPool": answer(0x99),
            "cuMemPoolGetAttribute": lambda *_: (OK, self.pool_limit),
            "cuMemPoolSetAttribute": self.set_pool,
            "cuMemAllocFromPoolAsync": self.allocate,
            "cuMemFreeAsync": self.free,
            "cuMemAlloc": lambda nbytes: self.allocate(nbytes, None, None),
            "cuMemFree": lambda address: self.free(address, None),
            "cuMemcpyHtoD": lambda target, data, nbytes: self.note("variable", target, data),
            "cuCtxSetCurrent": lambda context: self.note("current", context),
            "cuLibraryGetGlobal": lambda _, name: (self.note("symbol", name)[0], 0x44, 8),
            "cuMemsetD8Async": lambda *given: self.note("set", *given),
            "cuMemsetD32Async": lambda *given: self.note("set words", *given),
            "cuMemHostAlloc": self.pin,
            "cuMemcpyHtoDAsync": self.copy,
            "cuMemcpyDtoHAsync": self.copy,
            "cuEventCreate": answer(1),
            "cuEventRecord": answer(),
            "cuEventSynchronize": answer(),
            "cuLibraryLoadData": lambda code, *_: (self.note("library", code)[0], 0x11),
            "cuLibraryGetKernel": lambda _, name: (self.note("kernel", name)[0], 0x22),
            "cuKernelGetFunction": answer(0x33),
            "cuFuncSetAttribute": lambda function, _, value: self.note("shared", function, value),
        }

    def launch(self, configuration, function, parameters, _):
        from gemmkit.devices.driver import LaunchConfiguration

        def attribute(number, default):
            found = (each for each in seen.attributes[: seen.attribute_count])
            return next((tuple(each.value) for each in found if each.id == number), default)

        seen = LaunchConfiguration.from_address(configuration.value)
        cluster = attribute(4, (1, 1, 1))
        start = ctypes.c_void_p.from_address(parameters.value).value
        given = ctypes.string_at(start, self.sizes[parameters.value])
        launched = Launched(
            *(function.value, tuple(seen.grid), tuple(seen.block), cluster),
            *(seen.shared_bytes, seen.stream or 0, given),
            attribute(6, (0, 0, 0))[0] == 1,
        )
        self.calls.append(("launch", launched))
        return self.errors.pop() if self.errors else 0


def install(patch):
    """Have gemmkit find this driver, and a GPU; `patch(object, name, value)` sets an attribute."""
    # What earlier tests left gives its memory back to its own driver.
    gc.collect()
    fake = FakeDriver()
    for name, function in fake.functions().items():
        patch(driver, name, function)
    import gemmkit.devices.driver as launches
    from gemmkit.devices import launcher

    class ParameterSpace(launcher.ParameterSpace):
        """Tells the driver how large it is, which a real one knows of the kernel."""

        def __init__(self, packed, offsets):
            super().__init__(packed, offsets)
            fake.sizes[self.pointer.value] = len(packed)

    patch(launcher, "ParameterSpace", ParameterSpace)
    patch(launches, "library", lambda: SimpleNamespace(cuLaunchKernelEx=fake.launch))
    patch(launches, "records_dependent_launches", lambda: True)
    patch(launches, "capture_query", lambda: lambda *_: 1)
    return fake
