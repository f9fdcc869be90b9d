"""Clusters of several blocks on every executor: registers, distributed shared memory, barriers."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, Outcome, kernel_ptx, launch

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Dim3
from gemmkit.emulator.machine import cluster, scheduler
from gemmkit.errors import DeviceError

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
OWN = ".shared .align 16 .b8 own[256];"
# %rd0 becomes the block's own row of 64 words; %r0 is its number in the grid.
ROW = """
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.y;
    mad.lo.u32 %r0, %r1, %r2, %r0; mov.u32 %r2, %ctaid.z; mov.u32 %r3, %nctaid.y;
    mul.lo.u32 %r3, %r3, %r1; mad.lo.u32 %r0, %r2, %r3, %r0;
    mul.wide.u32 %rd1, %r0, 256; add.s64 %rd0, %rd0, %rd1; add.s64 %at, %at, %rd1;
"""


def run(
    executor: Executor,
    body: str,
    *,
    blocks: int,
    block: int = 32,
    cluster: Dim3 | None = None,
    grid: Dim3 | None = None,
) -> tuple[np.ndarray, Outcome]:
    text = kernel_ptx(ROW + body, target="sm_90a", declarations=OWN)
    found = launch(
        executor,
        text,
        np.zeros((blocks, 64), np.uint32),
        grid=grid or (blocks, 1, 1),
        block=block,
        cluster=cluster or (blocks, 1, 1),
    )
    return found.arrays[0], found


def test_special_registers(executor: Executor) -> None:
    names = [
        *(f"%{name}.{axis}" for name in ("clusterid", "nclusterid", "cluster_ctaid",
                                         "cluster_nctaid") for axis in "xyz"),
        *("%cluster_ctarank", "%cluster_nctarank"),
    ]  # fmt: skip
    body = "\n".join(
        f"mov.u32 %r9, {name}; st.global.u32 [%rd0+{4 * n}], %r9;" for n, name in enumerate(names)
    )
    body += "mov.pred %p1, %is_explicit_cluster; selp.u32 %r9, 1, 2, %p1;"
    body += f"st.global.u32 [%rd0+{4 * len(names)}], %r9;"
    grid, cluster = (4, 6, 2), (2, 3, 1)
    rows, _ = run(executor, body, blocks=48, block=1, grid=grid, cluster=cluster)
    for number, row in enumerate(rows):
        place = number % 4, number // 4 % 6, number // 24
        inside = place[0] % 2, place[1] % 3, 0
        whole = place[0] // 2, place[1] // 3, place[2]
        rank = inside[0] + 2 * inside[1]
        assert row[:15].tolist() == [*whole, 2, 2, 2, *inside, *cluster, rank, 6, 1]


RING = f"""
    mov.u32 %r10, own; shl.b32 %r11, %tid, 2; add.u32 %r10, %r10, %r11;
    mov.u32 %r12, %cluster_ctarank; mov.u32 %r13, %cluster_nctarank;
    mad.lo.u32 %r14, %r12, 1000, %tid;
    st.shared.u32 [%r10], %r14;
    {MEET}
    add.u32 %r15, %r12, 1; rem.u32 %r15, %r15, %r13;
    mapa.shared::cluster.u32 %r16, %r10, %r15;
    ld.shared::cluster.u32 %r17, [%r16];
    atom.shared::cluster.add.u32 %r18, [%r16], 7;
    getctarank.shared::cluster.u32 %r19, %r16;
    st.global.u32 [%at], %r17;
    {MEET}
    ld.shared.u32 %r20, [%r10];
    add.u32 %r20, %r20, %r19;
    st.global.u32 [%at+128], %r20;
