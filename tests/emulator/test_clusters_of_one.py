"""Small instructions of Hopper's kernels on every executor: a cluster of one block, named barriers
with counts, register counts, dependent launches, fences of proxies."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch, parsed

from gemmkit.errors import DeviceError, UnsupportedInstruction


def run(executor: Executor, body: str, *, block: int = 32, rows: int = 1, **others: str):
    text = kernel_ptx(body, target="sm_90a", **others)
    return launch(executor, text, np.zeros((rows, block), np.uint32), block=block).arrays[0]


def test_special_registers_of_clusters(executor: Executor) -> None:
    names = [
        *(f"%clusterid.{axis}" for axis in "xyz"),
        *(f"%nclusterid.{axis}" for axis in "xyz"),
        *(f"%cluster_ctaid.{axis}" for axis in "xyz"),
        *(f"%cluster_nctaid.{axis}" for axis in "xyz"),
        *("%cluster_ctarank", "%cluster_nctarank"),
    ]
    lines = [f"mov.u32 %r1, {name}; st.global.u32 [%rd1+{4 * n}], %r1;"
             for n, name in enumerate(names)]  # fmt: skip
    text = kernel_ptx(
        "mov.u32 %r0, %ctaid.z; mul.wide.u32 %rd1, %r0, 64; add.s64 %rd1, %rd1, %rd0;\n"
        + "\n".join(lines)
        + "\nmov.pred %p1, %is_explicit_cluster; selp.u32 %r1, 1, 2, %p1;"
        " st.global.u32 [%rd1+56], %r1;",
        target="sm_90",
    )
    found = launch(executor, text, np.zeros((5, 16), np.uint32), grid=(1, 1, 5), block=1).arrays[0]
    for number, row in enumerate(found):
        assert row[:14].tolist() == [0, 0, number, 1, 1, 5, 0, 0, 0, 1, 1, 1, 0, 1]
        assert row[14] == 2


OWN = """
    mov.u32 %r1, own; shl.b32 %r2, %tid, 2; add.u32 %r1, %r1, %r2;
    mapa.shared::cluster.u32 %r3, %r1, 0;
    st.shared::cluster.u32 [%r3], %tid;
    atom.relaxed.cluster.shared::cluster.add.u32 %r4, [%r3], 100;
    ld.shared::cluster.u32 %r5, [%r1];
    st.global.u32 [%at], %r5;
    cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1;
    mapa.u64 %rd2, %rd1, 0;
    ld.u32 %r6, [%rd2];
    isspacep.shared::cluster %p1, %rd2; isspacep.shared::cta %p2, %rd2; and.pred %p1, %p1, %p2;
    isspacep.shared::cluster %p2, %rd0; not.pred %p2, %p2; and.pred %p1, %p1, %p2;
    @%p1 add.u32 %r6, %r6, 1000;
    st.global.u32 [%at+128], %r6;
    getctarank.shared::cluster.u32 %r7, %r3;
    getctarank.u64 %r8, %rd2;
    add.u32 %r7, %r7, %r8;
    st.global.u32 [%at+256], %r7;
"""
SHARED = ".shared .align 16 .b8 own[128];"


def test_a_peers_memory_is_the_blocks_own(executor: Executor) -> None:
    found = run(executor, OWN, rows=3, declarations=SHARED)
    lanes = np.arange(32)
    assert np.array_equal(found, [lanes + 100, lanes + 1100, 0 * lanes])


def test_another_rank_is_an_error(executor: Executor) -> None:
    body = OWN.replace("mapa.shared::cluster.u32 %r3, %r1, 0;",
                       "mapa.shared::cluster.u32 %r3, %r1, 1;")  # fmt: skip
    with pytest.raises(DeviceError, match=r"kernel\.cu:2 asks for rank 1 of a cluster of one"):
        run(executor, body, rows=3, declarations=SHARED)


def test_barriers_for_some_warps(executor: Executor) -> None:
    """Warps 0 and 1 exchange a value at barrier 3, while 2 and 3 do at barrier 4; warp 2 only
    arrives there."""
    body = """
        mov.u32 %r1, own; shl.b32 %r2, %tid, 2; add.u32 %r1, %r1, %r2;
        setp.ge.u32 %p1, %tid, 64;
        @%p1 bra LATE;
        setp.lt.u32 %p2, %tid, 7;
        barrier.cta.red.popc.aligned.u32 %r3, 3, 64, %p2;
        bar.cta.red.or.pred %p3, 3, 64, %p2;
        @%p3 add.u32 %r3, %r3, 100;
        barrier.sync 3, 64;
        st.global.u32 [%at], %r3;
        ret;
        LATE:
        st.shared.u32 [%r1], %tid;
        setp.ge.u32 %p1, %tid, 96;
        @%p1 bra WAIT;
        barrier.cta.arrive.aligned 4, 64;
        ret;
        WAIT:
        bar.cta.sync 4, 64;
        ld.shared.u32 %r3, [%r1+-128];
        st.global.u32 [%at], %r3;
    """
    found = run(executor, body, block=128, declarations=".shared .align 16 .b8 own[512];")[0]
    assert found[:64].tolist() == [107] * 64
    assert found[64:96].tolist() == [0] * 32
    assert found[96:].tolist() == list(range(64, 96))


def test_what_changes_no_result(executor: Executor) -> None:
    body = """
        setmaxnreg.dec.sync.aligned.u32 24;
        setmaxnreg.inc.sync.aligned.u32 256;
        griddepcontrol.wait;
        griddepcontrol.launch_dependents;
        nanosleep.u32 100;
        fence.proxy.alias;
        fence.proxy.async;
        fence.proxy.async.shared::cluster;
        fence.mbarrier_init.release.cluster;
        fence.acq_rel.cluster;
        prefetch.global.L2 [%rd0];
        prefetch.global.L2::evict_last [%rd0];
        prefetchu.L1 [%rd0];
        st.global.u32 [%at], %tid;
    """
    assert run(executor, body)[0].tolist() == list(range(32))


@pytest.mark.parametrize("count", ["20", "36", "264", "0", "%r1"])
def test_register_counts_are_multiples_of_8(count: str) -> None:
    text = kernel_ptx(f"setmaxnreg.inc.sync.aligned.u32 {count};", target="sm_90a")
    with pytest.raises(UnsupportedInstruction, match=r"does not take these .* \(kernel\.cu:1: "):
        parsed(text)


@pytest.mark.parametrize("ignored", ["%p1", "!%p1"])
def test_copies_that_ignore_their_source(executor: Executor, ignored: str) -> None:
    """Lanes whose predicate holds get zeros, and their source is not read."""
    body = f"""
        mov.u32 %r1, own; shl.b32 %r2, %tid, 4; add.u32 %r1, %r1, %r2;
        setp.lt.u32 %p1, %tid, 10;
        mul.wide.u32 %rd1, %tid, 16; add.s64 %rd1, %rd0, %rd1;
        cp.async.cg.shared.global [%r1], [%rd1], 16, {ignored};
        cp.async.wait_all;
        ld.shared.u32 %r3, [%r1+4];
        st.global.u32 [%at], %r3;
    """
    text = kernel_ptx(body, target="sm_90", declarations=".shared .align 16 .b8 own[512];")
    given = np.arange(1, 129, dtype=np.uint32)
    found = launch(executor, text, given).arrays[0][:32]
    ignores = np.arange(32) < 10 if ignored == "%p1" else np.arange(32) >= 10
    assert np.array_equal(found, np.where(ignores, 0, 4 * np.arange(32) + 2))
