"""What the processes of a test over several GPUs do, with NCCL.

Run as `rank_gpu_cases.py CASE[:OPTION] RANK RANKS FILE`: FILE is where the ranks find each other.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import gemmkit
from gemmkit import distributed
from gemmkit.errors import DistributedError, GemmkitError
from gemmkit.kernels import one_shot as kernels
from rank_cases import part
from rank_fused_cases import fused

PATIENCE = 30.0

PLACEMENTS = (
    (("S(0)", "S(1)"), "S(1)"),
    (("S(1)", "S(0)"), "S(0)"),
    (("S(1)", "S(0)"), "R"),
    # Panels of k.
    (("S(1)", "S(1)"), "S(1)"),
    (("S(0)", "S(0)"), "S(0)"),
)
STRATEGIES = ("collective", "group-1", "copies-whole", "copies-1", "copies-2", None)
# Where no panels of k travel.
ONE_SHOT = ("one-shot",)


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
    asked = [
        (placements, result, strategy)
        for placements, result in PLACEMENTS
        for strategy in (STRATEGIES if placements[0] == placements[1] else (*STRATEGIES, *ONE_SHOT))
    ]
    # Calls that are not prepared, since A is cut before.
    asked += [(("R", "S(0)"), result, *ONE_SHOT) for result in ("S(0)", "R")]
    for placements, result, strategy in asked:
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


def summa(rank, ranks):
    """SUMMA on all meshes, by each strategy, also with β·C in place."""
    device, words = torch.device("cuda", rank), ("S(0)", "S(1)")
    random = torch.Generator().manual_seed(1)
    a, b = (
        torch.randint(-1, 2, side, generator=random).float() for side in ((384, 1024), (1024, 640))
    )
    c = torch.ones(384, 640)
    failed = []
    for rows in (each for each in range(1, ranks + 1) if ranks % each == 0):
        mesh = init_device_mesh("cuda", (rows, ranks // rows))

        def mine(matrix, kind, mesh=mesh):
            for at, word in enumerate(words):
                matrix = part(matrix, word, mesh.get_local_rank(at), mesh.size(at))
            return matrix.to(device, kind).contiguous()

        want = mine(a @ b, torch.float32)
        for kind, strategy in itertools.product(
            (torch.bfloat16, torch.float32, torch.float8_e4m3fn), (*STRATEGIES, "group-2")
        ):
            own = mine(a, kind), mine(b, kind)
            given = {"group": mesh, "placements": (words, words), "strategy": strategy}
            result = torch.float32 if kind.itemsize == 1 else kind
            try:
                for _ in range(3):
                    assert torch.equal(distributed.matmul(*own, **given), want.to(result))
                out = mine(c, result)
                made = distributed.matmul(*own, c=out, beta=-2, out=out, alpha=0.5, **given)
                assert made is out
                # Sums are whole or half numbers of 8 bits and more.
                exactly = 0.5 * want - 2 * mine(c, torch.float32)
                assert torch.equal(out, exactly.to(result))
                print(f"rank {rank}: {rows}×{ranks // rows} {kind} {strategy}: right", flush=True)
            except (AssertionError, GemmkitError) as error:
                failed.append(f"{rows}×{ranks // rows} {kind} {strategy}: {error!r}")
    assert not failed, failed


def shares(rank, ranks):
    """Parts that differ in size or are empty, in inference mode and after it, with kept memory."""
    device = torch.device("cuda", rank)
    random = torch.Generator().manual_seed(3)
    failed = []
    for m, n, k in ((513, 257, 129), (17, 515, 640), (1, 96, 64), (3, 1, 5), (300, 200, 1)):
        a, b = (
            torch.randint(-1, 2, each, generator=random).bfloat16() for each in ((m, k), (k, n))
        )
        for (words, result), inference in itertools.product(PLACEMENTS, (True, False)):
            with torch.inference_mode(inference):
                own = [
                    part(x, of, rank, ranks).to(device) for x, of in zip((a, b), words, strict=True)
                ]
                want = part((a.float() @ b.float()).bfloat16(), result, rank, ranks).to(device)
                given = {"placements": words, "placement": result, "shape": (m, n, k)}
                try:
                    # The second and third calls write to what the first has kept.
                    for _ in range(3):
                        assert torch.equal(distributed.matmul(*own, **given), want)
                except (AssertionError, GemmkitError, RuntimeError) as error:
                    failed.append(f"{m}×{n}×{k} {words} {result} {inference}: {error!r}")
    assert not failed, failed


def scaled(rank, ranks):
    """Operands of 8 bits, which each rank has quantized by itself."""
    random = torch.Generator().manual_seed(2)
    a, b = (
        torch.randn(side, generator=random) for side in ((512, 512 * ranks), (512 * ranks, 256))
    )
    for placements, result in PLACEMENTS:
        own = [part(each, of, rank, ranks) for each, of in zip((a, b), placements, strict=True)]
        for word in ("tensor", "rows", "128x128"):
            small_a, scale_a = gemmkit.quantize(own[0].cuda(), scale=word)
            small_b, scale_b = gemmkit.quantize(own[1].T.contiguous().cuda(), scale=word)
            for strategy in ("collective", *ONE_SHOT, "group-1", "copies-1", "copies-2", None):
                in_panels = placements[0] == placements[1]
                if in_panels and strategy in ONE_SHOT:
                    continue
                if in_panels and (word == "128x128" or strategy == "collective"):
                    continue
                made = distributed.matmul(
                    small_a,
                    small_b.T,
                    placements=placements,
                    placement=result,
                    scale_a=scale_a,
                    scale_b=scale_b.T,
                    strategy=strategy,
                )
                want = part(a @ b, result, rank, ranks).cuda()
                error = (made - want).abs().max() / want.abs().max()
                # Two operands of 4 bits, whose errors are independent.
                assert error < 0.05, (placements, word, strategy, error)


def one_wrong(rank, ranks):
    """An argument that is wrong on the last rank alone: all are told at once."""
    x = torch.ones(8, 64, device=torch.device("cuda", rank))
    w = torch.ones(64, 32, device=x.device)
    given = {"placements": ("S(0)", "S(1)"), "placement": "S(1)"}
    distributed.matmul(x, w, **given)
    begun = time.monotonic()
    for options in ({"strategy": "nothing"}, {"out": torch.ones(3, 3, device=x.device)}):
        right = {"out": torch.ones(8 * ranks, 32, device=x.device)} if "out" in options else {}
        said = ""
        try:
            distributed.matmul(
                x * 2, w, alpha=2, **(options if rank == ranks - 1 else right), **given
            )
        except GemmkitError as error:
            said = str(error)
        assert "nothing" in said or f"rank {ranks - 1} has out of shape (3, 3)" in said, said
    assert time.monotonic() - begun < PATIENCE / 3
    made = distributed.matmul(x, w, **given)
    assert bool((made == 64).all())


def one_shot(rank, ranks):
    """What one launch exchanges has the bits of NCCL's operations: of all forms and epilogues, of
    shares that differ, and by calls that follow each other on several streams."""
    device = torch.device("cuda", rank)
    random = torch.Generator().manual_seed(4)
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    forms = ((("S(0)", "S(1)"), "S(1)"), (("S(0)", "S(1)"), "S(0)"), *PLACEMENTS[1:3])
    for (m, n, k), kind in itertools.product(
        ((64, 512, 256), (33, 130, 70), (2, 40, 1), (512, 2048, 1024)),
        (torch.bfloat16, torch.float16, torch.float32, torch.float64),
    ):
        a, b, c = (
            torch.randn(each, generator=random).to(kind) for each in ((m, k), (k, n), (m, n))
        )
        for words, result in forms:
            own = [part(x, of, rank, ranks).to(device) for x, of in zip((a, b), words, strict=True)]
            old = part(c, result, rank, ranks).to(device)
            bias = torch.randn(old.shape[1], generator=random).to(kind).to(device)
            given = {"placements": words, "placement": result, "shape": (m, n, k)}
            beside = [{}, {"bias": bias, "residual": old}, {"c": old, "beta": 0.5}]
            if words[0] == "S(0)":
                beside.append({"bias": bias, "epilogue": "gelu"})
            for options in beside:
                want = distributed.matmul(*own, strategy="collective", **given, **options)
                torch.cuda.synchronize()
                for call in range(6):
                    out = torch.full((old.shape[1], old.shape[0]), torch.nan, dtype=kind)
                    out = out.to(device).T if call % 2 else None
                    torch.cuda.synchronize()
                    with torch.cuda.stream(streams[call // 2 % 2]):
                        made = distributed.matmul(
                            *own, strategy="one-shot", out=out, **given, **options
                        )
                        kept = made.clone()
                        made.fill_(torch.nan)
                    if call == 5:
                        torch.cuda.synchronize()
                        told = (m, n, k), kind, words, result, options.keys()
                        assert torch.equal(kept, want), told
    # Sums for all ranks in two steps, which otherwise pay off from three ranks on.
    kernels._BYTES_OF_ROUND = -1
    for m, n, k in ((65, 512, 256), (3, 7, 4), (700, 2048, 512)):
        a, b = (torch.randn(each, generator=random).bfloat16() for each in ((m, k), (k, n)))
        own = [
            part(x, of, rank, ranks).to(device)
            for x, of in zip((a, b), PLACEMENTS[2][0], strict=True)
        ]
        given = {"placements": PLACEMENTS[2][0], "placement": "R"}
        want = distributed.matmul(*own, strategy="collective", **given)
        for _ in range(5):
            made = distributed.matmul(*own, strategy="one-shot", **given)
            assert torch.equal(made, want), (m, n, k)


def death(rank, ranks, strategy):
    """The last rank ends before its fourth call: the others are ended with a message."""
    x = torch.ones(8, 64, device=torch.device("cuda", rank))
    w = torch.ones(64, 32, device=x.device)
    if strategy == "copies-fused":
        # It has kernels for large products only.
        x, w = (x.new_ones(side).bfloat16() for side in ((2048, 512), (512, 2048)))
    for call in range(4):
        if rank == ranks - 1 and call == 3:
            os._exit(0)
        distributed.matmul(x, w, placements=("S(0)", "S(1)"), placement="S(1)", strategy=strategy)
        torch.cuda.synchronize()


def main():
    name, *options = sys.argv[1].split(":")
    rank, ranks, file = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{file}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE / 3 if name == "death" else PATIENCE),
    )
    cases = (graphs, changes, summa, shares, scaled, one_wrong, one_shot, fused, death)
    {each.__name__: each for each in cases}[name](rank, ranks, *options)
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
