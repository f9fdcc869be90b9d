"""Arrays on a GPU that the emulator plays: what is prepared, patched and launched, really runs.

`GpuArray` is a library of arrays in the emulator's memory; `EmulatedContext` stands for the GPU's
context, and `launch` for the driver's call.
"""

import ctypes
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import numpy as np

from gemmkit.devices import driver
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.packing import entry_parameters
from gemmkit.devices.scratch import HeldScratch, ScratchPool
from gemmkit.dispatch.choose import choose
from gemmkit.emulator import LaunchRequest, load
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.gpu import BOARDS
from gemmkit.ops import arrays, compiled, grouped_warm, product, warm
from gemmkit.ops.operands import Operand, View
from gemmkit.tensor_maps import MAP_BYTES

STREAM = 77


class GpuArray:
    """Elements in the emulator's memory; indexing and `T` make views."""

    gpu = None

    def __init__(self, values, buffer):
        self.values, self.buffer = values, buffer

    @classmethod
    def of(cls, values):
        values = np.ascontiguousarray(values)
        made = cls.empty(values.shape, values.dtype)
        made.values[...] = values
        return made

    @classmethod
    def empty(cls, shape, dtype):
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = cls.gpu.device.empty(nbytes)
        view = cls.gpu.device.memory.view(buffer.address, nbytes)
        return cls(view.view(dtype).reshape(shape), buffer)

    def __getitem__(self, index):
        return GpuArray(self.values[index], self.buffer)

    @property
    def T(self):
        return GpuArray(self.values.T, self.buffer)

    @property
    def shape(self):
        return self.values.shape

    @property
    def ndim(self):
        return self.values.ndim

    @property
    def dtype(self):
        return self.values.dtype


