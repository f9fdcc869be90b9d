"""Pushes by copy engines, with threads in place of GPUs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import copy_engines  # noqa: E402
from gemmkit.distributed.execute import Arrays, run  # noqa: E402
from gemmkit.distributed.local import LocalProduct  # noqa: E402
from gemmkit.distributed.panel_run import PanelArrays, run_panels  # noqa: E402
from gemmkit.distributed.panels import Shares, panel_schedule  # noqa: E402
from gemmkit.distributed.schedule import schedule  # noqa: E402
from gemmkit.distributed.splits import shares  # noqa: E402
from gemmkit.errors import UnsupportedProblem  # noqa: E402
from gemmkit.ops.allgather import GatheredRows  # noqa: E402


class Waiting(LocalProduct):
    """Multiplies lines that arrive as a kernel that waits for their flags itself."""

    def under_gather(self, lines, fixed, out, span):
        self.engine(lines, fixed, out)
        return True


def when_there(lines):
    """All lines, as soon as every flag is set."""
    rank, ranks, rows = lines.shares
    for number in range(ranks - 1):
        copy_engines.wait_for_flag(lines.arrived + 4 * number, 1, 0)
    whole = lines.rows.clone()
    whole[rank * rows : (rank + 1) * rows] = lines.own
    return whole


def multiply(a, b, out, residual=None, c=None, **_):
    a = when_there(a) if isinstance(a, GatheredRows) else a
    sums = a @ b if residual is None else a @ b + residual
    out[:] = sums if c is None else sums + c


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("gather", LocalProduct),
        ("gather", Waiting),
        ("scatter", LocalProduct),
        ("reduce", LocalProduct),
    ],
)
def test_calls_in_turn_share_an_inbox(monkeypatch, ranks, form, kind):
    m, n, k = 21, 6, 11
    random = torch.Generator().manual_seed(1)
    calls = [
        (
            torch.randint(-4, 5, (m, k), generator=random).float(),
            torch.randint(-4, 5, (k, n), generator=random).float(),
            way,
            parts,
        )
        for way, parts in [("whole", 1), ("parts", 1), ("fused", 1), ("parts", 2), ("parts", 3)] * 3
        if way != "fused" or form == "gather"
    ]
    lines, depth = shares(m, ranks), shares(k, ranks)
    sizes = tuple(each.size for each in lines)

    def work(communicator):
        rank, made = communicator.rank, []
        for a, b, way, parts in calls:
            split, fixed, count = a[slice(*lines[rank])], b, m
            if form != "gather":
                split, fixed = a[:, slice(*depth[rank])], b[slice(*depth[rank])]
                count = sizes[rank] if form == "scatter" else m
            out = torch.full((count, n), torch.nan)
            product = kind(engine=multiply)
            steps = schedule(form, way, sizes, rank, parts)
            arrays = Arrays(
                split, fixed, out, product, lambda each: torch.empty(each, n), product.add
            )
            run(steps, arrays, communicator, "float32")
            made.append(out)
        return made

    by_rank = copy_engines.run(monkeypatch, ranks, work)
    for place, (a, b, *_) in enumerate(calls):
        found = [each[place] for each in by_rank]
        if form == "scatter":
            assert torch.equal(torch.cat(found), a @ b)
        else:
            assert all(torch.equal(each, a @ b) for each in found)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("form", "way"), [("gather", "parts"), ("gather", "fused"), ("scatter", "parts")]
)
@pytest.mark.parametrize("captured_calls", [1, 2])
def test_graphs_are_replayed_between_other_calls(monkeypatch, ranks, form, way, captured_calls):
    m, n, k = 4 * ranks, 3, 2 * ranks
    lines, depth = shares(m, ranks), shares(k, ranks)
    sizes = tuple(each.size for each in lines)
    graphs = copy_engines.Graphs()

    def matrices(call):
        random = torch.Generator().manual_seed(call)
        return [torch.randint(-4, 5, side, generator=random).float() for side in ((m, k), (k, n))]

    def work(communicator):
        rank = communicator.rank
        split, fixed = torch.empty(sizes[rank], k), torch.empty(k, n)
        out = torch.empty(m, n)
        if form == "scatter":
            split, fixed = torch.empty(m, depth[rank].size), torch.empty(depth[rank].size, n)
            out = torch.empty(sizes[rank], n)
        product = Waiting(engine=graphs.recorded(multiply))
        arrays = Arrays(split, fixed, out, product, lambda each: torch.empty(each, n), product.add)
        steps = schedule(form, way, sizes, rank, 2)

        def checked(number, call):
            a, b = matrices(number)
            split.copy_(a[slice(*lines[rank])] if form == "gather" else a[:, slice(*depth[rank])])
            fixed.copy_(b if form == "gather" else b[slice(*depth[rank])])
            out.fill_(torch.nan)
            call()
            want = a @ b
            assert torch.equal(out, want if form == "gather" else want[slice(*lines[rank])])

        def eager():
            run(steps, arrays, communicator, "float32")

        checked(0, eager)
        with graphs.capture() as replay:
            for _ in range(captured_calls):
                eager()
        for number in range(1, 8):
            checked(number, replay if number % 3 else eager)
        return True

    assert all(copy_engines.run(monkeypatch, ranks, work, graphs))


def test_an_inbox_that_was_first_used_in_inference_mode(monkeypatch):
    a, b = torch.arange(8.0).view(4, 2), torch.arange(6.0).view(2, 3)

    def work(communicator):
        rank, made = communicator.rank, []
        for inference in (True, True, False, False):
            out = torch.full((4, 3), torch.nan)
            product = LocalProduct(engine=multiply)
            with torch.inference_mode(inference):
                arrays = Arrays(a[2 * rank : 2 * rank + 2], b, out, product, None, product.add)
                run(schedule("gather", "whole", (2, 2), rank), arrays, communicator, "float32")
            made.append(torch.equal(out, a @ b))
        return all(made)

    assert copy_engines.run(monkeypatch, 2, work) == [True, True]


def test_a_graph_needs_memory_that_is_there(monkeypatch):
    def work(communicator):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        steps = schedule("gather", "parts", (2, 2), communicator.rank)
        with pytest.raises(UnsupportedProblem, match="make one before"):
            communicator.start(steps, None, "float32", 4)
        return True

    assert copy_engines.run(monkeypatch, 2, work) == [True, True]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_panels_in_turn_share_an_inbox(monkeypatch, ranks, operand):
    m, n, k = 5, 6, 13
    random = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, side, generator=random).float() for side in ((m, k), (k, n)))
    spans = shares(k, ranks)
    sizes = tuple(each.size for each in spans)

    def work(communicator):
        own = slice(*spans[communicator.rank])
        spread, all_of_it = Shares(sizes, communicator.rank), Shares((k,), 0)
        made = []
        for parts, whole in ((1, False), (2, False), (1, True)) * 2:
            if operand == "a":
                arrays, means = (a[:, own], b), (communicator, None)
                steps = panel_schedule(spread, all_of_it, parts, whole=whole)
            else:
                arrays, means = (a, b[own]), (None, communicator)
                steps = panel_schedule(all_of_it, spread, parts, whole=whole)
            out = torch.full((m, n), torch.nan)
            given = PanelArrays(*arrays, out, LocalProduct(engine=multiply), None)
            run_panels(steps, given, means, "float32", whole=whole)
            made.append(out)
        return made

    for made in copy_engines.run(monkeypatch, ranks, work):
        assert all(torch.equal(each, a @ b) for each in made)
