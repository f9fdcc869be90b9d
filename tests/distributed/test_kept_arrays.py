"""Memory that calls over ranks use again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
kept_arrays = pytest.importorskip("gemmkit.distributed.kept_arrays")


class OnGpu(SimpleNamespace):
    """Looks like a tensor on a GPU; each new one is an object of its own."""

    def get_device(self):
        return self.device

    def new_empty(self, shape, dtype):
        rows, columns = shape
        return OnGpu(device=self.device, dtype=dtype, nbytes=2 * rows * columns)


@pytest.fixture
def stream(monkeypatch):
    current = SimpleNamespace(stream=0, capturing=False)
    monkeypatch.setattr(kept_arrays, "current_stream", lambda _: current.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current.capturing)
    return current


LIKE = OnGpu(device=0)


def test_one_memory_serves_calls_on_one_stream(stream):
    arrays = kept_arrays.KeptArrays()
    first = arrays.matrix(LIKE, "bf16", 16, 32)
    assert arrays.matrix(LIKE, "bf16", 16, 32) is first
    others = [arrays.matrix(LIKE, "bf16", 32, 16), arrays.matrix(OnGpu(device=1), "bf16", 16, 32)]
    others.append(arrays.matrix(LIKE, "fp16", 16, 32))
    stream.stream = 7
    others.append(arrays.matrix(LIKE, "bf16", 16, 32))
    assert len({id(each) for each in (first, *others)}) == 5


def test_graphs_and_the_cpu_get_new_memory(stream):
    arrays = kept_arrays.KeptArrays()
    first = arrays.matrix(LIKE, "bf16", 16, 32)
    stream.capturing = True
    assert arrays.matrix(LIKE, "bf16", 16, 32) is not first
    stream.capturing = False
    assert arrays.matrix(LIKE, "bf16", 16, 32) is first
    tensor = torch.zeros(2, 3)
    made = arrays.matrix(tensor, tensor.dtype, 4, 5)
    assert made.shape == (4, 5)
    assert arrays.matrix(tensor, tensor.dtype, 4, 5).data_ptr() != made.data_ptr()


def test_memory_of_inference_serves_calls_after_it(stream, monkeypatch):
    tensor = torch.zeros(2, 3)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    arrays = kept_arrays.KeptArrays()
    with torch.inference_mode():
        made = arrays.matrix(tensor.clone(), tensor.dtype, 4, 5)
        made[3:] = 1
    with torch.no_grad():
        again = arrays.matrix(tensor, tensor.dtype, 4, 5)
        again[3:] = 0
    assert again is made


def test_what_is_kept_is_bounded(stream):
    arrays = kept_arrays.KeptArrays()
    large = kept_arrays.MOST_BYTES
    assert arrays.matrix(LIKE, "bf16", 1, large) is not arrays.matrix(LIKE, "bf16", 1, large)
    for columns in range(1, 40):
        arrays.matrix(LIKE, "bf16", 1, large // 2 - columns)
        held = sum(each.nbytes for each in arrays._arrays.values())
        assert held == arrays._bytes <= kept_arrays.MOST_BYTES_KEPT
