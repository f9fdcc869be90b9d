"""Pushes by copy engines whose streams are late: what orders flags and copies of calls in turn."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from gemmkit.distributed.execute import Arrays, run  # noqa: E402
from gemmkit.distributed.local import LocalProduct  # noqa: E402
from gemmkit.distributed.schedule import schedule  # noqa: E402
from gemmkit.distributed.splits import consecutive  # noqa: E402
from late_copy_engines import LateRanks  # noqa: E402

N = 2


class LateProduct(LocalProduct):
    """Products on the streams of `LateRanks`, its engine."""

    def under_gather(self, lines, fixed, out, span):
        rank, ranks, rows = lines.shares
        own = slice(rank * rows, (rank + 1) * rows)
        self.engine.multiply(lambda: torch.mm(lines.own, fixed, out=out[own]))
        for number in range(ranks - 1):
            first = (rank + 1 + number) % ranks * rows
            self.engine.multiply(
                lambda at=slice(first, first + rows): torch.mm(lines.rows[at], fixed, out=out[at]),
                lines.arrived + 4 * number,
            )
        return True

    def __call__(self, lines, fixed, out, sums, span, place=None):
        self.engine.multiply(lambda: torch.mm(lines, fixed, out=out))


class Gathered:
    """A product of rows of A that all ranks gather: `wrong` are results that are not what they are
    to be, once the streams have done everything."""

    def __init__(self, ranks, sizes, way, k, *, captured):
        self.ranks, self.spans, self.results = ranks, consecutive(sizes), []
        self.arrays = [
            (torch.empty(each, k), torch.empty(k, N), torch.empty(sum(sizes), N)) for each in sizes
        ]
        self.calls = []
        for rank, (own, fixed, out) in enumerate(self.arrays):
            arrays = Arrays(own, fixed, out, LateProduct(engine=ranks), None, None)
            steps = schedule("gather", way, sizes, rank, 2 if way == "parts" else 1)
            of, ranks.rank = ranks.communicators[rank], rank

            def call(given=(steps, arrays, of, "float32")):
                run(*given)

            self.calls.append(ranks.capture(call) if captured else call)

    def multiply(self, numbers):
        """Once more, with other numbers."""
        ranks, (own, fixed, _) = self.ranks, self.arrays[0]
        sides = (self.spans[-1].stop, own.shape[1]), fixed.shape
        a, b = (torch.randint(-4, 5, side, generator=numbers).float() for side in sides)
        for rank, arrays in enumerate(self.arrays):
            ranks.rank, kept = rank, torch.empty_like(arrays[2])

            def fill(arrays=arrays, span=slice(*self.spans[rank])):
                own, fixed, out = arrays
                own.copy_(a[span])
                fixed.copy_(b)
                out.fill_(torch.nan)

            ranks.multiply(fill)
            self.calls[rank]()
            ranks.multiply(lambda kept=kept, out=arrays[2]: kept.copy_(out))
            self.results.append((kept, a @ b))


@pytest.mark.parametrize("graphs", [False, True], ids=["calls", "calls and graphs"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_in_turn_with_shares_of_any_length(monkeypatch, ranks, graphs):
    for seed in range(40):
        pick, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
        late, captured, made = LateRanks(monkeypatch, ranks, 1 << 10, seed), [], []
        without = pick.randrange(ranks)
        for _ in range(6):
            sizes = [3] * (ranks - 1) + [pick.choice((1, 3))]
            if not graphs and pick.random() < 0.4:
                # A rank that sends nothing is told of no flag, and goes on.
                sizes[without] = 0
            way, k = pick.choice(("fused", "fused", "parts")), pick.choice((3, 3, 0))
            if captured and pick.random() < 0.5:
                pick.choice(captured).multiply(numbers)
                continue
            in_graph = graphs and pick.random() < 0.5
            made.append(Gathered(late, tuple(sizes), way, k, captured=in_graph))
            if in_graph:
                captured.append(made[-1])
            made[-1].multiply(numbers)
        late.finish()
        for place, each in enumerate(made):
            for found, want in each.results:
                assert torch.equal(found, want), (seed, place)
