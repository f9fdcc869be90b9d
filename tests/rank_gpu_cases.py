"""What the processes of a test over several GPUs do, with NCCL.

Run as `rank_gpu_cases.py CASE RANK RANKS FILE`: FILE is where the ranks find each other.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from gemmkit import distributed
from gemmkit.errors import DistributedError
from rank_cases import part

PATIENCE = 30.0

PLACEMENTS = (
    (("S(0)", "S(1)"), "S(1)"),
    (("S(1)", "S(0)"), "S(0)"),
    (("S(1)", "S(0)"), "R"),
)
STRATEGIES = ("collective", "group-1", "copies-whole", "copies-1", "copies-2", None)


class Matrices:
    """A rank's parts of two matrices, whose numbers change in place; sums are exact in bfloat16."""

    def __init__(self, rank, ranks, placements):
        self.rank, self.ranks, self.placements = rank, ranks, placements
        self.whole = torch.empty(256 * ranks, 128), torch.empty(128, 512)
        self.mine = [
            self.part_of(each, word).clone()
            for each, word in zip(self.whole, placements, strict=True)
        ]

    def part_of(self, matrix, word):
        device = torch.device("cuda", self.rank)
        return part(matrix.bfloat16(), word, self.rank, self.ranks).to(device)

    def change(self, seed, result):
        """New numbers; this rank's part of their product."""
        random = torch.Generator().manual_seed(seed)
        for each, word, own in zip(self.whole, self.placements, self.mine, strict=True):
            each.copy_(torch.randint(-1, 2, each.shape, generator=random))
            own.copy_(self.part_of(each, word))
        return self.part_of(self.whole[0] @ self.whole[1], result)


def graphs(rank, ranks):
    """Captured calls, replayed with other numbers between calls that are not captured."""
    failed = []
    for placements, result in PLACEMENTS:
        for strategy in STRATEGIES:
            try:
                graphs_of(Matrices(rank, ranks, placements), result, strategy)
                print(f"rank {rank}: {placements} {result} {strategy}: right", flush=True)
            except AssertionError as error:
                failed.append(f"{placements} {result} {strategy}: {error}")
    assert not failed, failed


def graphs_of(matrices, result, strategy):
    def call():
        return distributed.matmul(
            *matrices.mine, placements=matrices.placements, placement=result, strategy=strategy
        )

    for seed in range(3):
        want = matrices.change(seed, result)
        assert torch.equal(call(), want), f"not captured, {seed}"
    torch.cuda.synchronize()
    for captured in (1, 2):
        graph = torch.cuda.CUDAGraph()
        # Threads of process groups look after their operations meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(captured):
                made = call()
        for seed in range(3, 11):
            want = matrices.change(seed, result)
            made.fill_(-1)
            if seed % 3:
                graph.replay()
            found = made if seed % 3 else call()
            assert torch.equal(found, want), f"graph of {captured}, {seed}"
        torch.cuda.synchronize()


def changes(rank, ranks):
    """Rows that change on the last rank alone, which the others have seen before: all are told."""
    device = torch.device("cuda", rank)
    same = torch.ones(8, 64, device=device, dtype=torch.bfloat16)
    changed = torch.ones(8 + (rank == ranks - 1), 64, device=device, dtype=torch.bfloat16)
    w = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
    options = {"placements": ("S(0)", "S(1)"), "placement": "S(1)"}
    for x in (same, changed, same, changed):
        rows = 8 * ranks + (x is changed)
        made = distributed.matmul(x, w, shape=(rows, 64 * ranks, 64), **options)
        assert bool((made == 64).all())
    said = ""
    try:
        for x in (same, same, changed, changed, changed):
            distributed.matmul(x, w, **options)
            time.sleep(0.5)
    except DistributedError as error:
        said = str(error)
    print(f"rank {rank}: {said}", flush=True)
    assert "give shape=(m, n, k)" in said or "different products" in said, said
    # What the others have begun has no end.
    print("done", flush=True)
    os._exit(0)


def main():
    name, rank, ranks, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{file}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE),
    )
    {each.__name__: each for each in (graphs, changes)}[name](rank, ranks)
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
