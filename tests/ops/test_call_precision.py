"""The precision of fp32 products of arrays: by call, by setting, and kept apart by warm calls."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.dtypes import PRECISIONS
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops import carriers
from gemmkit.ops import precision as setting_module


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Leaves the setting of all threads as it was."""
    monkeypatch.setattr(setting_module.setting, "default", "ieee")
    monkeypatch.setattr(setting_module.setting, "touched", False)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("gemmkit.ops.detours.alignment", lambda addresses: 4)
    gpu, _ = install(monkeypatch)
    return gpu


@pytest.fixture
def on_host(monkeypatch):
    """The precisions of the problems of host arrays."""
    seen = []
    chosen = carriers._OnEmulator.chosen

    def noted(self, problem):
        seen.append(problem.precision)
        return chosen(self, problem)

    monkeypatch.setattr(carriers._OnEmulator, "chosen", noted)
    return seen


def whole(*shape, dtype=np.float32):
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def precisions(gpu):
    return [problem.precision for problem in gpu.chosen]


# --- the setting --------------------------------------------------------------------------------


def test_blocks_go_before_the_setting_of_all_threads():
    seen = [gemmkit.get_precision()]
    gemmkit.set_precision("fp32")
    seen.append(gemmkit.get_precision())
    with gemmkit.precision("tf32"):
        seen.append(gemmkit.get_precision())
        gemmkit.set_precision("ieee")
        with gemmkit.precision("fp32"):
            seen.append(gemmkit.get_precision())
        seen.append(gemmkit.get_precision())
    assert [*seen, gemmkit.get_precision()] == ["ieee", "fp32", "tf32", "fp32", "tf32", "ieee"]


def test_a_block_ends_with_what_is_raised_in_it():
    with pytest.raises(KeyError), gemmkit.precision("tf32"):
        raise KeyError
    assert gemmkit.get_precision() == "ieee"


def test_one_block_may_be_entered_again():
    lower = gemmkit.precision("TF32")

    @lower
    def decorated(depth):
        with gemmkit.precision("fp32"):
            if depth:
                decorated(depth - 1)
        return gemmkit.get_precision()

    with lower:
        assert decorated(2) == "tf32"
        assert gemmkit.get_precision() == "tf32"
    assert gemmkit.get_precision() == "ieee"


def test_a_block_is_of_one_thread_and_the_setting_of_all():
    seen = []

    def look():
        thread = threading.Thread(target=lambda: seen.append(gemmkit.get_precision()))
        thread.start()
        thread.join()

    with gemmkit.precision("tf32"):
        look()
    gemmkit.set_precision("fp32")
    look()
    assert seen == ["ieee", "fp32"]


def test_threads_may_share_a_block():
    """What one of them leaves is what it had entered with, whoever is in the block besides."""
    lower, seen = gemmkit.precision("tf32"), []
    inside, entered = threading.Event(), threading.Event()

    def outer():
        with lower:
            inside.set()
            assert entered.wait(10)
        seen.append(gemmkit.get_precision())

    thread = threading.Thread(target=outer)
    with gemmkit.precision("fp32"):
        thread.start()
        assert inside.wait(10)
        with lower:
            entered.set()
            thread.join()
        assert gemmkit.get_precision() == "fp32"
    assert seen == ["ieee"]


def test_a_block_is_of_one_task():
    """Tasks of a thread take turns at each await, and leave their blocks in any order."""
    seen = []

    @gemmkit.precision("tf32")
    async def decorated(turns):
        return await shown(turns)

    async def block(turns):
        with gemmkit.precision("fp32"):
            return await shown(turns)

    async def shown(turns):
        for _ in range(turns):
            await asyncio.sleep(0)
            seen.append(gemmkit.get_precision())
        return seen[-1]

    async def both():
        return await asyncio.gather(decorated(2), block(4), shown(6))

    assert asyncio.run(both()) == ["tf32", "fp32", "ieee"]
    assert {*seen[:6]} == {"tf32", "fp32", "ieee"}
    assert gemmkit.get_precision() == "ieee"


def test_generator_functions_are_not_decorated():
    def products():
        yield gemmkit.get_precision()

    with pytest.raises(UnsupportedType, match=r"products' is a generator function.*inside of it"):
        gemmkit.precision("tf32")(products)


@pytest.mark.parametrize("change", [gemmkit.precision, gemmkit.set_precision])
def test_the_setting_is_not_of_8_bit_types(change):
    with pytest.raises(UsageError, match=r"use one of ieee, fp32, tf32 here, and give 'Fast' to"):
        change("Fast")


@pytest.mark.parametrize("change", [gemmkit.precision, gemmkit.set_precision])
def test_a_setting_is_one_of_three_words(change):
    with pytest.raises(UsageError, match=r"unknown precision 'high'.*ieee, fp32, tf32$"):
        change("high")
    with pytest.raises(UnsupportedType, match=r"precision = None is of type NoneType: use one of"):
        change(None)
    assert gemmkit.get_precision() == "ieee"


