"""Products with known shapes and types, on a GPU that the emulator plays."""

import numpy as np
import pytest

from emulated_gpu import STREAM, GpuArray, install
from gemmkit.errors import UsageError
from gemmkit.ops import repeated
from gemmkit.ops.matmul import matmul
from gemmkit.ops.repeated import Repeated
from gemmkit.trials import changes


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gemmkit.ops.detours.alignment", lambda addresses: 4)
        made = install(patch)
        # The first call of all makes the library known.
        matmul(*arrays((12, 20), (20, 16)))
        yield made


@pytest.fixture
def gpu(played):
    gpu, _ = played
    gpu.launches.clear()
    gpu.chosen.clear()
    return gpu


@pytest.fixture
def by_matmul(monkeypatch):
    """How often a product was made by `matmul`."""
    calls, matmul = [], repeated.matmul

    def counted(*given, **options):
        calls.append(given)
        return matmul(*given, **options)

    monkeypatch.setattr(repeated, "matmul", counted)
    return calls


def whole_numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def arrays(*shapes, seed=0):
    return [GpuArray.of(whole_numbers(*shape, seed=seed + at)) for at, shape in enumerate(shapes)]


@pytest.mark.parametrize("new", [True, False])
def test_later_calls_only_launch(gpu, by_matmul, new):
    multiply = Repeated(alpha=2)
    for call in range(4):
        a, b, out = arrays((12, 20), (20, 16), (12, 16), seed=call)
        multiply(a, b, out, new)
        np.testing.assert_array_equal(out.values, 2 * (a.values @ b.values))
    assert len(by_matmul) == 1
    assert [stream for _, stream in gpu.launches] == [STREAM] * 4


def test_what_is_added_is_that_of_the_call(gpu, by_matmul):
    multiply = Repeated(epilogue="bias+relu+residual")
    for call in range(3):
        a, b, out, bias, residual = arrays((12, 20), (20, 16), (12, 16), (16,), (12, 16), seed=call)
        multiply(a, b, out, True, bias, residual)
        sums = a.values @ b.values + bias.values
        np.testing.assert_array_equal(out.values, np.maximum(sums, 0) + residual.values)
    assert len(by_matmul) == 1
    multiply = Repeated(beta=0.5, epilogue="bias+relu")
    for call in range(3):
        a, b, out, bias = arrays((12, 20), (20, 16), (12, 16), (16,), seed=call)
        # C is what is written.
        want = a.values @ b.values + out.values / 2 + bias.values
        multiply(a, b, out, False, bias, None, out)
        np.testing.assert_array_equal(out.values, np.maximum(want, 0))
    assert len(by_matmul) == 2


def test_strides_of_an_operand_are_looked_at_each_time(gpu, by_matmul):
    multiply = Repeated()
    a, b, turned, out = arrays((12, 20), (20, 16), (16, 20), (12, 16))
    wide = GpuArray.of(whole_numbers(20, 18, seed=9))
    for right in (b, turned.T, wide[:, :16]):
        for _ in range(2):
            multiply(a, right, out, True)
            np.testing.assert_array_equal(out.values, a.values @ right.values)
    assert len(by_matmul) == 3


def test_an_operand_that_is_copied_first(gpu, by_matmul):
    multiply = Repeated()
    a, b, out = arrays((12, 40), (20, 16), (12, 16))
    for _ in range(2):
        multiply(a[:, ::2], b, out, True)
        np.testing.assert_array_equal(out.values, a.values[:, ::2] @ b.values)
    assert len(by_matmul) == 2


def test_what_is_written_may_not_overlap_an_operand(gpu, played, by_matmul):
    _, library = played
    multiply, (memory, b) = Repeated(), arrays((24, 20), (20, 20))
    a, out = memory[:12], memory[12:]
    library.overwrites.clear()
    for _ in range(2):
        multiply(a, b, out, False)
    assert library.overwrites == [out, out]
    for _ in range(2):
        with pytest.raises(UsageError, match="out overlaps a"):
            multiply(a, b, memory[11:23], False)
    assert len(by_matmul) == 3


def test_after_tuning_everything_is_chosen_anew(gpu, by_matmul, monkeypatch):
    multiply, (a, b, out) = Repeated(), arrays((12, 20), (20, 16), (12, 16))
    for count in (1, 1, 2, 2):
        monkeypatch.setattr(changes, "count", 1000 + count)
        multiply(a, b, out, True)
        assert len(by_matmul) == count


def test_arrays_in_host_memory(by_matmul):
    multiply = Repeated()
    a, b, out = whole_numbers(4, 6), whole_numbers(6, 5), np.zeros((4, 5), np.float32)
    for _ in range(2):
        multiply(a, b, out, True)
        np.testing.assert_array_equal(out, a @ b)
    assert len(by_matmul) == 2
