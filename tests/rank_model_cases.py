"""What the processes of a test of models over several ranks do, with gloo and the emulator.

Run as `rank_model_cases.py CASE RANK RANKS FILE`: FILE is where the ranks find each other.
"""

from __future__ import annotations

import copy

import pytest
import torch

import gemmkit
from gemmkit import distributed
from gemmkit.errors import UsageError
from rank_cases import main, matrices


def layers(rank, ranks):
    """A column-parallel layer and the row-parallel one after it, against the layers they are of."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))
    for spread in (False, True):
        mine = distributed.parallelize(
            copy.deepcopy(model), {"0": "column", "2": "row"}, sequence_parallel=spread
        )
        for each in (mine[0], mine[2]):
            each.product_device = "emulator"
        x = torch.randn(2 * ranks, 3, 6, requires_grad=True)
        own = x.detach().chunk(ranks)[rank].clone().requires_grad_() if spread else x
        model.zero_grad()
        want = model(x)
        (gradient,) = torch.autograd.grad((want**2).sum(), x, retain_graph=True)
        (want**2).sum().backward(inputs=list(model.parameters()))
        made = mine(own)
        (made**2).sum().backward()
        torch.testing.assert_close(made, want.chunk(ranks)[rank] if spread else want)
        shown = gradient.chunk(ranks)[rank] if spread else gradient
        torch.testing.assert_close(own.grad, shown)
        for name, dim in (("0", 0), ("2", 1)):
            left, right = mine.get_submodule(name).weight.grad, model.get_submodule(name).weight
            torch.testing.assert_close(left, right.grad.chunk(ranks, dim)[rank])
        torch.testing.assert_close(mine[2].bias.grad, model[2].bias.grad)
        torch.testing.assert_close(mine[0].bias.grad, model[0].bias.grad.chunk(ranks)[rank])
    x, first, second = torch.randn(4, 6), model[0], model[2]
    hidden = gemmkit.nn.column_parallel_linear(
        x,
        first.weight.detach().chunk(ranks)[rank],
        first.bias.detach().chunk(ranks)[rank],
        activation="relu",
        device="emulator",
    )
    made = gemmkit.nn.row_parallel_linear(
        hidden,
        second.weight.detach().chunk(ranks, 1)[rank],
        second.bias.detach(),
        device="emulator",
    )
    torch.testing.assert_close(made, model(x).detach())


def dtensors(rank, ranks):
    """DTensors on meshes of one and two dimensions, and a model switched over by one call."""
    from torch.distributed.tensor import (
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    a, b = matrices(6, 8, 7)
    torch.manual_seed(0)
    grid = init_device_mesh("cpu", (2, ranks // 2))
    for of_a, of_b in (
        ((Shard(0), Shard(1)), (Shard(0), Shard(1))),
        ((Shard(0), Replicate()), (Replicate(), Shard(1))),
        ((Shard(0), Shard(1)), (Shard(1), Shard(0))),
        ((Shard(0), Shard(1)), (Replicate(), Shard(0))),
    ):
        left, right = (
            distribute_tensor(each, grid, list(of), src_data_rank=None).requires_grad_()
            for each, of in ((a, of_a), (b, of_b))
        )
        made = distributed.matmul(left, right, device="emulator")
        assert torch.equal(made.full_tensor(), a @ b), (of_a, of_b)
        made.redistribute(grid, [Replicate()] * 2).to_local().sum().backward()
        ones = torch.ones(6, 8)
        assert torch.equal(left.grad.full_tensor(), ones @ b.T)
        assert torch.equal(right.grad.full_tensor(), a.T @ ones)
        assert left.grad.placements == left.placements
        # C and the result in place of it are placed as the result.
        c = distribute_tensor(torch.ones(6, 8), grid, list(made.placements), src_data_rank=None)
        out = distribute_tensor(torch.zeros(6, 8), grid, list(made.placements), src_data_rank=None)
        given = {"beta": 2, "out": out, "device": "emulator"}
        with torch.no_grad():
            assert distributed.matmul(left, right, c=c, **given) is out
            assert torch.equal(out.full_tensor(), a @ b + 2)
            wrong = distribute_tensor(
                torch.ones(6, 8), grid, [Shard(1), Replicate()], src_data_rank=None
            )
            with pytest.raises(UsageError, match=r"c is placed as S\(1\), R and the result as"):
                distributed.matmul(left, right, c=wrong, **given)
        with pytest.raises(UsageError, match="out takes no gradients"):
            distributed.matmul(left, right, c=c, **given)
    mesh = init_device_mesh("cpu", (ranks,))
    x = distribute_tensor(torch.randn(3, 4, 6), mesh, [Shard(1)], src_data_rank=None)
    w = distribute_tensor(torch.randn(6, 8), mesh, [Shard(1)], src_data_rank=None)
    made = distributed.matmul(x, w, placement=[Shard(2)], device="emulator")
    torch.testing.assert_close(made.full_tensor(), x.full_tensor() @ w.full_tensor())
    k_spread = distributed.matmul(made, w.t(), placement=[Shard(1)], device="emulator")
    assert k_spread.placements == (Shard(1),)
    assert distributed.matmul(made, w.t(), device="emulator").placements == (Partial(),)

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 5))
    want = model(x.full_tensor())
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, styles)
    from gemmkit.distributed import dtensors as module

    counted = []
    multiply = module.multiply
    module.multiply = lambda asked: counted.append(1) or multiply(asked)
    with distributed.using_gemmkit():
        made = model(x.full_tensor())
        made.sum().backward()
    torch.testing.assert_close(made, want)
    # Two products forward; two and one backward, for x needs no gradient.
    assert len(counted) == 5
    model(x.full_tensor())
    assert len(counted) == 5
    # The local part of an activation that is a matrix requires a gradient.
    with distributed.using_gemmkit():
        torch.testing.assert_close(model(x.full_tensor()[0]), want[0])
    assert len(counted) == 7


def styles(rank, ranks):
    """Models parallelized by gemmkit's styles against the same model by PyTorch's."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    from torch.distributed.tensor import parallel as by_torch

    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    whole = torch.randn(2 * ranks, 3, 6)
    cases = (
        (Replicate(), Shard(-1), Shard(-1), Replicate(), True),
        (Shard(0), Shard(-1), Shard(-1), Shard(0), True),
        (Shard(1), Shard(2), Shard(2), Shard(1), False),
        (Shard(0), Replicate(), Replicate(), Shard(-1), True),
        (Shard(0), Shard(-1), Shard(-1), Shard(0), False),
    )
    for of_x, between, then, result, local in cases:
        found = {}
        for name, (column, row), options in (
            ("torch", (by_torch.ColwiseParallel, by_torch.RowwiseParallel), {}),
            (
                "gemmkit",
                (distributed.ColwiseParallel, distributed.RowwiseParallel),
                {"device": "emulator"},
            ),
        ):
            mine = by_torch.parallelize_module(
                copy.deepcopy(model),
                mesh,
                {
                    "0": column(input_layouts=of_x, output_layouts=between, **options),
                    "2": row(
                        input_layouts=then,
                        output_layouts=result,
                        use_local_output=local,
                        **options,
                    ),
                },
            )
            x = whole.clone()
            if isinstance(of_x, Shard):
                x = whole.chunk(ranks, of_x.dim)[rank].clone() if local else whole
            x.requires_grad_()
            given = x
            if not local:
                given = DTensor.from_local(x, mesh, [Replicate()]).redistribute(mesh, [of_x])
            made = mine(given)
            assert isinstance(made, DTensor) != local
            (made**2).sum().backward() if local else (made.full_tensor() ** 2).sum().backward()
            made = made if local else made.full_tensor()
            gradients = [each.grad.full_tensor() for each in mine.parameters()]
            found[name] = [made.detach(), x.grad, *gradients]
            assert all(isinstance(each, DTensor) for each in mine.parameters())
        for ours, theirs in zip(found["gemmkit"], found["torch"], strict=True):
            torch.testing.assert_close(ours, theirs)
    fused = by_torch.parallelize_module(
        copy.deepcopy(model[0]),
        mesh,
        distributed.ColwiseParallel(
            activation="relu", output_layouts=Replicate(), device="emulator"
        ),
    )
    torch.testing.assert_close(fused(whole), torch.relu(model[0](whole)))
    torch.testing.assert_close(copy.deepcopy(fused)(whole[0, 0]), torch.relu(model[0](whole[0, 0])))
    table = by_torch.parallelize_module(
        torch.nn.Embedding(4, 6), mesh, distributed.RowwiseParallel(input_layouts=Replicate())
    )
    assert table(torch.tensor([1, 3])).shape == (2, 6)


CASES = (layers, dtensors, styles)


if __name__ == "__main__":
    main(CASES, all_waited=False)
