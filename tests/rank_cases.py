"""What the processes of a test over several ranks do, with gloo and the emulator.

Run as `rank_cases.py CASE RANK RANKS FILE`: FILE is where the ranks find each other.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gemmkit import distributed
from gemmkit.errors import DistributedError, UnsupportedProblem

# Of groups in which no rank dies.
PATIENCE = 60.0


def matrices(m, n, k):
    random = torch.Generator().manual_seed(m)
    return [torch.randint(-3, 4, size, generator=random).float() for size in ((m, k), (k, n))]


def part(matrix, word, rank, ranks):
    """A rank's part, as `torch.chunk` has it."""
    if word == "R":
        return matrix
    if word == "P":
        return matrix + sum(range(1, ranks)) if rank == 0 else torch.full_like(matrix, -rank)
    found = matrix.chunk(ranks, int(word[2]))
    empty = matrix.narrow(int(word[2]), 0, 0)
    return found[rank] if rank < len(found) else empty


def whole(made, word, ranks):
    """The matrix of which each rank has a part."""
    every = [None] * ranks
    dist.all_gather_object(every, made.detach())
    if word == "P":
        return sum(every)
    if word == "R":
        assert all(torch.equal(each, every[0]) for each in every)
        return every[0]
    return torch.cat(every, int(word[2]))


def placements(rank, ranks):
    """All placements, with gradients."""
    a, b = matrices(5, 4, 7)
    for of_a in ("S(0)", "S(1)", "R", "P"):
        for of_b in ("S(0)", "S(1)", "R", "P"):
            for wanted in ("S(0)", "S(1)", "R") if (of_a, of_b) != ("P", "P") else ("R",):
                mine = [part(a, of_a, rank, ranks).clone(), part(b, of_b, rank, ranks).clone()]
                for each in mine:
                    each.requires_grad_()
                made = distributed.matmul(
                    *mine, placements=(of_a, of_b), placement=wanted, device="emulator"
                )
                assert torch.equal(whole(made, wanted, ranks), a @ b), (of_a, of_b, wanted)
                factor = torch.arange(20.0).view(5, 4)
                (made * part(factor, wanted, rank, ranks)).sum().backward()
                for each, word, want in zip(
                    mine, (of_a, of_b), (factor @ b.T, a.T @ factor), strict=True
                ):
                    word = "R" if word == "P" else word
                    assert torch.equal(whole(each.grad, word, ranks), want), (of_a, of_b, wanted)


def strategies(rank, ranks):
    """Each strategy, with shares of any length, empty ones, and what follows the sums."""
    cuts = {1: [9], 2: [9, 0], 3: [2, 7, 0], 4: [0, 4, 1, 4]}[ranks]
    m, n, k = 9, 5, 6
    a, b = matrices(m, n, k)
    bias, residual = torch.arange(5.0), torch.ones(m, n)
    want = torch.relu(2 * (a @ b) + bias) + residual
    for strategy in (None, "collective", "group-whole", "group-1", "group-2"):
        made = distributed.matmul(
            a.split(cuts)[rank],
            b,
            placements=("S(0)", "R"),
            placement="S(0)",
            strategy=strategy,
            device="emulator",
        )
        assert torch.equal(whole(made, "S(0)", ranks), a @ b)
        made = distributed.matmul(
            a.split(cuts)[rank],
            part(b, "S(1)", rank, ranks),
            placements=("S(0)", "S(1)"),
            placement="S(1)",
            strategy=strategy,
            device="emulator",
        )
        assert torch.equal(whole(made, "S(1)", ranks), a @ b), strategy
        for placement in ("S(0)", "R"):
            if strategy in ("collective", "group-whole") and ranks > 1:
                continue
            made = distributed.matmul(
                part(a, "S(1)", rank, ranks),
                part(b, "S(0)", rank, ranks),
                placements=("S(1)", "S(0)"),
                placement=placement,
                alpha=2,
                epilogue="bias+relu+residual",
                bias=bias,
                residual=part(residual, placement, rank, ranks),
                strategy=strategy,
                device="emulator",
            )
            assert torch.equal(whole(made, placement, ranks), want), (strategy, placement)


