"""Random accesses to peers' shared memory and random bulk copies: engine and oracle count what a
plain model of the rules does, in the warps' own order, in a shuffled one, and under sanitizers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor, kernel_ptx, launch
from numpy.typing import NDArray

from gemmkit.emulator import load

SECTOR, PIECE, WARP = 32, 128, 32
TILE_BYTES = 2048
THREADS = 48
DECLARATIONS = f"""\
.shared .align 1024 .b8 tile[{TILE_BYTES}]; .shared .align 128 .b8 source[{TILE_BYTES}];
.shared .align 8 .b64 bar;"""
# What each thread does, by step, rank of the block, thread and field: whether it takes part (%p1),
# an offset in shared memory, a rank, and whether the address is that of this rank or the block's
# own (%p2); of a bulk copy its size, an offset in global memory, and the mask of a multicast.
Table = NDArray[np.uint32]
ACTIVE, OFFSET, RANK, MAPPED, SIZE, PLACE, MASK = range(7)
FIELDS = 8
# %r0 is the tile, %r1 the mbarrier, %rd2 where the thread's rows begin. The mbarriers expect more
# bytes than come, and nothing waits for them.
START = """mov.u32 %r0, tile;
mov.u32 %r1, bar;
mov.u32 %r2, source;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mad.lo.u32 %r3, %r3, %r4, %tid;
mul.wide.u32 %rd2, %r3, {bytes};
add.u64 %rd2, %rd2, %rd1;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 524288;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""
END = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
# %r12 is the address in a tile, %rd9 the generic one, %r13 the mbarrier beside it; %r19 an address
# in the block's `source`, %r15 the size, %rd10 the address in global memory, %h1 the mask.
STEP = """ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%rd2+{at}];
ld.global.v4.u32 {{%r15, %r16, %r17, %r18}}, [%rd2+{after}];
setp.ne.u32 %p1, %r8, 0;
setp.ne.u32 %p2, %r11, 0;
add.u32 %r12, %r9, %r0;
cvt.u64.u32 %rd8, %r12;
cvta.shared.u64 %rd8, %rd8;
mapa.u64 %rd9, %rd8, %r10;
selp.b64 %rd9, %rd9, %rd8, %p2;
mapa.shared::cluster.u32 %r14, %r12, %r10;
mapa.shared::cluster.u32 %r13, %r1, %r10;
selp.b32 %r12, %r14, %r12, %p2;
selp.b32 %r13, %r13, %r1, %p2;
add.u32 %r19, %r9, %r2;
cvt.u64.u32 %rd10, %r16;
add.u64 %rd10, %rd10, %rd0;
cvt.u16.u32 %h1, %r17;
@%p1 {instruction}
"""
COUNTED = "mbarrier::complete_tx::bytes"
# Instructions, and the bytes of a lane's access.
ACCESSES = {
    "ld.shared::cluster.u8 %r20, [%r12];": 1,
    "ld.shared::cluster.u16 %h0, [%r12];": 2,
    "ld.shared::cluster.u32 %r20, [%r12];": 4,
    "ld.shared::cluster.u64 %rd11, [%r12];": 8,
    "ld.shared::cluster.v2.u32 {%r20, %r21}, [%r12];": 8,
    "ld.shared::cluster.v4.u32 {%r20, %r21, %r22, %r23}, [%r12];": 16,
    "ld.v2.u64 {%rd11, %rd12}, [%rd9];": 16,
    "st.shared::cluster.u8 [%r12], %r20;": 1,
    "st.shared::cluster.v2.u32 [%r12], {%r20, %r21};": 8,
    "st.shared::cluster.v4.u32 [%r12], {%r20, %r21, %r22, %r23};": 16,
    "st.u32 [%rd9], %r20;": 4,
    "atom.shared::cluster.add.u32 %r20, [%r12], 1;": 4,
    "atom.shared::cluster.cas.b64 %rd11, [%r12], %rd11, %rd12;": 8,
    "red.shared::cluster.max.u32 [%r12], %tid;": 4,
}
_SEND = f"st.async.shared::cluster.{COUNTED}"
SENDS = {
    f"{_SEND}.u32 [%r12], %tid, [%r13];": 4,
    f"{_SEND}.b64 [%r12], %rd0, [%r13];": 8,
    f"{_SEND}.v4.u32 [%r12], {{%tid, %tid, %tid, %tid}}, [%r13];": 16,
    f"red.async.relaxed.cluster.shared::cluster.{COUNTED}.add.u32 [%r12], %tid, [%r13];": 4,
    f"red.async.relaxed.cluster.shared::cluster.{COUNTED}.add.u64 [%r12], %rd0, [%r13];": 8,
}
COPIES = (
    f"cp.async.bulk.shared::cluster.global.{COUNTED} [%r12], [%rd10], %r15, [%r13];",
    f"cp.async.bulk.shared::cluster.global.{COUNTED}.multicast::cluster [%r12], [%rd10], %r15,"
    " [%r13], %h1;",
    f"cp.async.bulk.shared::cluster.shared::cta.{COUNTED} [%r12], [%r19], %r15, [%r13];",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd10], [%r19], %r15;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd10], [%r19], %r15;",
)


def _engine(name: str, **options: object) -> Executor:
    return Executor(
        name,
        lambda ptx, flow, request, memory: load(ptx, flow.kernel.name).run(
            request, memory, **options
        ),
    )


