"""A GPU without hardware: NumPy computes what launches ask for, and a formula tells their times."""

import hashlib

import numpy as np

from gemmkit.devices.device import Launch
from gemmkit.emulator.isa.tensor_maps import EMULATED_MAPS
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS
from gemmkit.jit.binary import Binary, Resources
from gemmkit.storage import matrix


def fake_cost(plan):
    """Microseconds that follow from the configuration, from 50 to 100."""
    return 50.0 * (1 + hashlib.sha256(plan.entry.encode()).digest()[0] / 255)


class FakeBuffer:
    def __init__(self, address, storage):
        self.address, self.storage, self.nbytes = address, storage, storage.nbytes


class FakeReplay:
    def __init__(self, device, works):
        self.device, self.works = device, works

    def microseconds(self):
        self.device.replays += 1
        return sum(work.microseconds for work in self.works)


class FakeWork:
    def __init__(self, microseconds):
        self.microseconds = microseconds

    def __call__(self, stream):
        assert stream == "the stream"


class FakeGpu:
    """`cost(plan)` gives the microseconds of a launch; `spoil(plan, c)` may change its result.

    `fail(plan)` may return a message: the launch fails with it. A device that is `lost` refuses
    everything from then on.
    """

    kind = "cuda"
    maps = EMULATED_MAPS
    stream = "the stream"

    def __init__(self, cost=fake_cost, *, spoil=None, fail=None, board="h100"):
        self.spec = BOARDS[board]
        self.cost = cost
        self.spoil = spoil or (lambda plan, c: None)
        self.fail = fail or (lambda plan: None)
        self.memory = {}
        self.launches, self.replays, self.lost = [], 0, False

    def empty(self, nbytes):
        return self._place(np.zeros(nbytes, np.uint8))

    def upload(self, array, *, initialized=True):
        return self._place(array.copy())

    def download(self, buffer, out):
        out[...] = buffer.storage

    def launch(self, binary, plan, arguments):
        self.launches.append(plan)
        message = self.fail(plan)
        if message:
            raise DeviceError(message)
        m, n, k = (arguments[name] for name in "MNK")
        for number in range(arguments["batch"]):
            a = self._matrix(arguments, "A", number, m, k)
            b = self._matrix(arguments, "B", number, k, n)
            c = self._matrix(arguments, "C", number, m, n)
            c[:] = np.float32(arguments["alpha"]) * (a @ b)
            if arguments["bias"]:
                c += self.memory[arguments["bias"]].storage
            self.spoil(plan, c)
        return Launch()

    def environment(self):
        return {"gpu": "fake"}

    def work(self, binary, plan, arguments):
        return FakeWork(self.cost(plan))

    def record(self, works, kept=()):
        return FakeReplay(self, list(works))

    def _matrix(self, arguments, name, number, rows, columns):
        storage = self.memory[arguments[name]].storage
        start = number * arguments[f"stride_{name.lower()}"]
        return matrix(storage[start:], rows, columns, arguments[f"ld{name.lower()}"])

    def _place(self, storage):
        if self.lost:
            raise DeviceError("the GPU does not answer")
        address = 4096 * (len(self.memory) + 1)
        self.memory[address] = FakeBuffer(address, storage)
        return self.memory[address]


def fake_binary(plan, arch):
    """What a compiler might have made of a plan."""
    resources = Resources(registers=64, spill_bytes=0, shared_bytes=0, local_bytes=0)
    return Binary(
        entry=plan.entry,
        arch=arch,
        ptx="",
        cubin=b"",
        resources=resources,
        compiler="13.5.37",
        key=plan.entry,
    )
