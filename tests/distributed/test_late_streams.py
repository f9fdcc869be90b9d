"""Pushes by copy engines whose streams are late: what orders flags and copies of calls in turn."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from gemmkit.distributed.execute import Arrays, run  # noqa: E402
from gemmkit.distributed.local import LocalProduct  # noqa: E402
from gemmkit.distributed.schedule import schedule  # noqa: E402
from gemmkit.distributed.splits import consecutive, shares  # noqa: E402
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
        self.engine.multiply(lambda: out.copy_(lines @ fixed + (0 if sums is None else sums)))


class Spread:
    """A product of rows of A that all ranks gather, or of sums that they scatter. `results` are
    those found, once the streams have done everything, and what they are to be."""

    def __init__(self, ranks, form, way, sizes, k, *, captured):
        self.ranks, self.k, self.results, self.calls = ranks, k, [], []
        lines, depth = consecutive(sizes), shares(k, len(sizes))
        every, of_k = slice(0, lines[-1].stop), slice(0, k)
        # Of each rank: its lines of A and its k, and the lines of the result.
        self.parts = [
            (slice(*own), of_k, every) if form == "gather" else (every, slice(*deep), slice(*own))
            for own, deep in zip(lines, depth, strict=True)
        ]
        self.lines = lines[-1].stop
        # Sums stay where they are until they have been copied.
        self.arrays, self.sums = [], []
        for rank, (own, deep, made) in enumerate(self.parts):
            split = torch.empty(own.stop - own.start, deep.stop - deep.start)
            fixed = torch.empty(deep.stop - deep.start, N)
            out = torch.empty(made.stop - made.start, N)
            self.arrays.append((split, fixed, out))
            arrays = Arrays(*self.arrays[-1], LateProduct(engine=ranks), self.new, None)
            steps = schedule(form, way, sizes, rank, 2 if way == "parts" else 1)
            of, ranks.rank = ranks.communicators[rank], rank

            def call(given=(steps, arrays, of, "float32")):
                run(*given)

            self.calls.append(ranks.capture(call) if captured else call)

    def new(self, count):
        self.sums.append(torch.empty(count, N))
        return self.sums[-1]

    def multiply(self, numbers):
        """Once more, with other numbers."""
        sides = (self.lines, self.k), (self.k, N)
        a, b = (torch.randint(-4, 5, side, generator=numbers).float() for side in sides)
        for rank, (own, deep, made) in enumerate(self.parts):
            split, fixed, out = self.arrays[rank]
            self.ranks.rank, kept = rank, torch.empty_like(out)

            def fill(split=split, fixed=fixed, out=out, own=own, deep=deep):
                split.copy_(a[own, deep])
                fixed.copy_(b[deep])
                out.fill_(torch.nan)

            self.ranks.multiply(fill)
            self.calls[rank]()
            self.ranks.multiply(lambda kept=kept, out=out: kept.copy_(out))
            self.results.append((kept, (a @ b)[made]))


@pytest.mark.parametrize("graphs", [False, True], ids=["calls", "calls and graphs"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_in_turn_with_shares_of_any_length(monkeypatch, ranks, graphs):
    for seed in range(40):
        pick, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
        late, captured, made = LateRanks(monkeypatch, ranks, 1 << 11, seed), [], []
        for _ in range(6):
            if captured and pick.random() < 0.5:
                pick.choice(captured).multiply(numbers)
                continue
            in_graph = graphs and pick.random() < 0.5
            ways = [("gather", "fused"), ("gather", "parts"), ("gather", "whole")]
            if in_graph or captured or not graphs:
                # Before the first graph, nobody waits for those who only pass sums on.
                ways.append(("scatter", "parts"))
            form, way = pick.choice(ways)
            sizes = [3] * (ranks - 1) + [pick.choice((1, 3))]
            if pick.random() < 0.4:
                sizes = [pick.choice((0, 2)) for _ in sizes]
            k = 3 if form == "scatter" else pick.choice((3, 3, 0))
            made.append(Spread(late, form, way, tuple(sizes), k, captured=in_graph))
            if in_graph:
                captured.append(made[-1])
            made[-1].multiply(numbers)
        late.finish()
        for place, each in enumerate(made):
            for found, want in each.results:
                assert torch.equal(found, want), (seed, place)
