import ctypes
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from gemmkit.devices import choose, cuda
from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.emulator.schedule import Schedule
from gemmkit.errors import DeviceError, UsageError
from gemmkit.gpu import BOARDS, DEFAULT_BOARD


class FakeEmulated:
    kind = "emulator"

    def __init__(self, spec, **settings):
        self.spec, self.settings = spec, settings


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    module = ModuleType("gemmkit.devices.emulated")
    module.EmulatedDevice = FakeEmulated
    monkeypatch.setitem(sys.modules, "gemmkit.devices.emulated", module)


@pytest.fixture
def h100(monkeypatch):
    monkeypatch.setattr(choose, "gpu_problem", lambda: None)
    fake = SimpleNamespace(kind="cuda", spec=BOARDS["h100"])
    monkeypatch.setattr(cuda, "CudaDevice", lambda printf_bytes: fake)
    return fake


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(choose, "gpu_problem", lambda: "the driver finds no GPU")


def test_auto_takes_the_gpu(h100):
    assert open_device() is h100
    assert open_device("cuda", "H100") is h100
    assert open_device("auto", "h100") is h100


def test_auto_takes_the_emulator_without_a_gpu(no_gpu):
    assert open_device().spec == DEFAULT_BOARD
    assert open_device("auto", "rtx 3080").spec.name == "RTX 3080"


def test_auto_takes_the_emulator_for_another_board(h100):
    assert open_device("auto", "rtx3080").kind == "emulator"


def test_emulator_is_given_its_settings(h100):
    seen = []
    settings = {
        "threads": 3,
        "progress": seen.append,
        "sanitize": True,
        "max_steps": 9,
        "warp_seed": 5,
        "not_written_before": ("B",),
    }
    device = open_device("emulator", "a100", **settings, schedule="w1@end")
    assert device.spec.name == "A100"
    assert device.settings == {**settings, "schedule": Schedule.parse("w1@end")}


def test_cuda_says_why_there_is_none(no_gpu):
    with pytest.raises(DeviceError, match="finds no GPU; `--device emulator`"):
        open_device("cuda")


def test_cuda_refuses_another_board(h100):
    with pytest.raises(UsageError, match="is H100, not RTX 3090"):
        open_device("cuda", "rtx3090")


def test_a_gpu_that_fails_to_open(monkeypatch):
    def broken(printf_bytes):
        raise DeviceError("opening the GPU failed")

    monkeypatch.setattr(choose, "gpu_problem", lambda: None)
    monkeypatch.setattr(cuda, "CudaDevice", broken)
    assert open_device("auto").kind == "emulator"
    with pytest.raises(DeviceError, match="opening"):
        open_device("cuda")


def test_unknown_names():
    with pytest.raises(UsageError, match="auto, cuda, emulator"):
        open_device("tpu")
    with pytest.raises(UsageError, match="unknown board"):
        open_device("emulator", "voodoo2")


class FakeDriver:
    def __init__(self, version=13000, count=1, init=0):
        self.version, self.count, self.init = version, count, init

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return 0

    def cuInit(self, _flags):
        return self.init

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = self.count
        return 0


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (FakeDriver(), None),
        (FakeDriver(version=12040), "supports CUDA 12.4"),
        (FakeDriver(count=0), "no GPU"),
        (FakeDriver(init=100), "no GPU"),
        (FakeDriver(init=999), "error 999"),
    ],
)
def test_the_driver_is_asked(monkeypatch, driver, problem):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver)
    found = gpu_problem()
    assert found is None if problem is None else problem in found


def test_no_driver_library(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "no NVIDIA driver" in gpu_problem()


def test_a_silent_driver_is_not_waited_for(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(choose, "_ask_driver", release.wait)
    monkeypatch.setattr(choose, "PATIENCE_S", 0.01)
    assert "did not answer" in gpu_problem()
    release.set()
