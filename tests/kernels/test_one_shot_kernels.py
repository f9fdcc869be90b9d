"""The kernels by which ranks send each other lines: run one after the other, with what others would
have told."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels import one_shot
from gemmkit.kernels.one_shot import (
    HEADER_BYTES,
    SHARE_BYTES,
    adding,
    gathering,
    in_two_steps,
    sums_sent,
    unit_bytes,
)

H100 = find_board("h100")
LAUNCHES = one_shot.MOST_BLOCKS


def nothing(nbytes):
    """Lines that have not been written."""
    return np.full(nbytes, 0xFF, np.uint8)


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True, max_steps=2_000_000)


class Mailboxes:
    """Those of ranks on one device, with these lines: all blocks have been in so many launches,
    and have been told that all others are `ahead`."""

    def __init__(self, device, lines, ahead=1000, launches=0):
        self.device, self.own = device, []
        for each in lines:
            header = np.full(HEADER_BYTES // 4, ahead, np.uint32)
            header[:LAUNCHES] = launches
            self.own.append(device.upload(np.concatenate([header.view(np.uint8), each])))
        self.table = device.upload(np.array([each.address for each in self.own], np.uint64))

    def launch(self, plan, **arrays):
        binary = compile_plan(plan, H100.arch, assemble=False)
        given = {name: array.address for name, array in arrays.items()}
        launch = self.device.launch(binary, plan, {"workspace": self.table.address, **given})
        return launch.findings

    def content(self, rank):
        found = np.empty(self.own[rank].nbytes, np.uint8)
        self.device.download(self.own[rank], found)
        return found[:HEADER_BYTES].view(np.uint32), found[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ((2, 2), 64),
        ((3, 1, 0), 6),
        ((40, 40), 4096),
        ((0, 5), 10),
        # Units of 8 bytes, of 4, and of 1, of which threads copy more than are under way at once.
        ((1, 2), 24),
        ((1, 2), 12),
        ((1, 2), 4097),
    ],
)
def test_lines_of_all_ranks(device, sizes, line):
    ranks, total = len(sizes), sum(sizes) * line
    starts = [0, *accumulate(sizes)]
    unit = unit_bytes(*(each * line for each in starts))
    data = np.random.default_rng(1).integers(0, 256, total, dtype=np.uint8)
    boxes = Mailboxes(device, [nothing(total)] * ranks)
    for rank, size in enumerate(sizes):
        first = starts[rank] * line
        plan = gathering(rank, ranks, unit, first, size * line, max(sizes) * line)
        own = device.upload(data[first : first + max(size * line, 1)])
        assert not boxes.launch(plan, A=own)
    for rank in range(ranks):
        header, lines = boxes.content(rank)
        assert np.array_equal(lines, data)
        used = plan.grid[0]
        assert (header[:LAUNCHES] == [1] * used + [0] * (LAUNCHES - used)).all()
        # Both stages were told to every peer, by each block that there is; there is no third one.
        told = header[LAUNCHES:].reshape(3, one_shot.MOST_RANKS, LAUNCHES)
        assert (told[2] == 1000).all()
        told = told[:2]
        for other in range(ranks):
            assert (told[:, other, :used] == (1000 if other == rank else 1)).all()
            assert (told[:, other, used:] == 1000).all()


@pytest.mark.parametrize(
    ("dtype", "sizes", "width", "all_of_it"),
    [
        ("bfloat16", (2, 2), 64, False),
        ("bfloat16", (3, 1, 0), 7, False),
        ("bfloat16", (5,) * 3, 24, True),
        ("float16", (8,) * 4, 512, False),
        ("float32", (2, 1), 3, False),
        ("float64", (1,) * 2, 2, True),
        # Units of 8 bytes and of 4.
        ("bfloat16", (1, 2), 12, False),
        ("float64", (1, 2), 1, False),
        ("float16", (1, 2), 2050, False),
        # Of two lines.
        ("float16", (2, 2), 1, True),
    ],
)
def test_sums_of_all_ranks(device, dtype, sizes, width, all_of_it):
    ranks, rows = len(sizes), sizes[0] if all_of_it else sum(sizes)
    starts = [0] * ranks if all_of_it else [0, *accumulate(sizes)][:-1]
    # Of few bits, and exact in each type.
    numbers = np.random.default_rng(2).integers(-8, 9, (ranks, rows, width))
    item = ITEM_BYTES[dtype]
    unit = max(unit_bytes(*(each * width * item for each in (*starts, *sizes))), item)
    shares = np.array([[first, size] for first, size in zip(starts, sizes, strict=True)], np.int64)
    table = device.upload(shares * width * item // unit)
    assert table.nbytes == ranks * SHARE_BYTES

    def stored(array):
        if dtype != "bfloat16":
            return array.astype(dtype)
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    given = [device.upload(stored(each)) for each in numbers]
    outs = [device.empty(max(size * width * item, 1)) for size in sizes]
    lines = [nothing(ranks * max(sizes) * width * item)] * ranks
    # What the others send comes in the first round, and is added up in the second.
    for _ in range(2):
        boxes = Mailboxes(device, lines)
        for rank in range(ranks):
            plan = adding(rank, ranks, dtype, unit, max(sizes) * width * item)
            assert not boxes.launch(plan, A=given[rank], offsets=table, C=outs[rank])
        lines = [boxes.content(rank)[1] for rank in range(ranks)]
    for rank, size in enumerate(sizes):
        want = stored(numbers.sum(axis=0)[starts[rank] : starts[rank] + size])
        found = np.empty_like(want)
        if size:
            device.download(outs[rank], found)
        assert np.array_equal(found, want)


@pytest.mark.parametrize(
    ("dtype", "ranks", "units"), [("bfloat16", 4, 1030), ("float32", 3, 7), ("float16", 8, 5)]
)
def test_sums_that_are_returned_to_all_ranks(device, dtype, ranks, units):
    each = -(-units // ranks)
    shares = [
        (min(rank * each, units), min(each, max(units - rank * each, 0))) for rank in range(ranks)
    ]
    table = device.upload(np.array(shares, np.int64))
    per_unit = 16 // ITEM_BYTES[dtype]
    numbers = np.random.default_rng(5).integers(-8, 9, (ranks, units * per_unit))

    def stored(array):
        if dtype != "bfloat16":
            return array.astype(dtype)
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    given = [device.upload(stored(each)) for each in numbers]
    outs = [device.empty(16 * units) for _ in range(ranks)]
    lines = [nothing(16 * (ranks * each + units))] * ranks
    # Sums are there from the second round on, results from the third.
    for _ in range(3):
        boxes = Mailboxes(device, lines)
        for rank in range(ranks):
            plan = adding(rank, ranks, dtype, 16, 16 * each, returned=True)
            assert not boxes.launch(plan, A=given[rank], offsets=table, C=outs[rank])
        lines = [boxes.content(rank)[1] for rank in range(ranks)]
    want = stored(numbers.sum(axis=0))
    for rank in range(ranks):
        found = np.empty_like(want)
        device.download(outs[rank], found)
        assert np.array_equal(found, want)
        told = boxes.content(rank)[0][LAUNCHES:].reshape(3, one_shot.MOST_RANKS, LAUNCHES)
        others = [other for other in range(ranks) if other != rank]
        assert (told[:, others, : plan.grid[0]] == 1).all()


@pytest.mark.parametrize(
    ("nbytes", "ranks", "two"),
    [(1 << 30, 2, False), (1 << 20, 4, True), (1 << 16, 4, False), (1 << 18, 8, True)],
)
def test_when_sums_come_in_two_steps(nbytes, ranks, two):
    assert in_two_steps(nbytes, ranks) == two
    # A rank sends its sums to all others, or of each share to one and the results of its own.
    most = (ranks - 1) * nbytes
    assert sums_sent(nbytes, ranks) == (2 * most // ranks if two else most)


def test_counts_wrap(device):
    boxes = Mailboxes(device, [nothing(64)] * 2, ahead=5, launches=0xFFFFFFFE)
    own = device.upload(np.arange(32, dtype=np.uint8))
    for want in (0xFFFFFFFF, 0, 1):
        assert not boxes.launch(gathering(0, 2, 16, 0, 32, 32), A=own)
        assert boxes.content(0)[0][0] == want


def test_a_rank_that_does_not_come_is_waited_for(device):
    boxes = Mailboxes(device, [nothing(64)] * 2, ahead=0)
    own = device.upload(np.arange(32, dtype=np.uint8))
    (found,) = boxes.launch(gathering(0, 2, 16, 0, 32, 32), A=own)
    assert found.kind == "deadlock"
    # Nothing is sent before the other has come.
    assert np.array_equal(boxes.content(1)[1], nothing(64))


@pytest.mark.parametrize(
    ("numbers", "unit"), [((32, 48), 16), ((32, 24), 8), ((6, 4), 2), ((0, 0), 16), ((7,), 1)]
)
def test_units(numbers, unit):
    assert unit_bytes(*numbers) == unit
