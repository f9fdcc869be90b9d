"""Operands of 8 bits with scales, by processes with gloo and the emulator.

Run as `rank_cases.py` is.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import gemmkit
from gemmkit import distributed
from gemmkit.distributed import agreements, autograd, front, products
from gemmkit.distributed.team import team_of
from gemmkit.errors import GemmkitError, UnsupportedProblem
from gemmkit.gpu import BOARDS
from rank_cases import main, part, restore, whole


def scales(rank, ranks):
    """Operands of 8 bits with scales of all kinds: as those of one product, dequantized."""
    m, n, k = 3 * ranks, 2 * ranks, 128 * ranks
    random = torch.Generator().manual_seed(5)
    a, b = (
        torch.randint(-2, 3, side, generator=random).to(torch.float8_e4m3fn)
        for side in ((m, k), (k, n))
    )

    def powers(*size):
        """Scales whose products are exact."""
        return 2.0 ** torch.randint(-2, 3, size, generator=random)

    def shard(given, word, side):
        """Those of a rank's share: of all of the operand along a side where they do not vary."""
        return given if given.shape[side] == 1 else part(given, word, rank, ranks)

    kinds = {
        "tensor": (powers(1, 1), powers(1, 1)),
        "rows": (powers(m, 1), powers(1, n)),
        "chunks": (powers(m, k // 128), powers(k // 128, n)),
        # One block of all rows, which are fewer than 128.
        "blocks": (powers(1, k // 128), powers(k // 128, 1)),
    }
    placed = [
        (("S(0)", "S(1)"), "S(1)"),
        (("S(0)", "S(1)"), "S(0)"),
        (("S(1)", "S(0)"), "S(0)"),
        (("S(1)", "S(0)"), "R"),
        (("S(1)", "S(1)"), "S(1)"),
        (("S(0)", "S(0)"), "S(0)"),
    ]
    for name, (of_a, of_b) in kinds.items():
        want = (a.float() * widened(of_a, m, k)) @ (b.float() * widened(of_b, k, n))
        for placements, placement in placed:
            for strategy in (None, "group-1") if name != "rows" else (None, "group-2"):
                made = distributed.matmul(
                    part(a, placements[0], rank, ranks).contiguous(),
                    part(b, placements[1], rank, ranks).T.contiguous().T,
                    placements=placements,
                    placement=placement,
                    scale_a=shard(of_a, placements[0], int(placements[0][2])),
                    scale_b=shard(of_b, placements[1], int(placements[1][2])),
                    strategy=strategy,
                    device="emulator",
                )
                found = whole(made, placement, ranks)
                assert torch.equal(found, want), (name, placements, placement, strategy)
    own_scales(rank, ranks)


def own_scales(rank, ranks):
    """Each rank has quantized its parts by itself, with scales of its own."""
    m, n, k = 200, 2 * ranks, 160 * ranks
    random = torch.Generator().manual_seed(6)
    a, b = (torch.randn(side, generator=random) for side in ((m, k), (k, n)))
    for given_as, placement, words, strategies in (
        (("S(0)", "S(1)"), "S(1)", ("tensor", "128x128"), (None, "group-2")),
        # Shares of k that are no multiple of 128 have chunks of their own.
        (("S(1)", "S(0)"), "S(0)", ("tensor", "1x128", "128x128"), (None, "group-2")),
        # Sums of panels, of which each has scales of its own.
        (("S(1)", "S(1)"), "S(1)", ("rows", "tensor"), (None, "group-1", "group-2")),
    ):
        for word, strategy in itertools.product(words, strategies):
            mine = [part(each, of, rank, ranks) for each, of in zip((a, b), given_as, strict=True)]
            # B's columns are lines, as A's rows are.
            small_a, scale_a = gemmkit.quantize(mine[0], scale=word)
            small_b, scale_b = gemmkit.quantize(mine[1].T.contiguous(), scale=word)
            exactly = (
                small_a.float() * widened(scale_a, *small_a.shape),
                (small_b.float() * widened(scale_b, *small_b.shape)).T,
            )
            every = [whole(each, of, ranks) for each, of in zip(exactly, given_as, strict=True)]
            want = torch.matmul(*every)
            given = {
                "placements": given_as,
                "placement": placement,
                "scale_a": scale_a,
                "scale_b": scale_b.T,
                "device": "emulator",
            }
            made = distributed.matmul(small_a, small_b.T, strategy=strategy, **given)
            error = (whole(made, placement, ranks) - want).abs().max()
            assert error <= 1e-5 * want.abs().max(), (given_as, word, strategy, error)
    if ranks == 1:
        return
    with pytest.raises(UnsupportedProblem, match="scales of their own for their shares of k"):
        distributed.matmul(small_a, small_b.T, strategy="collective", **given)


def widened(scales, rows, columns):
    """One scale for each element: blocks have 128 lines, or 128 of k, unless they have all."""
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales
    for side, size in enumerate((rows, columns)):
        count = scales.shape[side]
        times = size if count == 1 else 1 if count == size else 128
        scales = scales.repeat_interleave(times, side).narrow(side, 0, size)
    return scales


# Placements of A, B and the result, a strategy, and which operand's scales are gathered.
WARM = (
    (("S(0)", "S(1)"), "S(1)", "collective", "a"),
    (("S(0)", "S(1)"), "S(0)", "collective", "b"),
    (("S(1)", "S(0)"), "S(0)", "collective", None),
    (("S(1)", "S(0)"), "S(1)", "collective", None),
    (("S(1)", "S(0)"), "R", "collective", None),
    (("R", "S(1)"), "S(1)", "collective", None),
    (("S(0)", "S(1)"), "S(1)", "group-2", None),
    (("S(0)", "S(1)"), "S(0)", "group-whole", None),
    (("S(1)", "S(0)"), "S(0)", "group-1", None),
    (("S(1)", "S(1)"), "S(1)", "group-1", None),
)


def whole_shape(given_as, ranks):
    """m, n and k; panels of k begin with a chunk of it, other shares of k have a chunk with a rest
    after it."""
    return 5, 2 * ranks + 1, (128 if given_as == ("S(1)", "S(1)") else 130) * ranks


def quantized(call, given_as, word, rank, ranks):
    """This rank's parts of A and B with the scales by which it quantized them, and a bias."""
    random = torch.Generator().manual_seed(call)
    m, n, k = whole_shape(given_as, ranks)
    a, b = (torch.randn(side, generator=random) for side in ((m, k), (k, n)))
    small_a, scale_a = gemmkit.quantize(part(a, given_as[0], rank, ranks), scale=word)
    small_b, scale_b = gemmkit.quantize(part(b, given_as[1], rank, ranks).T, scale=word)
    return small_a, small_b.T, scale_a, scale_b.T, torch.randn(n, generator=random)


class Counted:
    """A function that counts its calls."""

    def __init__(self, work):
        self.work, self.calls = work, 0

    def __call__(self, *given):
        self.calls += 1
        return self.work(*given)


def warm_scales(rank, ranks):
    """As on GPUs: later calls ask nobody and choose nothing, with the bits of the first way."""
    team = team_of(None, torch.device("cpu"))
    team.board = BOARDS["h100"]
    asked = team.communicator.agree = Counted(team.communicator.agree)
    alone = team.communicator.gather_into = Counted(team.communicator.gather_into)
    together = team.communicator.gather_many_into = Counted(team.communicator.gather_many_into)
    planned = autograd.multiply = Counted(autograd.multiply)
    prepare = products.warm_call
    try:
        for (given_as, placement, strategy, travels), word in itertools.product(
            WARM, ("tensor", "rows", "1x128", "128x128")
        ):

            def made(call, given_as=given_as, placement=placement, strategy=strategy, word=word):
                a, b, scale_a, scale_b, bias = quantized(call, given_as, word, rank, ranks)
                return distributed.matmul(
                    a,
                    b,
                    placements=given_as,
                    placement=placement,
                    bias=part(bias, "S(0)" if placement == "S(1)" else "R", rank, ranks),
                    scale_a=scale_a,
                    scale_b=scale_b,
                    strategy=strategy,
                    shape=whole_shape(given_as, ranks),
                    device="emulator",
                )

            case = given_as, placement, strategy, word
            products.warm_call = lambda *_: None
            cold = [made(call) for call in range(3)]
            assert not front._warm, case
            agreements._agreed.clear()
            products.warm_call = prepare
            assert torch.equal(made(0), cold[0]), case
            assert len(front._warm) == 1, case
            before = asked.calls, planned.calls, alone.calls, together.calls
            assert all(torch.equal(made(call), cold[call]) for call in (1, 2)), case
            assert (asked.calls, planned.calls) == before[:2], case
            if strategy == "collective" and ranks > 1:
                # The operand's lines with their scales.
                calls = 0 if travels is None else 2
                assert (alone.calls, together.calls) == (before[2], before[3] + calls), case
            front._warm.clear()
            agreements._agreed.clear()
        other_scales(rank, ranks, planned)
    finally:
        restore(team)
        products.warm_call, autograd.multiply = prepare, planned.work


def other_scales(rank, ranks, planned):
    """Scales of another kind, shape or stride, and other numbers, are other calls; those of a wrong
    type, and those that `out` overlaps, are refused as in the first call."""
    random = torch.Generator().manual_seed(rank)
    a, b = (
        torch.randint(-2, 3, side, generator=random).to(torch.float8_e4m3fn)
        for side in ((4, 256), (256, 4))
    )
    given = {"placements": ("S(0)", "S(1)"), "placement": "S(1)", "device": "emulator"}
    memory = torch.zeros(4 * ranks * 4 + 4)
    out, last = memory[:-4].view(4 * ranks, 4), memory[-4:].view(4, 1)
    last[:] = 2
    every = whole(a.float(), "S(0)", ranks)

    def checked(scale_a, *, prepared, **options):
        calls = planned.calls
        made = distributed.matmul(a, b, scale_a=scale_a, **given, **options)
        assert planned.calls == calls + (not prepared), (scale_a, options)
        factor = torch.as_tensor(scale_a).flatten()[0]
        assert torch.equal(made, factor * (every @ b.float())), (scale_a, options)

    full = torch.full
    for scale_a in (
        full((), 0.5),
        full((1, 1), 2.0),
        full((4, 1), 0.5),
        full((4, 2), 0.5)[:, :1],
        full((4, 2), 4.0),
        full((2, 4), 4.0).T,
        full((1, 2), 0.25),
        0.5,
        4.0,
    ):
        checked(scale_a, prepared=False)
        checked(scale_a, prepared=True)
    rows = full((4, 1), 0.5)
    for _ in range(2):
        with pytest.raises(GemmkitError, match=r"scale_a has type torch\.float64"):
            distributed.matmul(a, b, scale_a=rows.double(), **given)
        with pytest.raises(GemmkitError, match=r"scale_a of shape \(3, 1\)"):
            distributed.matmul(a, b, scale_a=rows[:3], **given)
    # Memory beside the scales', and then around them.
    checked(rows, prepared=False, out=torch.zeros(4 * ranks, 4))
    checked(rows, prepared=True, out=torch.zeros(4 * ranks, 4))
    checked(last, prepared=False, out=out)
    for _ in range(2):
        with pytest.raises(GemmkitError, match="out overlaps scale_a"):
            distributed.matmul(a, b, scale_a=out[:4, :1], out=out, **given)
    checked(rows, prepared=True)
    # Rows of two dimensions, of which the second one is spread, with a scale each.
    lines = 2.0 ** torch.arange(4.0).view(2, 2, 1)
    given |= {"placements": ("S(1)", "S(1)"), "placement": "S(2)"}
    for call in range(3):
        calls, scale_a = planned.calls, lines + call
        made = distributed.matmul(a.view(2, 2, 256), b, scale_a=scale_a, **given)
        own = a.float().view(2, 2, 256) * scale_a
        assert torch.equal(made, whole(own, "S(1)", ranks) @ b.float())
        assert planned.calls == calls + (call == 0)


CASES = (scales, warm_scales)

if __name__ == "__main__":
    main(CASES)