# --- calls --------------------------------------------------------------------------------------

A, B = whole(9, 10), whole(10, 8)


def test_a_call_goes_before_the_setting(on_host):
    for given in (None, *PRECISIONS):
        with gemmkit.precision("fp32"):
            result = gemmkit.matmul(A, B, precision=given, device="emulator")
        np.testing.assert_array_equal(result, A @ B)
    assert on_host == ["fp32", *PRECISIONS]


FUNCTIONS = {
    "matmul": lambda **how: gemmkit.matmul(A, B, **how),
    "gemm": lambda **how: gemmkit.gemm(A, B, **how),
    "grouped_matmul": lambda **how: gemmkit.grouped_matmul([A], [B], **how),
    "linear": lambda **how: gemmkit.nn.linear(A, B.T, **how),
    "attention": lambda **how: gemmkit.nn.attention(A, A, A, **how),
    "conv2d": lambda **how: gemmkit.nn.conv2d(A[None, None], B[None, None], padding=1, **how),
    "conv2d, implicit": lambda **how: gemmkit.nn.conv2d(
        A[None, None], B[None, None, :2, :2], method="implicit", **how
    ),
    "lstm": lambda **how: gemmkit.nn.lstm(
        whole(2, 1, 3), None, [[whole(8, 3), whole(8, 2)]], **how
    ),
    "gru": lambda **how: gemmkit.nn.gru(whole(2, 1, 3), None, [[whole(6, 3), whole(6, 2)]], **how),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_has_it_and_follows_the_setting(function, on_host):
    function(precision="tf32", device="emulator")
    with gemmkit.precision("fp32"):
        function(device="emulator")
    count = len(on_host) // 2
    assert count
    assert on_host == ["tf32"] * count + ["fp32"] * count


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.sample(2)
def test_other_types_have_none(dtype, on_host):
    a, b = A.astype(dtype), B.astype(dtype)
    with gemmkit.precision("tf32"):
        np.testing.assert_array_equal(gemmkit.matmul(a, b, device="emulator"), a @ b)
        gemmkit.grouped_matmul([a], [b], precision="ieee", device="emulator")
    assert on_host == ["ieee", "ieee"]
    message = f"precision 'tf32' is of products of float32, and A and B are of {dtype.__name__}"
    with pytest.raises(UsageError, match=message):
        gemmkit.matmul(a, b, precision="tf32")
    with pytest.raises(UsageError, match=message):
        gemmkit.grouped_matmul([a], [b], precision="tf32")


@pytest.mark.parametrize(
    ("given", "message"),
    [("tf23", "unknown precision 'tf23'"), (19, "precision = 19 is of type int"), ([], "list")],
)
def test_what_is_no_precision(given, message, gpu):
    for a, b in ((A, B), (GpuArray.of(A), GpuArray.of(B))):
        for _ in range(2):
            with pytest.raises(UsageError, match=message):
                gemmkit.matmul(a, b, precision=given)


# --- warm calls ---------------------------------------------------------------------------------


def test_warm_calls_that_differ_in_precision_alone_are_kept_apart(gpu):
    a, b = GpuArray.of(A), GpuArray.of(B)
    for _ in range(2):
        for given in (None, *PRECISIONS):
            result = gemmkit.matmul(a, b, precision=given)
            np.testing.assert_array_equal(result.values, A @ B)
        with gemmkit.precision("tf32"):
            gemmkit.matmul(a, b)
        gemmkit.set_precision("fp32")
        gemmkit.matmul(a, b)
        gemmkit.set_precision("ieee")
    # What the setting says is as if the call had said so.
    assert precisions(gpu) == ["ieee", *PRECISIONS]
    assert len(gpu.launches) == 12


def test_a_call_that_was_prepared_before_the_setting_was_changed_is_prepared_anew(gpu):
    a, b = GpuArray.of(A), GpuArray.of(B)
    gemmkit.matmul(a, b)
    gemmkit.set_precision("tf32")
    for _ in range(2):
        gemmkit.matmul(a, b)
    assert precisions(gpu) == ["ieee", "tf32"]


def test_a_detour_keeps_the_precision(gpu):
    a, b, bias = GpuArray.of(whole(9, 20))[:, ::2], GpuArray.of(B), GpuArray.of(whole(16))[::2]
    for _ in range(2):
        gemmkit.matmul(a, b, bias=bias, precision="tf32")
        with gemmkit.precision("fp32"):
            gemmkit.matmul(a, b, bias=bias)
    assert precisions(gpu) == ["tf32", "fp32"]


def test_the_setting_does_not_touch_other_types_on_a_gpu(gpu, monkeypatch):
    monkeypatch.setattr("gemmkit.ops.detours.alignment", lambda addresses: 8)
    a, b = GpuArray.of(A.astype(np.float64)), GpuArray.of(B.astype(np.float64))
    gemmkit.matmul(a, b)
    with gemmkit.precision("tf32"):
        gemmkit.matmul(a, b)
    assert set(precisions(gpu)) == {"ieee"}
