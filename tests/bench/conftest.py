"""A device without hardware: NumPy computes what the arguments say, as right or wrong as wanted."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from gemmkit.bench.baseline import Way
from gemmkit.devices.device import Launch
from gemmkit.emulator.isa.tensor_maps import EMULATED_MAPS
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import BOARDS
from gemmkit.storage import matrix, storage_size

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark_script(monkeypatch):
    """Imports a script of benchmarks/ by its name, anew for each test, as all that it imports of
    that folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]


class FakeBuffer:
    def __init__(self, address, storage):
        self.address, self.storage, self.nbytes = address, storage, storage.nbytes


class FakeDevice:
    """Counts what it is asked to do; `spoil` may change a result after it is computed."""

    kind = "emulator"
    maps = EMULATED_MAPS

    def __init__(self, spoil=None, epilogue="none"):
        self.spec = BOARDS["rtx3090"]
        self.spoil = spoil or (lambda _c: None)
        self.epilogue = Epilogue.parse(epilogue)
        self.memory = {}
        self.uploads = self.launches = self.asked_environment = 0

    def empty(self, nbytes):
        return self._place(np.zeros(nbytes, np.uint8))

    def upload(self, array, *, initialized=True):
        self.uploads += 1
        buffer = self._place(array.copy())
        buffer.initialized = initialized
        return buffer

    def download(self, buffer, out):
        out[...] = buffer.storage

    def launch(self, binary, plan, arguments):
        self.launches += 1
        self.compute(arguments)
        return Launch(counters={"requests.sum": 12.0}, emulation_seconds=0.5)

    def environment(self):
        self.asked_environment += 1
        return {"device": "fake"}

    def compute(self, bound):
        m, n, k = bound["M"], bound["N"], bound["K"]
        a = self._matrix(bound["A"], m, k, bound["lda"])
        b = self._matrix(bound["B"], k, n, bound["ldb"])
        c = self._matrix(bound["C"], m, n, bound["ldc"])
        value = np.float32(bound["alpha"]) * (a @ b)
        if bound["beta"]:
            value += np.float32(bound["beta"]) * c
        if self.epilogue.bias:
            value += self.memory[bound["bias"]].storage
        if self.epilogue.activation == "relu":
            value = np.maximum(value, 0)
        c[:] = value
        self.spoil(c)

    def _matrix(self, address, rows, columns, ld):
        storage = self.memory[address].storage
        assert storage.size == storage_size(rows, columns, ld)
        return matrix(storage, rows, columns, ld)

    def _place(self, storage):
        address = 4096 * (len(self.memory) + 1)
        self.memory[address] = FakeBuffer(address, storage)
        return self.memory[address]


class FakeReplay:
    def __init__(self, device, works):
        self.device, self.works = device, works

    def microseconds(self):
        return sum(self.device.run_work(work) for work in self.works)


class FakeTimedDevice(FakeDevice):
    """Launches take `microseconds`; what ran is in `log`, as the names of the works."""

    kind = "cuda"

    def __init__(self, microseconds=100.0, **rest):
        super().__init__(**rest)
        self.stream = "the stream"
        self.microseconds = microseconds
        self.log = []
        self.recorded = []

    def launch(self, binary, plan, arguments):
        super().launch(binary, plan, arguments)
        return Launch()

    def work(self, binary, plan, arguments):
        return FakeWork(self, "ours", self.microseconds, arguments)

    def record(self, works, kept=()):
        self.recorded.append(list(works))
        return FakeReplay(self, list(works))

    def run_work(self, work):
        self.log.append(work.name)
        return work.microseconds


class FakeWork:
    def __init__(self, device, name, microseconds, arguments=None):
        self.device, self.name = device, name
        self.microseconds, self.arguments = microseconds, arguments

    def __call__(self, stream):
        assert stream == self.device.stream
        self.device.log.append(f"eager {self.name}")


class FakeBaseline:
    """A peer with some candidates: name → microseconds."""

    name = "peer"

    def __init__(self, device, **times):
        self.device, self.times = device, times
        self.asked = 0

    def candidates(self, problem, arguments):
        self.asked += 1
        return {
            name: Way([FakeWork(self.device, name, time, each) for each in arguments])
            for name, time in self.times.items()
        }


@pytest.fixture
def fake_device():
    return FakeDevice()


@pytest.fixture
def fakes(monkeypatch):
    """All fake classes, by name, with warm-up cut out of the timer."""
    from gemmkit.bench import timer

    monkeypatch.setattr(timer, "WARM_UP_S", 0.0)
    return {
        each.__name__: each
        for each in (FakeDevice, FakeTimedDevice, FakeBaseline, FakeWork, FakeReplay)
    }
