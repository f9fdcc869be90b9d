"""CUDA streams that do as late, and in as odd an order, as their events allow: what lacks an event
goes wrong. Copies and events of the driver are played; launches come by `put`."""

import ctypes
import random
import threading
from collections import defaultdict, deque
from itertools import count
from types import SimpleNamespace

from cuda.bindings import driver

OK = driver.CUresult.CUDA_SUCCESS
BAD = driver.CUresult.CUDA_ERROR_INVALID_VALUE


class DeferredStreams:
    """`done` are the actions that were executed; nothing is until someone waits."""

    def __init__(self, seed):
        self.random, self.lock = random.Random(seed), threading.RLock()
        self.queues = defaultdict(deque)
        self.recorded, self.reached = defaultdict(int), defaultdict(int)
        self.numbers, self.pinned, self.done = count(1000), [], 0

    def put(self, stream, action):
        with self.lock:
            self.queues[stream].append((None, action))

    def _ready(self, stream):
        awaited = self.queues[stream][0][0]
        return awaited is None or self.reached[awaited[0]] >= awaited[1]

    def _until(self, reached):
        while True:
            with self.lock:
                if reached():
                    return
                ready = [each for each, queue in self.queues.items() if queue and self._ready(each)]
                assert ready, "streams wait for each other"
                _, action = self.queues[self.random.choice(ready)].popleft()
                action()
                self.done += 1

    def record(self, event, stream):
        # Whoever waits for the version meanwhile must find it in the queue.
        with self.lock:
            self.recorded[event] += 1
            version = self.recorded[event]
            self.put(stream, lambda: self._reach(event, version))
        return (OK,)

    def _reach(self, event, version):
        # On another stream, an earlier record may come later.
        self.reached[event] = max(self.reached[event], version)

    def wait(self, stream, event, _):
        with self.lock:
            self.queues[stream].append(((event, self.recorded[event]), lambda: None))
        return (OK,)

    def synchronize_event(self, event):
        version = self.recorded[event]
        self._until(lambda: self.reached[event] >= version)
        return (OK,)

    def synchronize_stream(self, stream):
        self._until(lambda: not self.queues[stream])
        return (OK,)

    def copy(self, target, source, nbytes, stream):
        self.put(stream, lambda: ctypes.memmove(int(target), int(source), nbytes))
        return (OK,)

    def copy_2d(self, asked, stream):
        host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        source = int(asked.srcHost if asked.srcMemoryType == host else asked.srcDevice)
        target = int(asked.dstHost if asked.dstMemoryType == host else asked.dstDevice)
        pitches, width, height = (asked.srcPitch, asked.dstPitch), asked.WidthInBytes, asked.Height

        def rows():
            for row in range(height):
                ctypes.memmove(target + row * pitches[1], source + row * pitches[0], width)

        self.put(stream, rows)
        return (OK,)

    def clear(self, address, value, nbytes, stream):
        self.put(stream, lambda: ctypes.memset(int(address), value, nbytes))
        return (OK,)

    def pin(self, nbytes, *_):
        kept = ctypes.create_string_buffer(nbytes)
        self.pinned.append(kept)
        return OK, ctypes.addressof(kept)

    def kind_of(self, _, address):
        for each in self.pinned:
            if 0 <= int(address) - ctypes.addressof(each) < len(each):
                return OK, int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
        return BAD, None

    def install(self, patch, gpu):
        """Have gemmkit use these streams on the GPU that `emulated_gpu` has installed."""
        new = lambda *_: (OK, next(self.numbers))  # noqa: E731
        played = {
            "cuStreamCreate": new,
            "cuEventCreate": new,
            "cuEventRecord": self.record,
            "cuStreamWaitEvent": self.wait,
            "cuEventSynchronize": self.synchronize_event,
            "cuStreamSynchronize": self.synchronize_stream,
            "cuMemcpyHtoDAsync": self.copy,
            "cuMemcpyDtoHAsync": self.copy,
            "cuMemcpy2DAsync": self.copy_2d,
            "cuMemsetD8Async": self.clear,
            "cuMemHostAlloc": self.pin,
            "cuPointerGetAttribute": self.kind_of,
            "cuMemFreeHost": lambda _: (OK,),
            "cuStreamDestroy": lambda _: (OK,),
            "cuEventDestroy": lambda _: (OK,),
        }
        for name, function in played.items():
            patch.setattr(driver, name, function)
        gpu.perform = self.put
        gpu.make_current = lambda: None
        gpu.allocate_apart = gpu.device.empty
        gpu.free_bytes = lambda: 1 << 30
        patch.setattr("gemmkit.devices.streamed_gpu.context_of", lambda ordinal: gpu)
        patch.setattr("gemmkit.devices.streamed_gpu._spare_staging", {})
        patch.setattr("gemmkit.ops.carriers._no_gpu", lambda: None)
        patch.setattr(
            "gemmkit.dispatch.choose.choose",
            lambda problem, spec, **_: gpu.choose(problem, spec),
        )
        return SimpleNamespace(context=gpu)
