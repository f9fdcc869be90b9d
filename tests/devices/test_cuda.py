"""`CudaDevice`: without a GPU it says so; with one it copies, launches, records and reports."""

import numpy as np
import pytest

from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.device import TimedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.errors import DeviceError
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.verify import check, make_inputs


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


@pytest.mark.skipif(gpu_problem() is None, reason="there is a GPU here")
def test_no_gpu_is_one_clear_error():
    with pytest.raises(DeviceError, match="opening the GPU failed"):
        CudaDevice()


@pytest.mark.gpu
def test_auto_finds_it(device):
    found = open_device("auto")
    assert found.kind == "cuda"
    assert found.spec == device.spec
    assert isinstance(found, TimedDevice)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_001])
def test_copies_there_and_back(device, size):
    array = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    buffer = device.upload(array)
    assert buffer.nbytes == size
    assert buffer.address % 256 == 0
    back = np.empty_like(array)
    device.download(buffer, back)
    assert np.array_equal(array, back)


@pytest.mark.gpu
def test_download_refuses_what_does_not_fit(device):
    buffer = device.empty(16)
    with pytest.raises(ValueError, match="16 bytes"):
        device.download(buffer, np.empty(17, np.uint8))


@pytest.mark.gpu
def test_too_much_memory_is_one_clear_error(device):
    with pytest.raises(DeviceError, match="too little free memory"):
        device.empty(2**46)


class Case:
    """One product on the GPU."""

    def __init__(self, device, kernel, problem, **changes):
        self.device, self.problem = device, problem
        self.kernel = find_kernel(kernel)
        self.plan = self.kernel.plan(problem, self.kernel.configure(changes), device.spec)
        self.binary = compile_plan(self.plan, device.spec.arch)
        self.inputs = make_inputs(problem)
        self.a, self.b = device.upload(self.inputs.a), device.upload(self.inputs.b)
        self.c = device.upload(self.inputs.c)
        self.arguments = bind_arguments(problem, Operands(self.a, self.b, self.c))

    def verdict(self):
        result = np.empty_like(self.inputs.c)
        self.device.download(self.c, result)
        return check(self.problem, self.inputs, result)


@pytest.mark.gpu
def test_launch(device):
    case = Case(device, "naive", GemmProblem(100, 70, 33, alpha=1.5))
    launch = device.launch(case.binary, case.plan, case.arguments)
    assert case.verdict().correct
    assert launch.counters == {}
    assert launch.emulation_seconds is None


@pytest.mark.gpu
def test_more_than_48_kib_of_dynamic_shared_memory(device):
    case = Case(device, "gemm_tiled", GemmProblem(300, 300, 300), stages=4, BK=16)
    assert case.plan.shared_bytes > 48 * 1024
    device.launch(case.binary, case.plan, case.arguments)
    assert case.verdict().correct


@pytest.mark.gpu
def test_empty_grid_launches_nothing(device):
    case = Case(device, "naive", GemmProblem(0, 5, 5))
    device.launch(case.binary, case.plan, case.arguments)


@pytest.mark.gpu
def test_recorded_launches_replay(device):
    case = Case(device, "naive", GemmProblem(64, 64, 64))
    work = device.work(case.binary, case.plan, case.arguments)
    replay = device.record([work] * 3, kept=[case.a, case.b, case.c])
    before = np.empty_like(case.inputs.c)
    device.download(case.c, before)
    assert np.isnan(before).all(), "recording must not run anything"
    assert replay.microseconds() > 0
    assert case.verdict().correct


@pytest.mark.gpu
def test_a_failing_recording_leaves_the_stream_usable(device):
    def broken(stream):
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE")

    with pytest.raises(DeviceError, match="recording"):
        device.record([broken])
    test_launch(device)


class ForeignStream:
    """Another library's stream, as its `__cuda_stream__` shows it."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return 0, int(self.stream.handle)


@pytest.mark.gpu
@pytest.mark.parametrize("wrap", [lambda stream: stream, ForeignStream], ids=["own", "foreign"])
def test_a_callers_stream(device, wrap):
    case = Case(device, "naive", GemmProblem(64, 64, 64))
    stream = device.stream.device.create_stream()
    device.work(case.binary, case.plan, case.arguments)(wrap(stream))
    stream.sync()
    assert case.verdict().correct


@pytest.mark.gpu
def test_memory_is_freed_with_its_buffer(device):
    from cuda.bindings import driver

    before = driver.cuMemGetInfo()[1]
    buffer = device.empty(2**30)
    assert driver.cuMemGetInfo()[1] <= before - 2**30
    del buffer
    assert driver.cuMemGetInfo()[1] > before - 2**29


@pytest.mark.gpu
def test_environment_names_what_matters(device):
    found = device.environment()
    assert found["gpu"] == device.name
    for key in ("driver", "cuda_driver", "sm_clock_mhz", "sm_clock_max_mhz", "cores", "python"):
        assert found[key], key
