"""A GPU on a played driver: its memory, its kernels, its errors."""

import gc
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import fake_driver
from fake_gpu import fake_binary
from gemmkit.devices import context, staging
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS
from gemmkit.kernels.plan import LaunchPlan, SourceFile

PLAN = LaunchPlan(
    "k", SourceFile("", "k.cu"), "k<4>", grid=(1, 1, 1), block=(32, 1, 1), signature=()
)
BINARY = msgspec.structs.replace(fake_binary(PLAN, "sm_90"), cubin=b"\x7fELF", ptx="the text")


@pytest.fixture
def driver(monkeypatch):
    return fake_driver.install(monkeypatch.setattr)


def test_the_board_is_known_by_its_name_and_figures(driver, monkeypatch):
    assert context.Context(0).spec is BOARDS["h100"]
    monkeypatch.setattr(fake_driver, "NAME", b"NVIDIA Something New")
    assert context.Context(0).spec.name == "Something New"
    assert context.Context(0).spec.sm_count == 132
    assert driver.depth == 0


@pytest.mark.parametrize(("before", "after"), [(0, 2**64 - 1), (4096, 4096)])
def test_the_pool_keeps_its_memory_unless_someone_limits_it(driver, before, after):
    driver.pool_limit = before
    context.Context(0)
    assert driver.pool_limit == after


def test_memory_is_given_back_in_the_order_of_its_stream(driver):
    gpu = context.Context(0)
    ready, on_stream, elsewhere = gpu.allocate(0), gpu.allocate_on(5, 3), gpu.allocate_on(6, 0)
    assert [rest[1:] for rest in driver.named("allocate")] == [
        [1, 0x99, 0x55],
        [5, 0x99, 3],
        [6, 0x99, 0],
    ]
    assert driver.named("wait") == [[0x55]]
    elsewhere.free_on(9)
    wanted = [[ready.address, 0x55], [on_stream.address, 3], [elsewhere.address, 9]]
    assert not driver.named("free")
    del ready, on_stream, elsewhere
    gc.collect()
    assert sorted(driver.named("free")) == sorted(wanted)
    zeros = gpu.zeros(12)
    assert driver.named("set") == [[zeros.address, 0, 12, 0x55]]
    gpu.set_float(zeros.address, -2, 4)
    assert driver.named("set words") == [[zeros.address, 0xC0000000, 1, 4]]
    with pytest.raises(DeviceError, match=r"allocating 2,199,023,255,552 bytes .* too little"):
        gpu.allocate(1 << 41)
    assert driver.depth == 0


def test_a_fork_gives_nothing_back(driver, monkeypatch):
    gpu = context.Context(0)
    memory = gpu.allocate(8)
    monkeypatch.setattr(context._forks, "of_a_user", True)
    del memory
    gc.collect()
    assert not driver.named("free")


def test_a_kernel_is_loaded_once_and_gets_the_shared_memory_that_it_needs(driver):
    gpu = context.Context(0)
    for shared in (0, 50_000, 60_000, 40_000):
        assert gpu.function(replace(PLAN, shared_bytes=shared), BINARY) == 0x33
    assert driver.named("library") == [[b"\x7fELF"]]
    assert driver.named("kernel") == [[b"k<4>"]]
    assert driver.named("shared") == [[0x33, 50_000], [0x33, 60_000]]
    gpu.function(PLAN, msgspec.structs.replace(BINARY, cubin=b"", key="another"))
    assert driver.named("library")[1] == [b"the text"]


def test_host_arrays_go_there_and_back(driver):
    gpu = staging.Staging(context.Context(0))
    values = np.arange(3 * staging.PIECE_BYTES // 8 + 5, dtype=np.float64)
    found = np.empty_like(values)
    gpu.download(gpu.upload(values), found)
    np.testing.assert_array_equal(found, values)
