"""Meshes, β·C and `out`, and errors of one rank, by processes with gloo and the emulator.

Run as `rank_cases.py` is.
"""

from __future__ import annotations

import itertools
import re
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gemmkit import distributed
from gemmkit.errors import DistributedError, GemmkitError, UsageError
from rank_cases import main, matrices, part, restore, whole

SUMMA = ("S(0)", "S(1)"), ("S(0)", "S(1)")
STRATEGIES = (None, "collective", "group-whole", "group-1", "group-2")


def mesh_of(*sizes):
    return init_device_mesh("cpu", sizes)


def of_mesh(mesh, matrix, words):
    """This rank's part on a mesh."""
    for at, word in enumerate(words):
        matrix = part(matrix, word, mesh.get_local_rank(at), mesh.size(at))
    return matrix


def meshes(rank, ranks):
    """SUMMA by each strategy, with shares that are empty, and with what follows the sums."""
    for rows in (1, 2) if ranks == 2 else (2,):
        mesh = mesh_of(rows, ranks // rows)
        for (m, n, k), strategy in (
            *(((5, 7, 9), each) for each in STRATEGIES),
            ((1, 1, 1), "group-1"),
        ):
            a, b = matrices(m, n, k)
            c, residual = torch.arange(float(m * n)).view(m, n), torch.ones(m, n)
            given = {
                "group": mesh,
                "placements": SUMMA,
                "strategy": strategy,
                "device": "emulator",
            }
            mine = [of_mesh(mesh, each, SUMMA[0]) for each in (a, b, c, residual)]
            made = distributed.matmul(*mine[:2], **given)
            assert torch.equal(made, of_mesh(mesh, a @ b, SUMMA[0])), (rows, strategy)
            out = torch.full_like(made, torch.nan)
            made = distributed.matmul(
                *mine[:2],
                c=mine[2],
                beta=2,
                residual=mine[3],
                epilogue="relu+residual",
                out=out,
                **given,
            )
            assert made is out
            want = torch.relu(a @ b + 2 * c) + residual
            assert torch.equal(made, of_mesh(mesh, want, SUMMA[0])), (rows, strategy)
            if m == 1 or strategy not in (None, "group-1"):
                continue
            # All of it on all ranks: by operations of the groups after the product.
            made = distributed.matmul(*mine[:2], placement=("R", "R"), c=c, beta=1, **given)
            assert torch.equal(made, a @ b + c)
            for each in mine[:3]:
                each.requires_grad_()
            made = distributed.matmul(*mine[:2], c=mine[2], beta=3, **given)
            factor = torch.arange(float(m * n)).view(m, n)
            (made * of_mesh(mesh, factor, SUMMA[0])).sum().backward()
            for each, of in zip(mine[:3], (factor @ b.T, a.T @ factor, 3 * factor), strict=True):
                assert torch.equal(each.grad, of_mesh(mesh, of, SUMMA[0]))


def halves(rank, ranks):
    """Sums of 16 bits in panels: as near to the exact ones as those of one product."""
    mesh = mesh_of(ranks // 2, 2)
    random = torch.Generator().manual_seed(3)
    a, b = (torch.randn(side, generator=random).bfloat16() for side in ((8, 32), (32, 8)))
    mine = [of_mesh(mesh, each, SUMMA[0]) for each in (a, b)]
    runs = [
        distributed.matmul(
            *mine, group=mesh, placements=SUMMA, strategy="group-2", device="emulator"
        )
        for _ in range(2)
    ]
    assert torch.equal(*runs)
    exactly = of_mesh(mesh, a.double() @ b.double(), SUMMA[0])
    bound = of_mesh(mesh, a.double().abs() @ b.double().abs(), SUMMA[0]) * 32 * 2.0**-24
    # One rounding to 8 bits.
    assert torch.all((runs[0].double() - exactly).abs() <= 2.0**-8 * exactly.abs() + 2 * bound)


def added(rank, ranks):
    """β·C once, and results where they are asked for, by each strategy and placement."""
    m, n, k = 7, 5, 6
    a, b = matrices(m, n, k)
    c, bias, residual = torch.arange(35.0).view(m, n), torch.arange(5.0), 7 * torch.ones(m, n)
    cases = [
        (("S(0)", "S(1)"), "S(1)"),
        (("S(0)", "S(1)"), "S(0)"),
        (("S(1)", "S(0)"), "S(0)"),
        (("S(1)", "S(0)"), "S(1)"),
        (("S(1)", "S(0)"), "R"),
        (("S(1)", "S(0)"), "P"),
        (("S(0)", "S(0)"), "S(0)"),
        (("S(1)", "S(1)"), "S(1)"),
        (("R", "S(1)"), "S(1)"),
        # The result is brought there after the product.
        (("S(0)", "R"), "R"),
    ]
    for (placements, placement), strategy in itertools.product(cases, STRATEGIES):
        if strategy in ("group-whole", "group-2") and placement in ("S(1)", "P"):
            continue
        mine = part(a, placements[0], rank, ranks), part(b, placements[1], rank, ranks)
        own = part(c, placement, rank, ranks).clone()
        given = {
            "placements": placements,
            "placement": placement,
            "strategy": strategy,
            "device": "emulator",
        }
        made = distributed.matmul(*mine, alpha=2, beta=3, c=own, **given)
        assert torch.equal(whole(made, placement, ranks), 2 * (a @ b) + 3 * c), given
        # In place, as BLAS has it, and in columns of a larger array.
        wide = torch.full((own.shape[0], own.shape[1] + 2), torch.nan)
        for out in (own, wide[:, 1 : own.shape[1] + 1]):
            out.copy_(part(c, placement, rank, ranks))
            beside = {}
            if placement != "P":
                beside["bias"] = part(bias, "S(0)" if placement == "S(1)" else "R", rank, ranks)
                beside["residual"] = part(residual, placement, rank, ranks)
            made = distributed.matmul(*mine, beta=-1, c=out, out=out, **beside, **given)
            assert made is out
            want = a @ b - c + ((bias + residual) if beside else 0)
            assert torch.equal(whole(out, placement, ranks), want), given
        assert torch.isnan(wide[:, [0, -1]]).all()
        # Without β, C is not read.
        made = distributed.matmul(*mine, c=torch.full_like(own, torch.nan), **given)
        assert torch.equal(whole(made, placement, ranks), a @ b), given
    # Rows of more than one dimension.
    x, w = torch.arange(24.0).view(2, 3, 4), torch.arange(4.0 * ranks).view(4, ranks)
    out = torch.zeros(2, 3, 1)
    given = {"placements": ("R", "S(1)"), "device": "emulator"}
    made = distributed.matmul(x, w[:, rank : rank + 1], c=out + 1, beta=2, out=out, **given)
    assert made is out
    assert torch.equal(out, (x @ w)[..., rank : rank + 1] + 2)


class Unreadable(tuple):
    """A shape that raises what no rule of gemmkit's foresees."""

    def __iter__(self):
        raise RuntimeError("no sizes")


def errors(rank, ranks):
    """What is wrong on one rank is an error on all of them, and the next product is made."""
    a_and_b = matrices(4, 6, 8)
    mine = part(a_and_b[0], "S(1)", rank, ranks), part(a_and_b[1], "S(0)", rank, ranks)
    given = {"placements": ("S(1)", "S(0)"), "placement": "S(0)", "device": "emulator"}
    right = {"c": part(torch.zeros(4, 6), "S(0)", rank, ranks), "beta": 1.0}

    def told(*, a=mine[0], b=mine[1], placements=None, **options):
        given_here = given if placements is None else given | {"placements": placements}
        try:
            distributed.matmul(a, b, **{**given_here, **right, **options})
        except GemmkitError as error:
            every = [None] * ranks
            dist.all_gather_object(every, (type(error).__name__, str(error)))
            made = distributed.matmul(*mine, **given)
            assert torch.equal(
                whole(made, "S(0)", ranks), matrices(4, 6, 8)[0] @ matrices(4, 6, 8)[1]
            )
            return every
        raise AssertionError(f"{options} are no error")

    last = rank == ranks - 1
    for options, said in (
        ({"a": mine[0].double()} if last else {}, "a has type torch.float64"),
        ({"a": "x"} if last else {}, "a has type str: give tensors"),
        ({"alpha": "x"} if last else {}, "is not a number"),
        ({"out": torch.zeros(())} if last else {}, "out has 0 dimensions"),
        ({"epilogue": "nothing"} if last else {}, "'nothing'"),
        ({"strategy": "nothing"} if last else {}, "'nothing'"),
        ({"placements": "S(0)"} if last else {}, "placements: give those of a and b"),
        ({"b": mine[1][0]} if last else {}, "and b 1: over ranks"),
        ({"c": right["c"].double()} if last else {}, "c has type torch.float64"),
        ({"c": None} if last else {}, "beta = 1 needs c"),
        ({"out_dtype": "zz"} if last else {}, "out_dtype = 'zz' is not a type"),
        ({"out_dtype": torch.int64} if last else {}, "out_dtype = torch.int64 is not a type"),
        ({"device": "zz"} if last else {}, "device = 'zz': use"),
        ({"precision": "zz"} if last else {}, "unknown precision 'zz'"),
        ({"a": mine[0].to_sparse()} if last else {}, "a is torch.sparse_coo"),
        ({"a": mine[0].to("meta")} if last else {}, "a is on meta"),
        ({"placements": 3} if last else {}, "placements: give those of a and b"),
        ({"shape": Unreadable()} if last else {}, "an argument cannot be read: no sizes"),
        (
            {"out": right["c"][:1].expand(right["c"].shape) if last else right["c"].clone()},
            "out has elements that share memory",
        ),
        (
            {"out": right["c"].clone().requires_grad_(last)},
            "out requires a gradient",
        ),
        ({"c": right["c"].to_sparse() if last else right["c"]}, "c is torch.sparse_coo"),
        ({"bias": torch.zeros(6).to_sparse() if last else torch.zeros(6)}, "bias is torch.sparse"),
    ):
        every = told(**options)
        for place, (kind, text) in enumerate(every):
            assert said in text, (said, every)
            if place < ranks - 1:
                assert kind == "DistributedError"
                assert text.startswith(f"rank {ranks - 1} cannot take part: ")
    for name, size in (("c", (5, 6)), ("out", (2, 5)), ("residual", (1, 6)), ("bias", (5,))):
        options = {name: torch.zeros(size)} if last else {name: torch.zeros(0)}
        if name != "bias" and not last:
            options = {name: right["c"].clone()}
        if name == "bias" and not last:
            options = {name: torch.zeros(6)}
        every = told(**options)
        assert len(set(every)) == 1, every
        assert (
            f"rank {ranks - 1} has {'a bias' if name == 'bias' else name} of shape" in every[0][1]
        )


def mesh_errors(rank, ranks):
    """The same on a mesh: of whichever row and column the rank is, all ranks are told."""
    mesh = mesh_of(2, ranks // 2)
    a, b = matrices(4, 6, 8)
    mine = of_mesh(mesh, a, SUMMA[0]), of_mesh(mesh, b, SUMMA[0])
    given = {"group": mesh, "placements": SUMMA, "device": "emulator"}
    for wrong in range(ranks):
        for options in (
            {"alpha": "x"} if rank == wrong else {},
            {"out": torch.zeros((9, 9) if rank == wrong else (2, 12 // ranks))},
            {"alpha": 2.0 if rank == wrong else 1.0},
            {"a": mine[0][:, :1] if rank == wrong else mine[0]},
        ):
            try:
                beside = {name: each for name, each in options.items() if name != "a"}
                distributed.matmul(options.get("a", mine[0]), mine[1], **given, **beside)
            except GemmkitError as error:
                said = str(error)
            else:
                raise AssertionError(f"rank {wrong}: {options} are no error")
            every = [None] * ranks
            dist.all_gather_object(every, said)
            if "out" in options:
                assert len(set(every)) == 1, every
                assert f"rank {wrong}, at " in said
                assert "has out of shape (9, 9)" in said
            elif "a" in options or isinstance(options.get("alpha"), float):
                # Ranks are named by their numbers among all, also where 0 is the wrong one.
                assert len(set(every)) == 1, every
                numbers = {int(each) for each in re.findall(r"rank (\d+)", said)}
                assert wrong in numbers, said
            else:
                others = {each for place, each in enumerate(every) if place != wrong}
                assert len(others) == 1, every
                assert f"rank {wrong} cannot take part: alpha" in others.pop()
            made = distributed.matmul(*mine, **given)
            assert torch.equal(made, of_mesh(mesh, a @ b, SUMMA[0]))


def warm_panels(rank, ranks):
    """As on GPUs: ranks agree once on a product of a mesh, and take what is predicted best."""
    from gemmkit.distributed.team import team_of
    from gemmkit.gpu import BOARDS

    mesh = mesh_of(1, ranks)
    teams = [team_of(mesh.get_group(at), torch.device("cpu")) for at in (0, 1)]
    asked = [0, 0]
    for at, team in enumerate(teams):
        team.board = BOARDS["h100"]

        def agree(facts, at=at, own=team.communicator.agree):
            asked[at] += 1
            return own(facts)

        team.communicator.agree = agree
    for strategy in (None, "group-1", "collective"):
        counts = []
        for call in range(3):
            a, b = (each + call for each in matrices(5, 6, 8))
            out = torch.zeros(5, 6).chunk(ranks, 1)[rank]
            made = distributed.matmul(
                a.chunk(ranks, 1)[rank],
                b.chunk(ranks, 1)[rank],
                group=mesh,
                placements=SUMMA,
                strategy=strategy,
                c=out + 1,
                beta=call + 1.0,
                out=out,
                device="emulator",
            )
            assert made is out
            assert torch.equal(out, (a @ b + call + 1).chunk(ranks, 1)[rank]), strategy
            again = distributed.matmul(
                a.chunk(ranks, 1)[rank],
                b.chunk(ranks, 1)[rank],
                group=mesh,
                placements=SUMMA,
                strategy=strategy,
                device="emulator",
            )
            assert torch.equal(again, (a @ b).chunk(ranks, 1)[rank]), strategy
            counts.append(list(asked))
        # Each β is another product; without C it is the same one in all calls.
        each = counts[1][1] - counts[0][1]
        assert each > 0
        assert counts[2][1] - counts[1][1] == each
        assert strategy is not None or counts[0][1] == 2 * each
    for team in teams:
        restore(team)


def captured_panels(rank, ranks):
    """Calls are prepared where the strategy is left to gemmkit, but not for CUDA graphs, which take
    another one."""
    from gemmkit.distributed import agreements, products, warm
    from gemmkit.distributed.strategy import Strategy
    from gemmkit.distributed.team import team_of
    from gemmkit.gpu import BOARDS

    mesh = mesh_of(1, ranks)
    teams = [team_of(mesh.get_group(at), torch.device("cpu")) for at in (0, 1)]
    prepared, captures, run_plan = [], [], warm.run_plan
    with pytest.MonkeyPatch.context() as patch:
        for team in teams:
            patch.setattr(team, "board", BOARDS["h100"])
        best = Strategy("group", "parts", 1)
        patch.setattr(agreements, "best_panel_strategy", lambda *_, **__: best)
        patch.setattr(products, "_captured", lambda _: bool(captures))
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(captures))
        patch.setattr(warm, "run_plan", lambda *given: prepared.append(1) or run_plan(*given))
        a, b = matrices(5, 6, 8)
        own = [each.chunk(ranks, 1)[rank] for each in (a, b)]
        given = {"group": mesh, "placements": SUMMA, "device": "emulator"}
        for graph, count in ((False, 1), (False, 2), (True, 2), (False, 3)):
            captures[:] = [1] * graph
            made = distributed.matmul(*own, **given)
            assert torch.equal(made, (a @ b).chunk(ranks, 1)[rank])
            assert len(prepared) == count, (graph, count)
    for team in teams:
        restore(team)


def repeat(count, call):
    for _ in range(count):
        call()
        time.sleep(0.02)


def warm_errors(rank, ranks):
    """As on GPUs: ranks that have seen a product ask nobody, and are told by the log of calls."""
    from gemmkit.distributed.call_log import shared_log
    from gemmkit.distributed.team import team_of
    from gemmkit.gpu import BOARDS

    team = team_of(None, torch.device("cpu"))
    team.board, team.log = BOARDS["h100"], shared_log(team.communicator, 20.0)
    try:
        a, b = matrices(4, 6, 8)
        given = {"placements": ("R", "S(1)"), "device": "emulator"}
        mine = a, part(b, "S(1)", rank, ranks)
        for _ in range(2):
            distributed.matmul(*mine, **given)
        # A wrong argument on all ranks leaves the log as it was.
        for _ in range(2):
            with pytest.raises(UsageError, match="is not a number"):
                distributed.matmul(*mine, alpha="x", **given)
        distributed.matmul(*mine, **given)
        dist.barrier()
        if rank == ranks - 1:
            with pytest.raises(UsageError, match="alpha = 'x' is not a number"):
                distributed.matmul(*mine, alpha="x", **given)
        else:
            # If it has begun with the call already, it is told in its next one.
            with pytest.raises(DistributedError, match=f"rank {ranks - 1} cannot take part: alpha"):
                repeat(200, lambda: distributed.matmul(*mine, **given))
        dist.barrier()
    finally:
        team.board = team.log = None


CASES = (meshes, halves, added, errors, mesh_errors, warm_errors, warm_panels, captured_panels)

if __name__ == "__main__":
    main(CASES)