def changes(rank, ranks):
    """Products that differ from earlier ones on one rank alone."""
    for rows in ([2, 2], [2, 3], [2, 0], [2, 2]):
        a, b = matrices(sum(rows), 4, 3)
        mine = a.split(rows)[rank].clone().requires_grad_(), b.split([1, 3], 1)[rank].clone()
        mine[1].requires_grad_()
        made = distributed.matmul(
            *mine, placements=("S(0)", "S(1)"), placement="S(1)", device="emulator"
        )
        assert torch.equal(whole(made, "S(1)", ranks), a @ b)
        made.sum().backward()
        # The gradients have the operands' shares.
        assert torch.equal(mine[0].grad, b.sum(1).expand(rows[rank], 3))
        assert torch.equal(mine[1].grad, a.sum(0)[:, None].expand(3, [1, 3][rank]))
        # Here the gradient of B is cut along k.
        left, right = a.split([2, 1], 1)[rank].clone(), b.split([2, 1])[rank].clone()
        left.requires_grad_(), right.requires_grad_()
        made = distributed.matmul(
            left, right, placements=("S(1)", "S(0)"), placement="R", device="emulator"
        )
        made.sum().backward()
        assert torch.equal(right.grad, left.detach().sum(0)[:, None].expand(right.shape))
        assert torch.equal(left.grad, right.detach().sum(1).expand(left.shape))


def refusals(rank, ranks):
    """Calls that differ between ranks: one message on all of them."""
    b = torch.zeros(3, 2)

    def told(*, a=None, **options):
        given = {"placements": ("S(0)", "S(1)"), "device": "emulator", **options}
        try:
            distributed.matmul(torch.zeros(4, 3) if a is None else a, b, **given)
        except DistributedError as error:
            every = [None] * ranks
            dist.all_gather_object(every, str(error))
            assert len(set(every)) == 1, every
            return str(error)
        raise AssertionError(f"{options} are no error")

    distributed.matmul(torch.zeros(4, 3), b, placements=("S(0)", "S(1)"), device="emulator")
    assert "the placement" in told(placement="S(0)" if rank else "S(1)")
    # One that rank 0 has seen before.
    assert "alpha" in told(alpha=1 + rank)
    assert "alpha" in told(alpha=1 + rank)
    assert "epilogue" in told(epilogue="relu" if rank else None)
    assert "strategy" in told(strategy="group-2" if rank else "group-1")
    b = torch.zeros(3 + rank, 2)
    assert "the same number of columns of a" in told(a=torch.zeros(4, 3 + rank))
    b = torch.zeros(3, 2, dtype=torch.float64 if rank else torch.float32)
    assert "type" in told(a=torch.zeros(4, 3, dtype=b.dtype))
    # A strategy that these ranks, or this product, do not have: in each call.
    for placements, deep, said in (
        (("S(0)", "S(1)"), 3, "needs GPUs that write to each other's memory"),
        (("S(1)", "S(0)"), 3, "needs GPUs that write to each other's memory"),
        (("S(1)", "S(1)"), 3 * ranks, "here panels of k travel"),
    ):
        given = {"placements": placements, "placement": "S(1)", "device": "emulator"}
        for _ in range(2):
            with pytest.raises(UnsupportedProblem, match=said):
                distributed.matmul(
                    torch.zeros(4, 3), torch.zeros(deep, 2), strategy="one-shot", **given
                )


def destroyed(rank, ranks):
    """Groups that were destroyed are freed once another one is used."""
    known = []
    for _ in range(2):
        group = dist.new_group()
        a, b = matrices(4, 6, 8)
        for _ in range(2):
            made = distributed.matmul(
                part(a, "S(0)", rank, ranks),
                part(b, "S(1)", rank, ranks),
                group=group,
                placements=("S(0)", "S(1)"),
                placement="S(1)",
                device="emulator",
            )
        assert torch.equal(whole(made, "S(1)", ranks), a @ b)
        known.append(weakref.ref(group))
        assert [each() is not None for each in known] == [False, True][-len(known) :]
        dist.destroy_process_group(group)
        del group


def restore(team):
    """A team as it was made: methods that a test has replaced would keep it, in a cycle, and its
    group with it, whose threads end when nothing holds it any more."""
    team.board = team.log = None
    for name in ("agree", "gather_into", "gather_many_into", "scatter_into", "reduce"):
        vars(team.communicator).pop(name, None)


