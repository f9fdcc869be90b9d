"""`CudaDevice` on a played driver: it launches, allocates and copies as the library does."""

import gc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fake_driver
from gemmkit.devices import context
from gemmkit.devices.cuda import CudaDevice
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import FieldPlace, LaunchPlan, SourceFile, StructPlace

PTX = """
.const .align 4 .b8 table[8];
.visible .entry k(.param .u64 p0, .param .align 8 .b8 p1[16], .param .align 64 .b8 p2[128])
{ ret; }
"""
BINARY = Binary(
    entry="k", arch="sm_90", ptx=PTX, cubin=b"\x7fELF", resources=None, compiler="", key="one"
)
STRUCT = StructPlace("S s", 16, 8, (FieldPlace(0, 4, "u32"), FieldPlace(8, 8, "u64", pointer=True)))
PLAN = LaunchPlan(
    *("mine", SourceFile("", "k.cu"), "k", (4, 2, 1), (64, 1, 1), ("A", "M", "B", "map")),
    cluster=(2, 1, 1),
    shared_bytes=60_000,
    structs=(None, STRUCT, None),
)
MAP = bytes(range(128))
ARGUMENTS = {"A": 1000, "M": 5, "B": 2000, "map": MAP}


class Stream:
    """A cuda.core stream; `synced` counts waits."""

    def __init__(self, handle):
        self.handle, self.synced = handle, 0

    def __cuda_stream__(self):
        return 0, self.handle

    def sync(self):
        self.synced += 1


@pytest.fixture
def driver(monkeypatch):
    fake = fake_driver.install(monkeypatch.setattr)
    current = SimpleNamespace(
        device_id=0, set_current=lambda: None, create_stream=lambda: Stream(0x66)
    )
    monkeypatch.setattr("cuda.core.Device", lambda: current)
    context.context_of.cache_clear()
    yield fake
    context.context_of.cache_clear()


def test_it_shares_the_librarys_context(driver):
    device = CudaDevice()
    assert device.context is context.context_of(0)
    assert (device.name, device.spec) == ("NVIDIA H100 80GB HBM3", BOARDS["h100"])


def test_a_launch_has_clusters_structs_and_whole_parameters_and_is_waited_for(driver):
    device = CudaDevice()
    device.launch(BINARY, PLAN, ARGUMENTS)
    assert device.stream.synced == 1
    ((seen,),) = driver.named("launch")
    assert seen[:6] == (0x33, (4, 2, 1), (64, 1, 1), (2, 1, 1), 60_000, 0x66)
    wanted = [(1000).to_bytes(8, "little"), (5).to_bytes(8, "little"), (2000).to_bytes(8, "little")]
    assert seen.parameters == b"".join(wanted).ljust(64, b"\0") + MAP
    assert driver.named("shared") == [[0x33, 60_000]]


def test_work_goes_to_any_stream_and_empty_grids_nowhere(driver):
    device = CudaDevice()
    work = device.work(BINARY, PLAN, ARGUMENTS)
    for stream in (device.stream, Stream(7)):
        work(stream)
    empty = replace(PLAN, grid=(0, 1, 1))
    device.work(BINARY, empty, {})(device.stream)
    assert [seen.stream for (seen,) in driver.named("launch")] == [0x66, 7]
    assert device.stream.synced == 0


def test_variables_are_set_before_a_launch(driver):
    plan = replace(PLAN, constants=(("table", b"01234567"), ("gone", b"1"), ("initialized", b"")))
    CudaDevice().work(BINARY, plan, ARGUMENTS)
    assert driver.named("symbol") == [[b"table"]]
    assert driver.named("variable") == [[0x44, b"01234567"]]


def test_a_refused_launch_says_what_the_board_refuses(driver):
    device = CudaDevice()
    driver.errors.append(1)
    with pytest.raises(DeviceError, match=r"^'mine' failed: .*CUDA_ERROR_INVALID_VALUE"):
        device.launch(BINARY, PLAN, ARGUMENTS)
    odd = replace(PLAN, grid=(3, 1, 1))
    driver.errors.append(1)
    with pytest.raises(DeviceError, match=r"not made of whole clusters.*CUDA_ERROR_INVALID_VALUE"):
        device.launch(BINARY, odd, ARGUMENTS)


@pytest.mark.parametrize("size", [0, 1, 70_001])
def test_copies_there_and_back_and_memory_goes_back_at_once(driver, size):
    device = CudaDevice()
    array = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    buffer, back = device.upload(array), np.empty_like(array)
    assert (buffer.nbytes, buffer.address % 256) == (size, 0)
    device.download(buffer, back)
    np.testing.assert_array_equal(array, back)
    with pytest.raises(ValueError, match="cannot copy"):
        device.download(buffer, np.empty(size + 1, np.uint8))
    address = buffer.address
    del buffer
    gc.collect()
    assert [address, None] in driver.named("free")
    with pytest.raises(DeviceError, match="too little free memory"):
        device.empty(1 << 41)


def test_a_fork_of_its_process_has_no_gpu(driver, monkeypatch):
    device = CudaDevice()
    buffer = device.empty(8)
    monkeypatch.setattr(context._forks, "of_a_user", True)
    with pytest.raises(DeviceError, match="was forked from one that had used the GPU"):
        CudaDevice()
    del buffer
    gc.collect()
    assert not driver.named("free")


def test_without_a_gpu_the_first_error_tells(monkeypatch):
    def refuse():
        raise RuntimeError("CUDA_ERROR_NO_DEVICE")

    monkeypatch.setattr("cuda.core.Device", refuse)
    with pytest.raises(DeviceError, match="opening the GPU failed: there is no NVIDIA GPU"):
        CudaDevice()
