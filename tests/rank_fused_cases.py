"""What `rank_gpu_cases.py` does of products in one launch that waits for shares of A or of B."""

from __future__ import annotations

import torch

import gemmkit
from gemmkit import distributed
from gemmkit.distributed import local
from gemmkit.errors import UnsupportedProblem

# Lines of a share of the side that is gathered, of which the last rank has fewer, and of the other.
SHARE, FEWER, K = 2048, 256, 512


class Gathered:
    """Matrices whose numbers change, this rank's parts, and its product on one GPU: of rows of A
    that are gathered where the result is S(1), of columns of B where it is S(0)."""

    def __init__(self, rank, ranks, result):
        self.result, self.mine = result, slice(SHARE * rank, SHARE * (rank + 1))
        lines, others = SHARE * ranks - FEWER, SHARE * ranks
        m, n = (lines, others) if result == "S(1)" else (others, lines)
        self.a, self.b = torch.randn(m, K, device="cuda"), torch.randn(K, n, device="cuda")
        self.own = [each.clone() for each in self.parts()]
        self.given = {
            "placements": ("S(0)", "S(1)"),
            "placement": result,
            "strategy": "copies-fused",
            "shape": (m, n, K),
        }

    def parts(self):
        """This rank's."""
        return self.a[self.mine].bfloat16(), self.b[:, self.mine].bfloat16().contiguous()

    def change(self):
        """Other numbers."""
        for each in (self.a, self.b):
            torch.add(each.roll(1, 0), 0.25, out=each)
        for own, new in zip(self.own, self.parts(), strict=True):
            own.copy_(new)

    def call(self, **options):
        return distributed.matmul(*self.own, **options, **self.given)

    def expected(self, **options):
        """All lines by one launch of this GPU's."""
        if self.result == "S(1)":
            return gemmkit.matmul(self.a.bfloat16(), self.own[1], **options)
        if "out" not in options:
            # Gathered columns lie as they are computed.
            sides = self.b.shape[1], len(self.own[0])
            options["out"] = torch.empty(sides, dtype=torch.bfloat16, device="cuda").T
        return gemmkit.matmul(self.own[0], self.b.bfloat16(), **options)


def fused(rank, ranks):
    """The bits of one GPU, with ranks that come late and what follows the sums, in graphs too."""
    done, multiply = [], local.multiply_gathered

    def noted(*given, **options):
        done.append(multiply(*given, **options))
        return done[-1]

    local.multiply_gathered = noted
    torch.manual_seed(7)
    for result in ("S(1)", "S(0)"):
        matrices = Gathered(rank, ranks, result)
        for turn in range(6):
            matrices.change()
            want = matrices.expected()
            if turn % ranks == rank:
                # The others' launches wait for this rank.
                torch.cuda._sleep(20_000_000)
            assert torch.equal(matrices.call(), want), (result, turn)
        assert done == [True] * 6, (result, done)
        epilogues(matrices)
        graphs(matrices)
        print(f"rank {rank}: {result}: {done.count(True)} of {len(done)} in one launch", flush=True)
        done.clear()
    local.multiply_gathered = multiply
    refusals(rank)


def epilogues(matrices):
    """What follows the sums; where one launch does not take it, once all shares are there."""
    c, residual = torch.randn(2, *matrices.expected().shape, device="cuda").bfloat16()
    again, bias = c.clone(), residual[0].clone()
    for options in (
        {"bias": bias, "epilogue": "bias+relu"},
        {"bias": bias, "residual": residual, "epilogue": "bias+gelu+residual"},
        {"alpha": 0.5},
    ):
        assert torch.equal(matrices.call(**options), matrices.expected(**options)), options.keys()
    made = matrices.call(c=c, beta=0.5, out=c)
    assert torch.equal(made, matrices.expected(c=again, beta=0.5, out=again))


def graphs(matrices):
    """Two captured calls, replayed between calls that are not captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(2):
            made = matrices.call()
    for turn in range(6):
        matrices.change()
        want = matrices.expected()
        if turn % 3:
            made.fill_(-1)
            graph.replay()
        assert torch.equal(made if turn % 3 else matrices.call(), want), turn
    torch.cuda.synchronize()


def refusals(rank):
    """All ranks refuse shares that no tile divides, and that one of them does not have."""
    w = torch.ones(K, SHARE, device="cuda").bfloat16()
    for rows, reason in ((1948, "divides shares of 1948 rows"), (0, "that are equal")):
        x = torch.ones(1948 if rank else rows, K, device="cuda").bfloat16()
        said = ""
        try:
            distributed.matmul(x, w, placements=("S(0)", "S(1)"), strategy="copies-fused")
        except UnsupportedProblem as error:
            said = str(error)
        assert reason in said, said