def warm(rank, ranks):
    """As on GPUs: ranks agree once, and later calls are one operation of the group."""
    from gemmkit.distributed.team import team_of
    from gemmkit.gpu import BOARDS

    team = team_of(None, torch.device("cpu"))
    team.board, communicator = BOARDS["h100"], team.communicator
    counts = {"asked": 0, "gathered": 0, "scattered": 0, "reduced": 0}

    def counted(name, work):
        def call(*given):
            counts[name] += 1
            return work(*given)

        return call

    communicator.agree = counted("asked", communicator.agree)
    communicator.gather_into = counted("gathered", communicator.gather_into)
    communicator.scatter_into = counted("scattered", communicator.scatter_into)
    communicator.reduce = counted("reduced", communicator.reduce)
    try:
        for m in (1, 4, 5):
            for strategy in ("collective", "group-1"):
                for given, result, bias, operation in (
                    (("S(0)", "S(1)"), "S(1)", "S(0)", "gathered"),
                    (("S(0)", "S(1)"), "S(0)", "R", "gathered"),
                    (("S(1)", "S(0)"), "S(0)", "R", "scattered"),
                    (("S(1)", "S(0)"), "S(1)", "S(0)", "scattered"),
                    (("S(1)", "S(0)"), "R", "R", "reduced"),
                    (("R", "S(1)"), "S(1)", "S(0)", None),
                ):
                    if strategy == "group-1" and m != 5:
                        continue
                    before = dict(counts)
                    for call in range(3):
                        a, b = (each + call for each in matrices(m, 6, 8))
                        added = torch.arange(6.0) + call
                        a, b = a.contiguous(), b.T.contiguous().T
                        made = distributed.matmul(
                            part(a, given[0], rank, ranks),
                            part(b, given[1], rank, ranks),
                            placements=given,
                            placement=result,
                            bias=part(added, bias, rank, ranks),
                            strategy=strategy,
                            # The shares of some ranks are those of another m too.
                            shape=(m, 6, 8),
                            device="emulator",
                        )
                        assert torch.equal(whole(made, result, ranks), a @ b + added), (m, given)
                    assert counts["asked"] == before["asked"] + 1, (m, given)
                    if strategy == "collective" and operation is not None:
                        assert counts[operation] == before[operation] + 3, (m, given)
        # Rows of more than one dimension, where one of them is spread.
        for call in range(3):
            x = torch.arange(8.0 * ranks).view(2, ranks, 4) + call
            w = torch.ones(4, ranks)
            made = distributed.matmul(
                x[:, rank : rank + 1],
                w[:, rank : rank + 1],
                placements=("S(1)", "S(1)"),
                placement="S(2)",
                device="emulator",
            )
            expected = (x @ w)[..., rank : rank + 1]
            assert torch.equal(made, expected), (made, expected)
        if ranks == 2:
            one_sided_changes(rank, team)
    finally:
        restore(team)


def one_sided_changes(rank, team):
    """Shapes that change on one rank alone: with `shape` a product, without it an error on all."""
    from gemmkit.distributed.call_log import shared_log

    team.log = shared_log(team.communicator, 20.0)
    assert team.log is not None

    def product(rows, **options):
        a, b = matrices(sum(rows), 4, 6)
        made = distributed.matmul(
            a.split(rows)[rank],
            b.chunk(2, 1)[rank],
            placements=("S(0)", "S(1)"),
            placement="S(1)",
            device="emulator",
            **options,
        )
        assert torch.equal(made, (a @ b).chunk(2, 1)[rank]), rows

    def told(rows, **options):
        try:
            product(rows, **options)
        except DistributedError as error:
            return str(error)
        raise AssertionError("different products are no error")

    for rows in ([2, 2], [2, 1], [2, 2], [2, 0]):
        for _ in range(3):
            product(rows, shape=(sum(rows), 4, 6))
    product([4, 4])
    product([3, 3])
    product([4, 4])
    assert "all ranks together have (4, 4, 6)" in told([2, 2], shape=(5, 4, 6))
    if rank == 0:
        # A product that it has seen before, and puts on its GPU's stream.
        team.log.note(99)
    dist.barrier()
    if rank == 1:
        assert "rank 1 makes a product for the first time that rank 0 repeats" in told([4, 5])
    dist.barrier()
    if rank == 0:
        assert "rank 1 makes a product for the first time that rank 0 repeats" in told([4, 4])
    dist.barrier()


def death(rank, ranks):
    """The last rank ends: the others are told within the group's time-out."""
    a, b = matrices(4, 4, 4)
    options = {"placements": ("S(0)", "S(1)"), "device": "emulator"}
    distributed.matmul(a, b, **options)
    if rank == ranks - 1:
        sys.stdout.flush()
        import os

        os._exit(0)
    try:
        for _ in range(3):
            distributed.matmul(a, b, strategy="group-1", **options)
    except DistributedError as error:
        print(f"told: {error}")
        sys.stdout.flush()
        import os

        os._exit(0)


CASES = (placements, strategies, changes, refusals, warm, destroyed, death)


def check_threads():
    """A group that is left when the interpreter ends may abort the process."""
    tasks = Path("/proc/self/task")
    left = [each.parent.name for each in tasks.glob("*/comm") if "gloo" in each.read_text()]
    if left:
        print(f"{len(left)} threads of process groups are left", file=sys.stderr, flush=True)
        os._exit(3)


def main(cases, *, all_waited=True):
    """`all_waited` unless PyTorch's own collectives are left without a wait, which keeps groups."""
    if all_waited:
        # After what gemmkit does then, since it is there first.
        atexit.register(check_threads)
    names, rank, ranks, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seconds = 5.0 if names == "death" else PATIENCE
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=seconds),
    )
    known = {each.__name__: each for each in cases}
    for name in names.split(","):
        known[name](rank, ranks)
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CASES)
