"""The warning of the first product where there is no GPU."""

import warnings

import numpy as np
import pytest

import gemmkit
from gemmkit.ops import carriers

REASON = "this machine has no NVIDIA driver (libcuda.so.1)"
ONE = np.ones((2, 2), np.float32)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(carriers, "_warned", False)
    monkeypatch.setattr(carriers, "_no_gpu", lambda: REASON)


def caught(*products):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for product in products:
            product()
    return found


@pytest.mark.parametrize(
    "product",
    [
        lambda: gemmkit.matmul(ONE, ONE),
        lambda: gemmkit.gemm(ONE, ONE),
        lambda: gemmkit.grouped_matmul([ONE], [ONE]),
        lambda: gemmkit.nn.linear(ONE, ONE),
    ],
)
def test_the_first_product_warns_once_with_the_reason_at_the_users_line(no_gpu, product):
    (found,) = caught(product, product)
    assert found.category is gemmkit.EmulationWarning
    assert issubclass(found.category, UserWarning)
    assert REASON in str(found.message)
    assert found.filename == __file__
    assert found.lineno == product.__code__.co_firstlineno


def test_a_thread_without_a_line_of_the_users_warns_all_the_same(no_gpu):
    from threading import Thread

    def work():
        thread = Thread(target=gemmkit.matmul, args=(ONE, ONE))
        thread.start()
        thread.join()

    assert [each.category for each in caught(work)] == [gemmkit.EmulationWarning]


@pytest.mark.parametrize("device", ["emulator", "auto"])
def test_naming_a_device_silences_it(no_gpu, device):
    assert not caught(lambda: gemmkit.matmul(ONE, ONE, device=device))
    # The warning is still to come for a product that leaves the choice to gemmkit.
    assert len(caught(lambda: gemmkit.matmul(ONE, ONE))) == 1


def test_a_device_of_ones_own_silences_it(no_gpu):
    device = gemmkit.open_device("emulator")
    assert not caught(lambda: gemmkit.matmul(ONE, ONE, device=device))


def test_a_filter_makes_it_an_error_at_the_users_line(no_gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error", gemmkit.EmulationWarning)
        with pytest.raises(gemmkit.EmulationWarning, match="no NVIDIA driver"):
            gemmkit.matmul(ONE, ONE)