"""


@pytest.mark.parametrize("blocks", [1, 2, 3, 8, 16])
def test_a_ring(executor: Executor, blocks: int) -> None:
    rows, found = run(executor, RING, blocks=blocks)
    lanes = np.arange(32)
    for rank, row in enumerate(rows):
        peer = (rank + 1) % blocks
        assert np.array_equal(row[:32], 1000 * peer + lanes)
        assert np.array_equal(row[32:], 1000 * rank + lanes + 7 + peer)
    # Remote accesses are requests, without wavefronts.
    expected = 0 if blocks > 1 else blocks
    assert found.count("wavefronts", "ld.shared::cluster.u32") == expected
    assert found.count("requests", "ld.shared::cluster.u32") == blocks
    assert found.count("wavefronts", "ld.shared.u32") == blocks


def test_generic_addresses(executor: Executor) -> None:
    """Odd lanes access the peer, even lanes the block's own memory, both by generic addresses."""
    body = f"""
        mov.u32 %r10, own; mov.u32 %r12, %cluster_ctarank;
        cvt.u64.u32 %rd2, %r10; cvta.shared.u64 %rd2, %rd2;
        and.b32 %r13, %tid, 1; xor.b32 %r14, %r13, %r12;
        mul.wide.u32 %rd3, %tid, 8; add.s64 %rd3, %rd2, %rd3;
        mapa.u64 %rd4, %rd3, %r14;
        setp.ne.u32 %p1, %r13, 0; selp.b64 %rd5, %rd4, %rd3, %p1;
        mad.lo.u32 %r15, %r12, 1000, %tid;
        {MEET}
        st.v2.u32 [%rd5], {{%r15, %r0}};
        {MEET}
        ld.shared.u32 %r16, [own+4];
        shl.b32 %r17, %tid, 3; add.u32 %r17, %r17, %r10; ld.shared.u32 %r18, [%r17];
        st.global.u32 [%at], %r18;
        ld.v2.u32 {{%r19, %r20}}, [%rd5]; add.u32 %r19, %r19, %r20;
        isspacep.shared::cta %p2, %rd4; isspacep.shared::cluster %p3, %rd4;
        selp.u32 %r21, 1, 0, %p2; selp.u32 %r22, 2, 0, %p3; add.u32 %r21, %r21, %r22;
        getctarank.u64 %r23, %rd5;
        mad.lo.u32 %r21, %r21, 100, %r19; mad.lo.u32 %r21, %r23, 10000, %r21;
        st.global.u32 [%at+128], %r21;
        {MEET}
    """
    rows, _ = run(executor, body, blocks=2)
    lanes = np.arange(32)
    for rank, row in enumerate(rows):
        odd = lanes % 2 == 1
        writer = np.where(odd, 1 - rank, rank)
        assert np.array_equal(row[:32], 1000 * writer + lanes)
        owner = np.where(odd, 1 - rank, rank)
        value = 1000 * rank + lanes + rank
        # isspacep.shared::cta holds for the block's own addresses, from `mapa` too.
        assert np.array_equal(row[32:], 200 + 100 * (owner == rank) + value + 10000 * owner)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mapa.shared::cluster.u32 %r16, %r10, 5;", r"asks for rank 5 of a cluster of 2 blocks"),
        ("mapa.shared::cluster.u32 %r16, %r10, 1; ld.shared::cluster.u32 %r17, [%r16+256];",
         r"out of bounds|outside"),
        ("mapa.shared::cluster.u32 %r16, %r10, 1; ld.shared.u32 %r17, [%r16];", r"out of bounds"),
        ("mapa.shared::cluster.u32 %r16, %r10, 1; ld.shared::cluster.u32 %r17, [%r16+2];",
         r"misaligned"),
        ("barrier.cluster.wait;", r"waits at the cluster barrier without a barrier.cluster.arrive"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", r"again without a barrier.cluster"),
        ("setp.eq.u32 %p1, %r12, 0; @%p1 ret; barrier.cluster.arrive; bar.sync 0;"
         "setp.eq.u32 %p1, %r12, 1; @%p1 bar.sync 1, 64;", r"dead"),
    ],
)  # fmt: skip
def test_what_is_not_valid(executor: Executor, line: str, message: str) -> None:
    body = f"mov.u32 %r10, own; mov.u32 %r12, %cluster_ctarank;\n{line}\n{MEET}"
    with pytest.raises(DeviceError, match=message):
        run(executor, body, blocks=2)


