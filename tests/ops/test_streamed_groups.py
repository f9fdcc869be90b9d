"""Groups of host matrices: large products are streamed as single ones, others copied together."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from gemmkit.errors import UsageError
from gemmkit.ops.streamed import entry, groups

SHAPES = ((9, 7, 5), (0, 3, 4), (4, 4, 0), (40, 24, 16))


def whole_numbers(*shape):
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.fixture
def matrices():
    return [whole_numbers(m, k) for m, _, k in SHAPES], [whole_numbers(k, n) for _, n, k in SHAPES]


@pytest.fixture
def streamed(monkeypatch):
    """The shapes of products that are streamed."""
    made, own = [], entry.multiply_streamed

    def multiply(request, *given):
        made.append(request.shape.result)
        return own(request, *given)

    monkeypatch.setattr(entry, "multiply_streamed", multiply)
    return made


def test_all_products_are_streamed_in_little_memory(matrices, streamed, tmp_path):
    as_, bs = matrices
    file = np.memmap(tmp_path / "b", np.float32, "w+", shape=bs[3].shape)
    file[:] = bs[3]
    out = [np.full((m, n), 2, np.float32) for m, n, _ in SHAPES]
    made = gemmkit.grouped_matmul(
        as_, [*bs[:3], file], out=out, c=out, beta=2, device="emulator", device_memory=10000
    )
    assert all(one is other for one, other in zip(made, out, strict=True))
    for a, b, each in zip(as_, bs, made, strict=True):
        assert np.array_equal(each, a @ b + 4)
    assert streamed == [(9, 7), (4, 4), (40, 24)]
    with pytest.raises(UsageError, match="device_memory"):
        gemmkit.grouped_matmul(as_, bs, device="emulator", device_memory="little")


def test_large_products_are_streamed_and_others_copied_some_at_a_time(
    matrices, streamed, monkeypatch
):
    monkeypatch.setattr(groups, "STREAMED_BYTES", 4000)
    monkeypatch.setattr(groups, "_MOST_BYTES", 620)
    own = entry.multiply_streamed
    # The emulator streams what it is asked to alone.
    monkeypatch.setattr(
        entry,
        "multiply_streamed",
        lambda request, out, device, _: own(
            request, out, device, gemmkit.ops.request.HostOptions("64KiB")
        ),
    )
    copied, together = [], groups.multiply_groups

    def multiply_groups(some, carrier):
        copied.append(some.count)
        return together(some, carrier)

    monkeypatch.setattr(groups, "multiply_groups", multiply_groups)
    as_, bs = matrices
    for a, b, made in zip(as_, bs, gemmkit.grouped_matmul(as_, bs, device="emulator"), strict=True):
        assert np.array_equal(made, a @ b)
    assert streamed == [(40, 24)]
    assert copied == [2, 1]
