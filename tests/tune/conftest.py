"""A GPU without hardware: NumPy computes what launches ask for, and a formula tells their times."""

import numpy as np
import pytest

from gemmkit.devices.device import Launch
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS
from gemmkit.jit.binary import Binary, Resources
from gemmkit.tune.entry import Entry, ProblemClass
from gemmkit.tune.freshness import Freshness
from gemmkit.tune.store import Store
from gemmkit.verify.inputs import matrix


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
    stream = "the stream"

    def __init__(self, cost, *, spoil=None, fail=None, board="h100"):
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
        a = self._matrix(arguments["A"], m, k, arguments["lda"])
        b = self._matrix(arguments["B"], k, n, arguments["ldb"])
        c = self._matrix(arguments["C"], m, n, arguments["ldc"])
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

    def _matrix(self, address, rows, columns, ld):
        return matrix(self.memory[address].storage, rows, columns, ld)

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


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch):
    from gemmkit.bench import timer

    monkeypatch.setattr(timer, "WARM_UP_S", 0.0)


@pytest.fixture
def freshness():
    """Whatever the kernels' source is, this compiler is installed."""
    return Freshness(compiler="13.5.37")


@pytest.fixture
def store(tmp_path, freshness):
    return Store(tmp_path / "store.sqlite3", freshness)


@pytest.fixture
def make_entry(freshness):
    """An entry of a fresh kernel, with the given fields changed."""

    def make(**changes):
        fields = {
            "gpu": "h100-132sm",
            "problem": ProblemClass(m=64, n=64, k=64, aligned=True),
            "kernel": "naive",
            "config": {"BM": 32, "BN": 32},
            "outcome": "ok",
            "compiler": "13.5.37",
            "time_us": 10.0,
        }
        fields |= changes
        fields.setdefault("source", freshness.source(fields["kernel"]))
        return Entry(**fields)

    return make