def test_threads_that_have_exited_are_not_waited_for(executor: Executor) -> None:
    body = f"""
        mov.u32 %r12, %cluster_ctarank;
        setp.eq.u32 %p1, %r12, 1; @%p1 ret;
        setp.lt.u32 %p2, %tid, 40; @%p2 ret;
        {MEET.replace(".aligned", "")}
        st.global.u32 [%at], %tid;
    """
    rows, _ = run(executor, body, blocks=3, block=64)
    kept = np.where(np.arange(64) < 40, 0, np.arange(64))
    assert np.array_equal(rows, [kept, 0 * kept, kept])


@pytest.mark.parametrize(
    ("grid", "cluster", "message"),
    [
        ((3, 1, 1), (2, 1, 1), r"grid of \(3, 1, 1\) blocks does not consist of whole clusters"),
        ((32, 1, 1), (32, 1, 1), r"may have 1 to 16"),
    ],
)
def test_launches_that_are_refused(executor: Executor, grid, cluster, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        run(executor, MEET, blocks=64, grid=grid, cluster=cluster)


def with_directives(text: str) -> str:
    ptx = kernel_ptx(ROW + RING, target="sm_90a", declarations=OWN)
    return ptx.replace("p0)\n{", f"p0)\n{text}\n{{")


def test_the_kernels_own_cluster_size(executor: Executor) -> None:
    text = with_directives(".explicitcluster\n.reqnctapercluster 2, 1, 1\n.maxclusterrank 4")
    zeros = np.zeros((4, 64), np.uint32)
    rows = launch(executor, text, zeros, grid=4).arrays[0]
    assert rows[:, 0].tolist() == [1000, 0, 1000, 0]
    with pytest.raises(DeviceError, match=r"compiled for clusters of \(2, 1, 1\) blocks"):
        launch(executor, text, zeros, grid=4, cluster=(4, 1, 1))
    with pytest.raises(DeviceError, match=r"needs a cluster size at its launch"):
        launch(executor, with_directives(".explicitcluster"), zeros, grid=4)
    with pytest.raises(DeviceError, match=r"may have 1 to 2 in a cluster"):
        launch(executor, with_directives(".maxclusterrank 2"), zeros, grid=4, cluster=(4, 1, 1))


def test_the_shared_memory_of_one_block_is_read() -> None:
    """`read_shared` runs the block's cluster, and returns what that block holds at its end."""
    ptx = kernel_ptx(ROW + RING, target="sm_90a", declarations=OWN)
    memory = DeviceMemory()
    rows = memory.allocate(4 * 256)
    parameters = rows.address.to_bytes(8, "little")
    request = LaunchRequest((4, 1, 1), (32, 1, 1), parameters, cluster=(2, 1, 1))
    for block in (0, 1, 2, 3):
        content = load(ptx, "k").read_shared(request, memory, block, 0)
        start = content.variables["own"][0] - content.start
        words = np.frombuffer(content.data[start : start + 128], np.uint32)
        assert np.array_equal(words, 1000 * (block % 2) + np.arange(32) + 7)


def test_a_block_may_end_as_its_turn_does(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuel of a share is used up by the last instructions of the last warp."""
    monkeypatch.setattr(scheduler, "FIRST_SHARE", 10)
    monkeypatch.setattr(scheduler, "SHARE", 10)
    monkeypatch.setattr(cluster, "_TURN", 10)
    body = "add.u32 %r9, %r9, 1;\n" * 40 + "st.global.u32 [%rd0], %r9;"
    rows, _ = run(executor, f"mov.u32 %r9, 0;\n{body}", blocks=2)
    assert rows[:, 0].tolist() == [40, 40]
