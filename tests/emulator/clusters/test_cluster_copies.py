"""mbarriers and asynchronous copies between the blocks of a cluster, on every executor."""

from __future__ import annotations

import re

import numpy as np
import pytest
from launching import ENGINE, Executor, kernel_ptx, launch

from gemmkit.emulator import load
from gemmkit.errors import DeviceError

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
SHARED = ".shared .align 16 .b8 own[512]; .shared .align 8 .b64 bar;"
# %r10: own, %r11: the mbarrier, %r12: rank, %r13: blocks, %r14: the next rank; p1: thread 0. The
# pointers are those of the block's row of 64 words.
START = """
    mov.u32 %r0, %ctaid.x; mul.wide.u32 %rd1, %r0, 256; add.s64 %rd0, %rd0, %rd1;
    add.s64 %at, %at, %rd1;
    mov.u32 %r10, own; mov.u32 %r11, bar;
    mov.u32 %r12, %cluster_ctarank; mov.u32 %r13, %cluster_nctarank;
    add.u32 %r14, %r12, 1; rem.u32 %r14, %r14, %r13;
    setp.eq.u32 %p1, %tid, 0;
"""


def init(count: int | str) -> str:
    return f"""
        @%p1 mbarrier.init.shared::cta.b64 [%r11], {count};
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
    """


def wait(phase: int) -> str:
    return f"""
        W{phase}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], {phase};
        @!%p2 bra W{phase};
    """


def run(executor: Executor, body: str, *, blocks: int, rows: int | None = None):
    # Each line gets a line number: an instruction must be on one.
    body = re.sub(r"\n\s+\[", " [", START + body)
    text = kernel_ptx(body, target="sm_90a", declarations=SHARED)
    given = np.arange((rows or blocks) * 64, dtype=np.uint32).reshape(-1, 64)
    return launch(executor, text, given, grid=blocks, cluster=(blocks, 1, 1)).arrays[0]


def seeded(seed: int) -> Executor:
    return Executor(
        f"seed {seed}",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, warp_seed=seed
        ),
    )


STORES = (
    init(1)
    + """
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 512;
    mapa.shared::cluster.u32 %r20, %r10, %r14;
    mapa.shared::cluster.u32 %r21, %r11, %r14;
    shl.b32 %r22, %tid, 4; add.u32 %r22, %r20, %r22;
    mad.lo.u32 %r23, %r12, 100, %tid; add.u32 %r24, %r23, 1;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32
        [%r22], {%r23, %r24, %r12, %tid}, [%r21];
"""
    + wait(0)
    + f"""
    shl.b32 %r25, %tid, 4; add.u32 %r25, %r10, %r25;
    ld.shared.v4.u32 {{%r26, %r27, %r28, %r29}}, [%r25];
    add.u32 %r26, %r26, %r27; st.global.u32 [%at], %r26;
    mad.lo.u32 %r28, %r28, 1000, %r29; st.global.u32 [%at+128], %r28;
    {MEET}
"""
)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_asynchronous_stores(executor: Executor, blocks: int) -> None:
    lanes = np.arange(32)
    for each in (executor, seeded(1), seeded(2)):
        for rank, row in enumerate(run(each, STORES, blocks=blocks)):
            sender = (rank - 1) % blocks
            assert np.array_equal(row[:32], 2 * (100 * sender + lanes) + 1)
            assert np.array_equal(row[32:], 1000 * sender + lanes)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add.u32", 36), ("max.s32", 8), ("inc.u32", 8), ("or.b32", 15), ("add.u64", 36)],
)
def test_asynchronous_reductions(executor: Executor, operation: str, expected: int) -> None:
    """All lanes 0 to 7 of all blocks reduce into block 0."""
    wide = operation.endswith("64")
    nbytes = 8 if wide else 4
    value = "cvt.u64.u32 %rd5, %r23;" if wide else ""
    if operation == "inc.u32":
        value = "mov.u32 %r23, 1000;"
    body = (
        "st.shared.u64 [%r10], 0;" + init(1) + f"""
        setp.eq.u32 %p3, %r12, 0; and.pred %p3, %p3, %p1;
        @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {8 * nbytes};
        mapa.shared::cluster.u32 %r20, %r10, 0;
        mapa.shared::cluster.u32 %r21, %r11, 0;
        mad.lo.u32 %r23, %r12, 4, %tid; add.u32 %r23, %r23, 1; {value}
        setp.lt.u32 %p4, %tid, 4;
        @%p4 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}
            [%r20], {"%rd5" if wide else "%r23"}, [%r21];
        setp.ne.u32 %p3, %r12, 0; @%p3 bra END;
        """ + wait(0) + f"""
        ld.shared.u32 %r26, [%r10]; st.global.u32 [%at], %r26;
        END: {MEET}
        """
    )  # fmt: skip
    for each in (executor, seeded(3)):
        assert run(each, body, blocks=2)[0, 0] == expected


