"""The matrices of benchmarks/distributed.py, and how results are checked."""

from __future__ import annotations

from typing import Any

from distributed_group import Rank


def matrices(rank: Rank, form: str, m: int, n: int, k: int, dtype: Any) -> tuple[Any, Any]:
    """This rank's shares of A and B: the same numbers in every run."""
    import torch

    from gemmkit.distributed.splits import shares

    random = torch.Generator(rank.device).manual_seed(100 + rank.rank)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=rank.device, dtype=dtype, generator=random)

    if form == "column":
        return (
            normal(shares(m, rank.size)[rank.rank].size, k),
            normal(k, shares(n, rank.size)[rank.rank].size),
        )
    depth = shares(k, rank.size)[rank.rank].size
    return normal(m, depth), normal(depth, n)


def sampled(rank: Rank, form: str, a: Any, b: Any, m: int, count: int = 32) -> tuple[Any, Any, Any]:
    """Rows of the whole result in float64, their bound's scale |A||B|, and which rows they are."""
    import torch

    from gemmkit.distributed.splits import shares

    rows = torch.arange(0, m, max(m // count, 1), device=rank.device)[:count]
    if form == "column":
        spans = shares(m, rank.size)
        lines = torch.zeros((len(rows), a.shape[1]), dtype=torch.float64, device=rank.device)
        start, stop = spans[rank.rank]
        mine = (rows >= start) & (rows < stop)
        lines[mine] = a[rows[mine] - start].double()
        rank.dist.all_reduce(lines, group=rank.group)
    else:
        lines = a[rows].double()
    wanted, scale = [], []
    # By columns, so that B does not become as large again.
    for part in b.split(2048, dim=1):
        wide = part.double()
        wanted.append(lines @ wide)
        scale.append(lines.abs() @ wide.abs())
    want, bound = torch.cat(wanted, 1), torch.cat(scale, 1)
    if form != "column":
        rank.dist.all_reduce(want, group=rank.group)
        rank.dist.all_reduce(bound, group=rank.group)
    return want, bound, rows


def judged(
    rank: Rank, form: str, made: Any, wanted: tuple[Any, Any, Any], m: int
) -> dict[str, Any]:
    """The largest error of sampled rows, over eps·|A||B| and over the result's largest element."""
    import torch

    from gemmkit.distributed.splits import shares

    want, bound, rows = wanted
    start, stop = shares(m, rank.size)[rank.rank] if form == "row" else (0, m)
    mine = (rows >= start) & (rows < stop)
    error = (made[rows[mine] - start].double() - want[mine]).abs()
    eps = torch.finfo(made.dtype).eps
    worst = (error / (bound[mine] * eps).clamp(min=1e-300)).max().item() if len(error) else 0.0
    relative = (error.max() / want.abs().max()).item() if len(error) else 0.0
    return {
        "error_ratio": max(rank.all_of(worst)),
        "relative_error": max(rank.all_of(relative)),
    }


def bits(tensor: Any) -> int:
    """A checksum of a tensor's bits."""
    import torch

    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    flat = tensor.contiguous().view(kind).flatten()
    total = 0
    for part in flat.split(1 << 26):
        wide = part.long()
        weights = torch.arange(len(wide), device=wide.device) % 65521 + 1
        total = (total * 31 + int((wide * weights).sum().item())) % (1 << 61)
    return total
