"""SUMMA in benchmarks/distributed.py: the shares of a mesh's ranks, all-gathers by NCCL with
`torch.mm`, and the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed_group import Rank

# Of A, B and the result, along each dimension of the mesh.
SUMMA = ("S(0)", "S(1)"), ("S(0)", "S(1)")


def summa_matrices(rank: Rank, m: int, n: int, k: int, dtype: Any) -> tuple[Any, Any]:
    """This rank's shares of A and B: the same numbers in every run."""
    import torch

    from gemmkit.distributed.splits import shares

    row, column = rank.mesh.get_local_rank(0), rank.mesh.get_local_rank(1)
    rows, columns = rank.mesh_sizes
    random = torch.Generator(rank.device).manual_seed(100 + rank.rank)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=rank.device, dtype=dtype, generator=random)

    return (
        normal(shares(m, rows)[row].size, shares(k, columns)[column].size),
        normal(shares(k, rows)[row].size, shares(n, columns)[column].size),
    )


def gathered(rank: Rank, own: Any, at: int) -> list[Any]:
    """The shares of all ranks along a dimension of the mesh, which may be of different sizes."""
    size = rank.mesh.size(at)
    if size == 1:
        return [own]
    group = rank.mesh.get_group(at)
    every: list[Any] = [None] * size
    rank.dist.all_gather_object(every, tuple(own.shape), group=group)
    made = [own.new_empty(shape) for shape in every]
    for place, each in enumerate(made):
        each.copy_(own) if place == rank.mesh.get_local_rank(at) else None
        source = rank.dist.get_global_rank(group, place)
        rank.dist.broadcast(each, source, group=group)
    return made


def summa_sampled(rank: Rank, a: Any, b: Any, count: int = 32) -> tuple[Any, Any, Any]:
    """Rows of this rank's part of the result in float64, their bound's scale |A||B|, and which of
    its rows they are."""
    import torch

    rows = torch.arange(0, a.shape[0], max(a.shape[0] // count, 1), device=rank.device)[:count]
    lines = torch.cat(gathered(rank, a[rows].contiguous(), 1), 1).double()
    wanted, scale = [], []
    whole = torch.cat(gathered(rank, b.contiguous(), 0), 0)
    for part in whole.split(2048, dim=1):
        wide = part.double()
        wanted.append(lines @ wide)
        scale.append(lines.abs() @ wide.abs())
    return torch.cat(wanted, 1), torch.cat(scale, 1), rows


def by_nccl(rank: Rank, a: Any, b: Any, k: int) -> dict[str, Callable[[], Any]]:
    """All-gathers along both dimensions, then the product: of all k at once, whose operand A is
    copied for it, or of one share of k after the other. For shares of the same sizes."""
    import torch

    dist, (rows, columns) = rank.dist, rank.mesh_sizes
    if k % (rows * columns):
        return {}
    along_a, along_b = rank.mesh.get_group(1), rank.mesh.get_group(0)
    deep = k // columns
    shares_a = a.new_empty((columns, *a.shape))
    whole_b = b.new_empty((rows * b.shape[0], b.shape[1]))
    out = a.new_empty((a.shape[0], b.shape[1]))

    def transfers() -> None:
        if columns > 1:
            dist.all_gather_into_tensor(shares_a.flatten(0, 1), a, group=along_a)
        if rows > 1:
            dist.all_gather_into_tensor(whole_b, b, group=along_b)

    def operands() -> tuple[Any, Any]:
        return (shares_a if columns > 1 else a[None]), (whole_b if rows > 1 else b)

    def at_once() -> Any:
        transfers()
        all_a, all_b = operands()
        whole_a = all_a.transpose(0, 1).reshape(a.shape[0], k)
        return torch.mm(whole_a, all_b, out=out)

    def by_shares() -> Any:
        transfers()
        all_a, all_b = operands()
        torch.mm(all_a[0], all_b[:deep], out=out)
        for place in range(1, columns):
            out.addmm_(all_a[place], all_b[place * deep : (place + 1) * deep])
        return out

    full_a, full_b = a.new_empty((a.shape[0], k)).normal_(), whole_b.normal_()

    def alone() -> None:
        torch.mm(full_a, full_b, out=out)

    found: dict[str, Callable[[], Any]] = {"alone torch": alone, "nccl alone": transfers}
    found["nccl torch"] = at_once
    if columns > 1:
        found["nccl torch by shares"] = by_shares
    return found