def test_remote_arrivals(executor: Executor) -> None:
    """Every thread arrives at the barrier of the next block, with counts and bytes."""
    body = (
        init(33)
        + """
        mapa.shared::cluster.u32 %r21, %r11, %r14;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r21];
        @%p1 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r21], 16;
        @%p1 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r21], 16;
        """
        + wait(0)
        + f"st.global.u32 [%at], %r12; {MEET}"
    )
    rows = run(executor, body, blocks=3)
    assert rows[:, 31].tolist() == [0, 1, 2]


MULTICAST = (
    init(1)
    + """
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;
    setp.eq.u32 %p3, %r12, 1; and.pred %p3, %p3, %p1;
    mov.b16 %h1, MASK;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r10], [%rd0], 128, [%r11], %h1;
"""
    + wait(0)
    + f"""
    shl.b32 %r25, %tid, 2; add.u32 %r25, %r10, %r25;
    ld.shared.u32 %r26, [%r25]; st.global.u32 [%at+128], %r26;
    {MEET}
"""
)


def test_multicast(executor: Executor) -> None:
    for each in (executor, seeded(1), seeded(2)):
        rows = run(each, MULTICAST.replace("MASK", "15"), blocks=4)
        assert np.array_equal(rows[:, 32:], np.tile(np.arange(64, 96), (4, 1)))


def test_a_multicast_that_one_block_does_not_get(executor: Executor) -> None:
    with pytest.raises(DeviceError, match=r"deadlock.*wait") as caught:
        run(executor, MULTICAST.replace("MASK", "11"), blocks=4)
    if executor is ENGINE:
        assert "block (2, 0, 0) (rank 2): warp 0 waits" in str(caught.value)
        assert "0 of 128 announced bytes" in str(caught.value)


def test_a_multicast_out_of_the_cluster(executor: Executor) -> None:
    with pytest.raises(DeviceError, match=r"multicasts to rank 4 with the mask 0x1f"):
        run(executor, MULTICAST.replace("MASK", "31"), blocks=4)


def test_bulk_copies_between_blocks(executor: Executor) -> None:
    """From a block's shared memory to the next one's, and from global memory to a peer."""
    body = (
        "mad.lo.u32 %r23, %r12, 100, %tid; shl.b32 %r25, %tid, 2; add.u32 %r25, %r10, %r25;"
        "st.shared.u32 [%r25], %r23; fence.proxy.async;"
        + init(1)
        + """
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
        mapa.shared::cluster.u32 %r20, %r10, %r14;
        mapa.shared::cluster.u32 %r21, %r11, %r14;
        add.u32 %r22, %r20, 128; add.u32 %r24, %r20, 256;
        @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
            [%r22], [%r10], 128, [%r21];
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r24], [%rd0], 128, [%r21];
        """
        + wait(0)
        + f"""
        ld.shared.u32 %r26, [%r25+128]; st.global.u32 [%at+128], %r26;
        ld.shared.u32 %r27, [%r25+256];
        {MEET}
        st.global.u32 [%at], %r27;
        """
    )
    lanes = np.arange(32)
    for each in (executor, seeded(1), seeded(2)):
        for rank, row in enumerate(run(each, body, blocks=3)):
            sender = (rank - 1) % 3
            assert np.array_equal(row[32:], 100 * sender + lanes)
            assert np.array_equal(row[:32], 64 * sender + lanes)


def test_destination_and_barrier_must_be_in_one_block(executor: Executor) -> None:
    body = STORES.replace("mapa.shared::cluster.u32 %r21, %r11, %r14;", "mov.u32 %r21, %r11;")
    with pytest.raises(DeviceError, match=r"names an mbarrier of rank [01]; both must be"):
        run(executor, body, blocks=2)


def test_a_block_that_polls_lets_its_peer_run(executor: Executor) -> None:
    """Block 1 continues first after the barrier that block 0 waits for."""
    body = (
        init(1)
        + """
        mapa.shared::cluster.u32 %r21, %r11, 1;
        setp.ne.u32 %p3, %r12, 1; @%p3 bra PEER;
        mov.u32 %r30, 0;
        POLL: add.u32 %r30, %r30, 1;
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r11], 0;
        @!%p2 bra POLL;
        st.global.u32 [%at], %r30;
        bra END;
        PEER: @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r21];
        END:
        """
        + MEET
    )
    rows = run(executor, body, blocks=2)
    assert rows[1, 0] == 2