EXECUTORS = (ORACLE, ENGINE, _engine("shuffled", warp_seed=5), _engine("checked", sanitize=True))


def random_table(rng: np.random.Generator, sizes: Sequence[int], blocks: int) -> Table:
    """Rows whose offsets are multiples of `sizes`, one for each step. The addresses of a warp are
    anywhere, or close to each other; all, some or none are in the window of the cluster."""
    table = np.zeros((len(sizes), blocks, THREADS, FIELDS), np.uint32)
    for step, size in zip(table, sizes, strict=True):
        count = int(rng.choice([4, 16, TILE_BYTES // 2 // size]))
        step[..., OFFSET] = size * rng.integers(0, count, step.shape[:2])
        step[..., ACTIVE] = rng.random(step.shape[:2]) < rng.choice([0.1, 0.7, 1])
        step[..., RANK] = rng.integers(0, blocks, step.shape[:2])
        step[..., MAPPED] = rng.random(step.shape[:2]) < rng.choice([0, 0.5, 1])
    return table


def counts(instructions: Sequence[str], table: Table) -> list[tuple[int, int, int]]:
    """Requests to peers, their sectors and those of global memory, by instruction. All executors
    count the same."""
    steps, blocks = table.shape[:2]
    body = START.format(bytes=4 * FIELDS * steps)
    for number, text in enumerate(instructions):
        body += STEP.format(
            at=4 * FIELDS * number, after=4 * FIELDS * number + 16, instruction=text
        )
    ptx = kernel_ptx(body + END, pointers=2, declarations=DECLARATIONS, target="sm_90")
    arguments = np.zeros(2 * TILE_BYTES, np.uint8), table.transpose(1, 2, 0, 3)
    shape = {"grid": blocks, "block": THREADS, "cluster": (blocks, 1, 1)}
    first, *others = (launch(each, ptx, *arguments, **shape) for each in EXECUTORS)
    for each in others:
        assert not each.tally.differences(first.tally)
    opcodes = {text.split()[0] for text in instructions}
    numbers = [n for n, form in enumerate(first.flow.forms) if form.opcode in opcodes]
    assert len(numbers) == steps
    chosen = (first.tally.peer_requests, first.tally.peer_sectors, first.tally.sectors)
    return [tuple(int(each[n]) for each in chosen) for n in numbers]


def requests(step: Table, peers: NDArray[np.bool_], ranks: Table) -> tuple[int, int, int]:
    """What warps count in whose lanes `peers` is set."""
    found = [
        {(int(rank), int(offset) // SECTOR) for rank, offset in zip(each, at, strict=True)}
        for start in range(0, THREADS, WARP)
        for lanes, of, offsets in zip(peers, ranks, step[..., OFFSET], strict=True)
        for part in [slice(start, start + WARP)]
        for each, at in [(of[part][lanes[part]], offsets[part][lanes[part]])]
    ]
    return sum(map(bool, found)), sum(map(len, found)), 0


def pieces(offset: int, nbytes: int) -> int:
    """Sectors of a transfer that is cut into pieces from its start."""
    ends = range(offset, offset + nbytes, PIECE)
    return sum(
        len({byte // SECTOR for byte in range(start, min(start + PIECE, offset + nbytes))})
        for start in ends
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(2)
def test_accesses_to_peers(seed: int) -> None:
    rng = np.random.default_rng((1, seed))
    table = random_table(rng, list(ACCESSES.values()), int(rng.integers(1, 5)))
    # `mapa` of the own block gives the address that it has anyway.
    own = np.arange(table.shape[1])[:, None]
    expected = [
        requests(
            step,
            step[..., ACTIVE] & step[..., MAPPED] & (step[..., RANK] != own) > 0,
            step[..., RANK],
        )
        for step in table
    ]
    assert counts(list(ACCESSES), table) == expected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(2)
def test_asynchronous_stores(seed: int) -> None:
    rng = np.random.default_rng((2, seed))
    table = random_table(rng, list(SENDS.values()), int(rng.integers(1, 5)))
    own = np.arange(table.shape[1])[:, None]
    expected = [
        requests(step, step[..., ACTIVE] > 0, np.where(step[..., MAPPED], step[..., RANK], own))
        for step in table
    ]
    assert counts(list(SENDS), table) == expected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(2)
def test_bulk_copies(seed: int) -> None:
    rng = np.random.default_rng((3, seed))
    table = random_table(rng, [16] * len(COPIES), int(rng.integers(1, 5)))
    _, blocks, _, _ = table.shape
    shape = table.shape[:3]
    table[..., ACTIVE] = rng.random(shape) < 0.1
    table[..., SIZE] = 16 * rng.integers(0, TILE_BYTES // 2 // 16, shape)
    table[..., PLACE] = 16 * rng.integers(0, TILE_BYTES // 16, shape)
    table[..., MASK] = rng.integers(1, 1 << blocks, shape)
    expected = []
    for text, step in zip(COPIES, table, strict=True):
        rows = step[step[..., ACTIVE] > 0].tolist()
        times = [row[MASK].bit_count() if "multicast" in text else 1 for row in rows]
        between = "cluster.shared" in text
        sectors = sum(
            number * pieces(row[OFFSET if between else PLACE], row[SIZE])
            for number, row in zip(times, rows, strict=True)
        )
        expected.append((0, sectors, 0) if between else (0, 0, sectors))
    assert counts(COPIES, table) == expected
