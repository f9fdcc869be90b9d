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


def test_many_tensors_are_glanced_at_as_one_by_one(negated):
    tensors = [torch.ones(5, 4)[:, 1:3], torch.ones(2, 3).T, torch.ones(0, 7)]
    found = library.glance_at_many(tensors)
    for number, each in enumerate(tensors):
        address, (shape, stride, dtype, device) = library.glance(each)
        assert found.addresses[number] == address
        assert (found.shapes[number], found.strides[number]) == (shape, stride)
        assert found.kind == (dtype, device)
    with pytest.raises(RuntimeError, match="negative"):
        library.glance_at_many([torch.ones(3, 3), negated])
    with pytest.raises(UsageError, match="requires a gradient"):
        library.glance_at_many([torch.ones(3), torch.ones(3, requires_grad=True)])
    with torch.no_grad():
        library.glance_at_many([torch.ones(3), torch.ones(3, requires_grad=True)])
    for other in (
        torch.ones(3).double(),
        torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})),
    ):
        with pytest.raises((TypeError, ValueError)):
            library.glance_at_many([torch.ones(3), other])


def test_new_matrices_of_one_allocation_are_independent():
    made, addresses = library.new_matrices(torch.ones(1), [3, 0, 2], 8, "float64")
    assert [tuple(each.shape) for each in made] == [(3, 8), (0, 8), (2, 8)]
    assert all(each.dtype == torch.float64 and each.is_contiguous() for each in made)
    assert [made[0].data_ptr(), made[2].data_ptr()] == [addresses[0], addresses[2]]
    # To autograd, writing one is no change of another.
    made[0].fill_(1)
    assert made[2]._version == 0
    assert not any(each._is_view() for each in made)
