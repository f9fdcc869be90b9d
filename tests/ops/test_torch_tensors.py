"""PyTorch's tensors as operands: views that stand for the negative of what is in memory."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

import gemmkit  # noqa: E402
from gemmkit.errors import UsageError  # noqa: E402
from gemmkit.ops.libraries import torch as library  # noqa: E402


@pytest.fixture
def negated():
    """The imaginary parts of conjugates: their negatives are what is in memory."""
    numbers = torch.arange(9.0).reshape(3, 3)
    view = torch.complex(numbers, numbers).conj().imag
    assert view.is_neg()
    return view


def test_negated_views_are_read_as_what_they_stand_for(negated):
    other = torch.arange(12.0).reshape(3, 4)
    found = gemmkit.matmul(negated, other, device="emulator")
    assert torch.equal(found, negated @ other)
    assert torch.equal(
        gemmkit.gemm(other, negated, transa=True, device="emulator"), other.T @ negated
    )


def test_negated_views_are_never_taken_for_others(negated):
    plain = torch.ones(3, 3)
    for pair in ((plain, negated), (negated, plain)):
        with pytest.raises(RuntimeError, match="negative"):
            library.glance_at_matrices(*pair, None)
    with pytest.raises(RuntimeError, match="negative"):
        library.glance(negated)


def test_negated_views_are_not_written(negated):
    with pytest.raises(UsageError, match="out cannot be written"):
        gemmkit.matmul(torch.ones(3, 3), torch.ones(3, 3), out=negated, device="emulator")
