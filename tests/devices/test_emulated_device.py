"""`EmulatedDevice`: memory, launches, counters, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmkit.devices.device import Device
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.errors import DeviceError
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
PROBLEM = GemmProblem(m=37, n=50, k=19, alpha=1.5, beta=-2.0)


@pytest.fixture
def device() -> EmulatedDevice:
    return EmulatedDevice(BOARD, threads=2)


def planned(problem: GemmProblem = PROBLEM, kernel: str = "naive") -> tuple[Binary, LaunchPlan]:
    found = find_kernel(kernel)
    plan = found.plan(problem, found.default, BOARD)
    return compile_plan(plan, BOARD.arch), plan


def test_it_is_a_device(device: EmulatedDevice) -> None:
    as_device: Device = device
    assert (as_device.kind, as_device.spec) == ("emulator", BOARD)


def test_a_product_and_its_counters(device: EmulatedDevice) -> None:
    rng = np.random.default_rng(0)
    A, B, C = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((37, 19), (19, 50), (37, 50))
    )
    a, b, c = (device.upload(each) for each in (A, B, C))
    launch = device.launch(*planned(), bind_arguments(PROBLEM, Operands(a, b, c)))
    result = np.empty_like(C)
    device.download(c, result)
    wanted = 1.5 * (A.astype(np.float64) @ B) - 2.0 * C
    assert np.allclose(result, wanted, rtol=1e-5, atol=1e-5)
    # Two warps of columns; each of 37 rows reads A and B 19 times, and C once.
    requests = launch.counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    assert requests == 37 * 2 * (2 * 19 + 1)
    of_lines = sum(
        counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
        for counters in launch.line_counters.values()
    )
    assert of_lines == requests
    assert {file for file, _ in launch.line_counters} >= {"naive.cu"}
    assert launch.emulation_seconds is not None
    assert launch.emulation_seconds > 0


def test_a_launch_in_clusters_gives_the_same_result_and_counters() -> None:
    device, problem = EmulatedDevice(find_board("h100"), threads=2), GemmProblem(m=64, n=64, k=9)
    binary, plan = planned(problem)
    rng = np.random.default_rng(0)
    a, b = (
        device.upload(rng.standard_normal(shape, dtype=np.float32)) for shape in ((64, 9), (9, 64))
    )
    found = []
    for cluster in ((1, 1, 1), (2, 1, 1)):
        assert plan.grid[0] % cluster[0] == 0
        c = device.upload(np.zeros((64, 64), np.float32))
        arguments = bind_arguments(problem, Operands(a, b, c))
        launch = device.launch(binary, replace(plan, cluster=cluster), arguments)
        result = np.empty((64, 64), np.float32)
        device.download(c, result)
        found.append((result.tolist(), launch.counters))
    assert found[0] == found[1]
    with pytest.raises(DeviceError, match="not made of whole clusters"):
        device.launch(binary, replace(plan, cluster=(3, 1, 1)), arguments)


def test_an_empty_grid_leaves_everything_alone(device: EmulatedDevice) -> None:
    problem = GemmProblem(m=0, n=50, k=19)
    nothing = device.empty(0)
    launch = device.launch(
        *planned(problem), bind_arguments(problem, Operands(nothing, nothing, nothing))
    )
    assert launch.counters["ptx__inst_executed.sum"] == 0


def test_null_pointers_fail_with_the_argument_missing(device: EmulatedDevice) -> None:
    buffers = [device.empty(8000) for _ in range(3)]
    arguments = bind_arguments(PROBLEM, Operands(*buffers))
    with pytest.raises(DeviceError, match=r"out of bounds, .*'ld\.global\.f32' at"):
        device.launch(*planned(), arguments | {"A": 0})


def test_messages_call_arrays_by_their_arguments(device: EmulatedDevice) -> None:
    a, b, c = (device.empty(size) for size in (4 * 37 * 19, 4 * 19 * 50 - 4, 4 * 37 * 50))
    with pytest.raises(DeviceError, match=r"0 bytes past the end of 'B' \(3796 bytes\)"):
        device.launch(*planned(), bind_arguments(PROBLEM, Operands(a, b, c)))


def test_fresh_memory_is_poisoned(device: EmulatedDevice) -> None:
    found = np.zeros(16, np.float32)
    device.download(device.empty(64), found)
    assert np.isnan(found).all()


def test_memory_is_aligned_and_given_back(device: EmulatedDevice) -> None:
    buffers = [device.empty(size) for size in (1, 100, 257)]
    addresses = [each.address for each in buffers]
    assert all(address % 256 == 0 for address in addresses)
    assert device.memory.find(addresses[1] + 99) is not None
    del buffers
    assert all(device.memory.find(address) is None for address in addresses)


def test_copies_that_do_not_fit_are_refused(device: EmulatedDevice) -> None:
    buffer = device.upload(np.arange(6, dtype=np.float32))
    with pytest.raises(ValueError, match="cannot copy"):
        device.download(buffer, np.empty(7, np.float32))
    with pytest.raises(ValueError, match="cannot copy"):
        device.download(buffer, np.empty((3, 4), np.float32)[:, :2])
    turned = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    found = np.empty((3, 2), np.float32)
    device.download(turned, found)
    assert found.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shared_bytes": 101 * 1024}, r"needs 103,424 bytes of shared memory"),
        ({"block": (2048, 1, 1)}, r"has 2,048 threads; RTX 3090 allows 1,024"),
        ({"cluster": (2, 1, 1)}, r"clusters"),
        ({"signature": ("M", "N")}, r"12 parameters in its PTX, and 2 in its signature"),
    ],
)
def test_what_the_board_cannot_take_is_refused(
    device: EmulatedDevice, changes: dict[str, object], reason: str
) -> None:
    binary, plan = planned()
    buffers = [device.empty(8000) for _ in range(3)]
    arguments = bind_arguments(PROBLEM, Operands(*buffers))
    with pytest.raises(DeviceError, match=reason):
        device.launch(binary, replace(plan, **changes), arguments)


def test_more_memory_than_there_is(device: EmulatedDevice) -> None:
    with pytest.raises(DeviceError, match="no 1,152,921,504,606,846,976 bytes"):
        device.empty(1 << 60)


def test_progress_and_environment() -> None:
    seen: list[float] = []
    device = EmulatedDevice(BOARD, threads=1, progress=seen.append)
    buffers = [device.empty(8000) for _ in range(3)]
    arguments = bind_arguments(PROBLEM, Operands(*buffers))
    device.launch(*planned(), arguments)
    assert seen[-1] == 1.0
    environment = device.environment()
    assert environment["threads"] == 1
    assert environment["emulated_gpu"] == BOARD.name
    assert environment["llvmlite"]
    assert environment["cpu"]


def test_a_parameter_by_value_comes_as_bytes(device: EmulatedDevice) -> None:
    source = SourceFile(
        "struct Four { float v[4]; };\n"
        'extern "C" __global__ void k(Four four, float* C) {\n'
        "  C[threadIdx.x] = four.v[threadIdx.x];\n"
        "}\n",
        "k.cu",
    )
    plan = LaunchPlan("k", source, "k", (1, 1, 1), (4, 1, 1), ("four", "C"))
    values = np.array([1.5, -2, 3, 1e9], np.float32)
    c = device.empty(values.nbytes)
    given = {"four": values.tobytes(), "C": c.address}
    device.launch(compile_plan(plan, BOARD.arch), plan, given)
    result = np.empty_like(values)
    device.download(c, result)
    np.testing.assert_array_equal(result, values)