class Library:
    """What `gemmkit.ops.libraries` has a module for, of `GpuArray`."""

    NAME = "the emulated GPU's arrays"
    WRITABLE = True
    CURRENT_STREAMS = True

    def __init__(self):
        self.stream = STREAM
        self.overwrites = []

    def read(self, array, role):
        values = array.values
        view = View(values.shape, tuple(step // values.itemsize for step in values.strides))
        # NumPy has no types of 8 bits: bytes stand for one.
        kind = "float8_e4m3" if values.dtype == np.uint8 else values.dtype.name
        return Operand(array, values.ctypes.data, view, kind, 0, writable=True)

    def empty(self, like, shape, dtype, stream=None):
        return self.read(GpuArray.empty(shape, dtype), "the result")

    def empty_like(self, target, *, by_columns):
        shape = target.view.shape
        if by_columns:
            flipped = GpuArray.empty((*shape[:-2], shape[-1], shape[-2]), target.dtype)
            return self.read(GpuArray(flipped.values.swapaxes(-1, -2), flipped.buffer), "")
        return self.read(GpuArray.empty(shape, target.dtype), "")

    def finished(self, result):
        return result.array

    def copied(self, operand, shape, *, by_columns):
        source = np.broadcast_to(operand.array.values, shape)
        if by_columns:
            flipped = GpuArray.of(source.swapaxes(-1, -2))
            return self.read(GpuArray(flipped.values.swapaxes(-1, -2), flipped.buffer), "")
        return self.read(GpuArray.of(source), "")

    def assign(self, target, source):
        target.array.values[...] = source.array.values

    def current_stream(self, device):
        return self.stream

    @contextmanager
    def on_stream(self, stream, device):
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def wait_for(self, operand, stream):
        pass

    def written_on(self, operand, stream):
        pass

    def overwritten(self, array):
        self.overwrites.append(array)

    def temporary(self, nbytes, device):
        return None

    def watched(self):
        return False

    def glance(self, array):
        values = array.values
        return values.ctypes.data, (values.shape, values.strides, values.dtype)

    def glance_at_matrices(self, a, b, out):
        (address_a, key_a), (address_b, key_b) = self.glance(a), self.glance(b)
        address, key = (0, None) if out is None else self.glance(out)
        return address_a, address_b, address, (key_a, key_b, key)

    def glance_at_strides(self, a, b, out):
        found = [each.values for each in (a, b, out)]
        return *(each.ctypes.data for each in found), tuple(each.strides for each in found)

    def glance_at_many(self, members):
        values = [each.values for each in members]
        (dtype,) = {each.dtype for each in values}
        return arrays.Glances(
            np.array([each.ctypes.data for each in values], np.int64),
            tuple(each.shape for each in values),
            tuple(tuple(step // dtype.itemsize for step in each.strides) for each in values),
            dtype,
        )

    def new_matrices(self, like, rows, columns, dtype):
        made = [self.new(like, (number, columns), dtype) for number in rows]
        return [array for array, _ in made], np.array([address for _, address in made], np.int64)

    def new(self, like, shape, dtype):
        made = GpuArray.empty(shape, like.values.dtype if dtype is None else dtype)
        return made, made.values.ctypes.data


class EmulatedGpu:
    """Context and driver in one; `launches` are (grid, stream) of those that were made."""

    ordinal = 0

    def __init__(self, board="h100"):
        self.device = EmulatedDevice(BOARDS[board])
        self.spec = self.device.spec
        self.handle = 0x77
        self.scratch, self.held_scratch = ScratchPool(self), HeldScratch(self)
        self.launches, self.chosen, self.failures, self.finished = [], [], [], []
        # Streams on which numbers were written.
        self.floats = []
        self.capturing = 0
        self.pick = None
        self._maps = []
        self._functions, self._numbers = {}, count(1)
        self._lock = threading.Lock()

    @contextmanager
    def current(self):
        yield

    def function(self, plan, binary):
        number = next(self._numbers)
        taken = entry_parameters(binary.ptx, binary.entry)
        self._functions[number] = load(binary.ptx, binary.entry), taken
        return number

    def allocate(self, nbytes):
        return self.device.empty(nbytes)

    def zeros(self, nbytes):
        return self.device.upload(np.zeros(nbytes, np.uint8))

    def set_float(self, address, value, stream):
        self.floats.append(stream)
        self.perform(
            stream, lambda: ctypes.c_float.from_address(address).__setattr__("value", value)
        )

    def launch(self, configuration, function, parameters, _):
        if self.failures:
            return self.failures.pop()
        seen = driver.LaunchConfiguration.from_address(configuration.value)
        kernel, taken = self._functions[function.value]
        places = (ctypes.c_void_p * len(taken)).from_address(parameters.value)
        packed = bytearray(max((each.offset + each.size for each in taken), default=0))
        for place, each in zip(places, taken, strict=True):
            value = ctypes.string_at(place, each.size)
            if each.size == MAP_BYTES:
                value = self._map(value)
            packed[each.offset : each.offset + each.size] = value
        grid, block = tuple(seen.grid), tuple(seen.block)
        cluster = tuple(seen.attributes[0].cluster) if seen.attribute_count else None
        request = LaunchRequest(grid, block, bytes(packed), seen.shared_bytes, cluster=cluster)
        with self._lock:
            self.launches.append((request.grid, seen.stream))
        self.perform(seen.stream, lambda: kernel.execute(request, self.device.memory))
        return 0

    def perform(self, stream, action):
        """Do at once what is put on a stream."""
        with self._lock:
            action()

    def encode(self, tensor_map):
        """As the driver does, so that a map begins with its address; a number tells the rest."""
        self._maps.append(tensor_map)
        words = np.zeros(MAP_BYTES // 8, np.uint64)
        words[:2] = tensor_map.address, len(self._maps)
        return words.tobytes()

    def _map(self, driver_encoded):
        """The map, as the emulator takes it, at the address that is there by now."""
        address, number = np.frombuffer(driver_encoded, np.uint64)[:2].tolist()
        return encoded(replace(self._maps[number - 1], address=address)) if number else bytes(128)

    def query(self, stream, status):
        status._obj.value = self.capturing
        return 0

    def choose(self, problem, spec):
        """Small tiles, so that few kernels are compiled, or what `pick` makes of the problem."""
        self.chosen.append(problem)
        if self.pick is not None:
            return self.pick(problem)
        return choose(problem, spec, emulated=True)


def install(patch):
    """Have gemmkit take the emulated GPU; the GPU and its library."""
    gpu, library = EmulatedGpu(), Library()
    patch.setattr(GpuArray, "gpu", gpu)
    # The emulator runs PTX: assembling it takes as long again as making it.
    binary = compiled._binary
    patch.setattr(compiled, "_binary", lambda *code: binary(*code[:-1], False))
    patch.setitem(arrays._PACKAGES, GpuArray.__module__.partition(".")[0], "emulated")
    own = arrays._module
    patch.setattr(arrays, "_module", lambda name: library if name == "emulated" else own(name))
    patch.setattr("gemmkit.devices.context.context_of", lambda ordinal: gpu)
    patch.setattr("gemmkit.ops.prepared.choose", gpu.choose)
    patch.setattr("gemmkit.ops.making.choose", gpu.choose)
    patch.setattr("gemmkit.ops.making.finish", lambda stream, context: gpu.finished.append(stream))
    patch.setattr("gemmkit.devices.launcher.driver_encoded", gpu.encode)
    patch.setattr(driver, "launcher", lambda: gpu.launch)
    patch.setattr(driver, "capture_query", lambda: gpu.query)
    patch.setattr(driver, "records_dependent_launches", lambda: False)
    for kind in list(warm.LIBRARIES):
        patch.delitem(warm.LIBRARIES, kind)
    patch.setattr(product, "_ready", product._Ready())
    patch.setattr(grouped_warm, "_ready", grouped_warm._Ready())
    return gpu, library
