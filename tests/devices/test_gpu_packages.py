"""Messages on a machine with a GPU where packages of the extra `gpu` are missing."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

import gemmkit
from fake_driver import install
from gemmkit import loading
from gemmkit.devices import choose
from gemmkit.devices.context import Context
from gemmkit.devices.gpu_packages import packages_problem
from gemmkit.errors import DeviceError, UsageError

REMEDY = r": run `pip install 'gemmkit\[gpu\]'`"


@pytest.fixture
def without(monkeypatch):
    """Hide modules."""

    def hide(*modules: str) -> None:
        for name in modules:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


def test_nothing_is_missing_here():
    assert packages_problem() is None


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (["cuda.core"], "cuda-core is missing"),
        (["cuda.bindings"], "cuda-bindings is missing"),
        (["cuda.bindings", "cuda.core"], "cuda-bindings and cuda-core are missing"),
    ],
)
def test_missing_packages_are_named(without, hidden, words):
    without(*hidden)
    assert packages_problem() == f"{words}: run `pip install 'gemmkit[gpu]'`"


def test_an_environment_without_any_package_of_cuda(monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)
    assert packages_problem().startswith("cuda-bindings and cuda-core are missing")


def test_bindings_of_another_cuda_are_refused(monkeypatch):
    from cuda import bindings

    monkeypatch.setattr(bindings, "__version__", "12.9.4")
    assert packages_problem().startswith("cuda-bindings 12.9.4 is not for CUDA 13: run ")


def test_bindings_that_do_not_load_are_named(monkeypatch):
    def load(*names):
        if names == ("cuda.bindings",):
            raise ImportError("no cuda.bindings for this Python")
        loading.load(*names)

    monkeypatch.setattr("gemmkit.devices.gpu_packages.load", load)
    assert packages_problem().startswith(
        "cuda-bindings cannot be loaded (no cuda.bindings for this Python): run "
    )


class Driver:
    """One that finds a GPU."""

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = 13000
        return 0

    def cuInit(self, _flags):
        return 0

    cuDeviceGetCount = cuDriverGetVersion


def test_a_gpu_that_cannot_be_used_for_want_of_a_package(monkeypatch, without):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Driver())
    without("cuda.core")
    assert choose.gpu_problem().startswith("cuda-core is missing")
    with pytest.raises(DeviceError, match=r"^no usable GPU: cuda-core is missing" + REMEDY):
        gemmkit.open_device("cuda")
    assert gemmkit.open_device("auto").kind == "emulator"


def test_no_driver_is_told_before_missing_packages(monkeypatch, without):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    without("cuda.core")
    assert "no NVIDIA driver" in choose.gpu_problem()


def test_a_context_is_refused(monkeypatch, without):
    install(monkeypatch.setattr)
    without("cuda.bindings")
    with pytest.raises(DeviceError, match="^cannot use the GPU: cuda-bindings is missing" + REMEDY):
        Context(0)


def test_arrays_that_are_read_through_cuda_core(without):
    class Exported:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    ones = np.ones((4, 4), np.float32)
    without("cuda.core")
    with pytest.raises(
        UsageError, match="^a, a Exported, cannot be read: cuda-core is .*" + REMEDY
    ):
        gemmkit.matmul(Exported(ones), ones, device="emulator")


def test_jax_s_buffers_are_refused(without):
    pytest.importorskip("jax", reason="needs JAX")
    from gemmkit.jax.target import _gpu_of

    without("cuda.bindings")
    with pytest.raises(DeviceError, match="cuda-bindings is missing" + REMEDY):
        _gpu_of(0)
