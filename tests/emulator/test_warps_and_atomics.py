"""Shuffles, votes, reductions over a warp, and atomics, on every executor."""

from __future__ import annotations

import numpy as np
import pytest
from launching import ENGINE, Executor, kernel_ptx, launch

from gemmkit.errors import UnsupportedInstruction

LANES = np.arange(32, dtype=np.uint32)
INPUT = (LANES * np.uint32(0x9E3779B1)) >> np.uint32(9)


def result(executor: Executor, body: str, given: np.ndarray = INPUT) -> np.ndarray:
    """32 lanes; `%r1` starts as the lane's word and its final value is the result."""
    text = kernel_ptx(f"ld.global.u32 %r1, [%at];\n{body}\nst.global.u32 [%at], %r1;")
    return launch(executor, text, given).arrays[0]


def shuffled(mode: str, offset: int, c: int) -> tuple[list[int], list[bool]]:
    """As the PTX manual defines it, lane by lane."""
    values, inside = [], []
    for lane in range(32):
        segment, clamp = c >> 8 & 31, c & 31
        last = (lane & segment) | (clamp & ~segment)
        first = lane & segment
        other = {
            "up": lane - offset,
            "down": lane + offset,
            "bfly": lane ^ offset,
            "idx": first | (offset & ~segment),
        }[mode]
        ok = other >= last if mode == "up" else other <= last
        values.append(int(INPUT[other if ok else lane]))
        inside.append(ok)
    return values, inside


@pytest.mark.parametrize(
    ("mode", "offset", "c"),
    [
        *(("bfly", offset, 31) for offset in (1, 2, 16)),
        *(("down", offset, 31) for offset in (1, 16)),
        *(("up", offset, 0) for offset in (1, 16)),
        *(("idx", offset, 31) for offset in (0, 7)),
        # Segments of eight lanes.
        *((mode, 3, 0x181F) for mode in ("bfly", "down", "idx")),
        ("up", 3, 0x1800),
    ],
)
def test_shuffles(executor: Executor, mode: str, offset: int, c: int) -> None:
    body = f"""
        shfl.sync.{mode}.b32 %r2|%p1, %r1, {offset}, {c}, 0xFFFFFFFF;
        selp.u32 %r3, 0x80000000, 0, %p1;
        or.b32 %r1, %r2, %r3;
    """
    values, inside = shuffled(mode, offset, c)
    got = result(executor, body)
    assert (got & 0x7FFFFFFF).tolist() == values
    assert (got >> 31).astype(bool).tolist() == inside


def test_shuffle_by_a_lane_of_its_own(executor: Executor) -> None:
    body = """
        xor.b32 %r2, %tid, 21;
        shfl.sync.idx.b32 %r1, %r1, %r2, 31, -1;
    """
    assert np.array_equal(result(executor, body), INPUT[LANES ^ 21])


def test_votes(executor: Executor) -> None:
    body = """
        setp.ge.u32 %p1, %tid, 7;
        setp.lt.u32 %p2, %tid, 99;
        vote.sync.all.pred %p3, %p1, -1;
        vote.sync.any.pred %p4, %p1, -1;
        vote.sync.uni.pred %p5, %p1, -1;
        vote.sync.all.pred %p6, %p2, -1;
        vote.sync.uni.pred %p7, !%p2, -1;
        vote.sync.any.pred %p8, !%p2, -1;
        selp.u32 %r1, 1, 0, %p3;
        selp.u32 %r2, 2, 0, %p4;
        or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 4, 0, %p5;
        or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 8, 0, %p6;
        or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 16, 0, %p7;
        or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 32, 0, %p8;
        or.b32 %r1, %r1, %r2;
    """
    assert result(executor, body).tolist() == [2 + 8 + 16] * 32


def test_ballot_and_active_mask_see_active_lanes_only(executor: Executor) -> None:
    body = """
        and.b32 %r2, %tid, 1;
        setp.ne.u32 %p1, %r2, 0;
        setp.lt.u32 %p2, %tid, 12;
        mov.u32 %r1, 0;
        @%p2 bra IN;
        bra OUT;
        IN:
        activemask.b32 %r3;
        vote.sync.ballot.b32 %r4, %p1, %r3;
        mad.lo.u32 %r1, %r4, 0x10000, %r3;
        OUT:
    """
    assert result(executor, body).tolist() == [0x0AAA0FFF] * 12 + [0] * 20


def test_matching_lanes(executor: Executor) -> None:
    body = """
        and.b32 %r2, %tid, 5;
        match.any.sync.b32 %r1, %r2, -1;
    """
    wanted = [sum(1 << j for j in range(32) if j & 5 == lane & 5) for lane in range(32)]
    assert result(executor, body).tolist() == wanted


@pytest.mark.parametrize(
    ("members", "divisor", "same"),
    [(32, 16, False), (32, 32, True), (16, 16, True), (17, 16, False), (5, 1, False)],
)
def test_whether_all_lanes_match(
    executor: Executor, members: int, divisor: int, same: bool
) -> None:
    mask = (1 << members) - 1
    body = f"""
        mov.u32 %r1, 99;
        setp.ge.u32 %p1, %tid, {members};
        @%p1 bra END;
        div.u32 %r2, %tid, {divisor};
        match.all.sync.b32 %r1|%p2, %r2, {mask:#x};
        selp.u32 %r4, 2, 1, %p2;
        xor.b32 %r1, %r1, %r4;
        END:
    """
    wanted = mask ^ 2 if same else 1
    assert result(executor, body).tolist() == [wanted] * members + [99] * (32 - members)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("add.u32", int(INPUT.sum(dtype=np.uint64)) % 2**32),
        ("min.u32", int(INPUT.min())),
        ("max.u32", int(INPUT.max())),
        ("min.s32", int(INPUT.view(np.int32).min()) % 2**32),
        ("max.s32", int(INPUT.view(np.int32).max())),
        ("and.b32", int(np.bitwise_and.reduce(INPUT))),
        ("or.b32", int(np.bitwise_or.reduce(INPUT))),
        ("xor.b32", int(np.bitwise_xor.reduce(INPUT))),
    ],
)
def test_warp_reductions(executor: Executor, form: str, wanted: int) -> None:
    got = result(executor, f"redux.sync.{form} %r1, %r1, -1;")
    assert got.tolist() == [wanted] * 32


def test_reductions_of_some_lanes(executor: Executor) -> None:
    """Each lane with those that it names: 3, 13 and 16 of them."""
    body = """
        mov.u32 %r2, 0xFFFF0000;
        setp.lt.u32 %p1, %tid, 16;
        selp.b32 %r2, 0xFFF8, %r2, %p1;
        setp.lt.u32 %p1, %tid, 3;
        selp.b32 %r2, 7, %r2, %p1;
        redux.sync.add.u32 %r1, %r1, %r2;
    """
    groups = INPUT[:3], INPUT[3:16], INPUT[16:]
    sums = [int(each.sum(dtype=np.uint64)) % 2**32 for each in groups for _ in each]
    assert result(executor, body).tolist() == sums


def test_election(executor: Executor) -> None:
    body = """
        elect.sync %r2|%p1, 0xFFFFFFF0;
        selp.u32 %r1, %r2, 99, %p1;
    """
    got = result(executor, "setp.ge.u32 %p9, %tid, 4;\n@!%p9 bra END;\n" + body + "\nEND:")
    assert got[:6].tolist() == [*INPUT[:4].tolist(), 4, 99]


def atomic(executor: Executor, form: str, start: int, operands: str, cells: int = 1) -> np.ndarray:
    """Every lane acts on one word; returns what the lanes got back, then the word."""
    kind = form.rsplit(".", 1)[1]
    body = f"""
        mul.lo.u32 %r5, %tid, 3;
        mov.u32 %r6, 0xFFFFFFF0;
        atom.global.{form} %r2, [%rd1], {operands};
        st.global.u32 [%at], %r2;
    """
    text = kernel_ptx(body, pointers=2)
    out = launch(executor, text, np.zeros(32, np.uint32), np.full(cells, start, np.uint32))
    assert kind in ("u32", "s32", "b32")
    return np.concatenate(out.arrays)


def test_atomics_run_in_the_order_of_lanes(executor: Executor) -> None:
    threes = 3 * LANES
    before = np.cumsum(np.concatenate([[100], threes[:-1]]))
    got = atomic(executor, "add.u32", 100, "%r5")
    assert got.tolist() == [*before.tolist(), 100 + int(threes.sum())]
    assert atomic(executor, "exch.b32", 100, "%r5").tolist() == [100, *threes.tolist()]
    cas = atomic(executor, "cas.b32", 6, "%r5, 1000")
    assert cas.tolist() == [6] * 3 + [1000] * 30


@pytest.mark.parametrize(
    ("form", "start", "last"),
    [
        ("min.u32", 5, 0),
        ("max.u32", 5, 93),
        ("max.s32", 0xFFFFFFFF, 93),
        ("min.s32", 0x80000000, 0x80000000),
        ("and.b32", 0xFFFFFFFF, 0),
        ("or.b32", 0, 0x7F),
        ("xor.b32", 0, int(np.bitwise_xor.reduce(3 * LANES))),
    ],
)
def test_atomic_results(executor: Executor, form: str, start: int, last: int) -> None:
    assert int(atomic(executor, form, start, "%r5")[-1]) == last


def test_atomic_counters_wrap(executor: Executor) -> None:
    assert atomic(executor, "inc.u32", 0, "9").tolist() == [n % 10 for n in range(33)]
    down = atomic(executor, "dec.u32", 3, "9").tolist()
    assert down == [(3 - n) % 10 for n in range(33)]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_reductions_of_floats_and_doubles(executor: Executor, space: str) -> None:
    body = f"""
        mov.u32 %r9, cell;
        cvt.u64.u32 %rd3, %r9;
        mov.u64 %rd4, {"%rd1" if space == "global" else "%rd3"};
        cvt.rn.f32.u32 %f1, %tid;
        mul.f32 %f1, %f1, 0f3DCCCCCD;
        cvt.f64.f32 %fd1, %f1;
        red.{space}.add.f32 [%rd4], %f1;
        red.{space}.add.f64 [%rd4+8], %fd1;
        bar.sync 0;
        ld.{space}.f32 %f2, [%rd4];
        ld.{space}.f64 %fd2, [%rd4+8];
        st.global.f32 [%rd0], %f2;
        st.global.f64 [%rd0+8], %fd2;
    """
    text = kernel_ptx(body, pointers=2, declarations=".shared .align 8 .b8 cell[16];")
    out = launch(executor, text, np.zeros(32, np.uint32), np.zeros(4, np.uint32), block=64)
    tenths = np.arange(64, dtype=np.float32) * np.float32(0.1)
    single, double = np.float32(0), 0.0
    for each in tenths:
        single, double = single + each, double + float(each)
    got = out.arrays[0]
    assert got[:1].view(np.float32)[0] == single
    assert got[2:4].view(np.float64)[0] == double


@pytest.mark.parametrize("kind", ["f16", "f16x2", "bf16", "bf16x2"])
def test_atomics_on_half_precision(executor: Executor, kind: str) -> None:
    """64 additions of a half, which is exact up to 32 in both formats."""
    one_half = {"f16": 0x3800, "bf16": 0x3F00}[kind.removesuffix("x2")]
    thirty_two = {"f16": 0x5000, "bf16": 0x4200}[kind.removesuffix("x2")]
    if kind.endswith("x2"):
        load, negative = "mov.b32 %r3, {%h1, %h2};", "%r3"
    else:
        load, negative = "", "%h1"
    body = f"""
        mov.b16 %h1, {one_half:#x};
        mov.b16 %h2, {one_half | 0x8000:#x};
        {load}
        red.global.add.noftz.{kind} [%rd0], {negative};
    """
    out = launch(executor, kernel_ptx(body), np.zeros(1, np.uint32), block=64).arrays[0]
    wanted = thirty_two | (thirty_two | 0x8000) << 16 if kind.endswith("x2") else thirty_two
    assert out.tolist() == [wanted]


def test_atomic_requests_are_counted(executor: Executor) -> None:
    body = """
        red.global.add.u32 [%at], 1;
        red.global.add.u32 [%rd0], 1;
        mov.u32 %r9, cell;
        red.shared.add.u32 [%r9], 1;
    """
    text = kernel_ptx(body, declarations=".shared .align 4 .u32 cell;")
    out = launch(executor, text, np.zeros(64, np.uint32), block=64)
    wanted = np.ones(64)
    wanted[0] += 64
    assert np.array_equal(out.arrays[0], wanted)
    assert out.count("requests", "red.global.add.u32") == 4
    assert out.count("sectors", "red.global.add.u32") == 2 * 4 + 2 * 1
    assert out.count("wavefronts", "red.shared.add.u32") == 2


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("bar.red.popc.u32", [43, 0, 96, 95]),
        ("bar.red.or.pred", [1, 0, 1, 1]),
        ("bar.red.and.pred", [0, 0, 1, 0]),
        ("barrier.red.and.aligned.pred", [0, 0, 1, 0]),
    ],
)
def test_reductions_at_barriers(executor: Executor, form: str, wanted: list[int]) -> None:
    """How many threads of three warps are below 43, below 0, below 96, not 50."""
    dest, after = ("%p2", "selp.u32 %r2, 1, 0, %p2;") if form.endswith("pred") else ("%r2", "")
    tests = ["lt.s32 %p1, %tid, 43", "lt.s32 %p1, %tid, 0", "lt.s32 %p1, %tid, 96"]
    tests.append("ne.s32 %p1, %tid, 50")
    body = "\n".join(
        f"setp.{test}; {form} {dest}, {n // 2}, %p1; {after} st.global.u32 [%at+{n * 384}], %r2;"
        for n, test in enumerate(tests)
    )
    out = launch(executor, kernel_ptx(body), np.full((4, 96), 99, np.uint32), block=96).arrays[0]
    assert out.tolist() == [[value] * 96 for value in wanted]


def test_reductions_at_barriers_in_a_loop_of_some_threads(executor: Executor) -> None:
    """Lanes that left before have no vote; a warp that ended is not waited for."""
    body = """
        mov.u32 %r1, 0;
        mov.u32 %r3, 0;
        setp.ge.u32 %p1, %tid, 72;
        @%p1 bra END;
        AGAIN:
        mad.lo.u32 %r4, %r1, 10, 5;
        setp.lt.u32 %p2, %r4, %tid;
        bar.red.popc.u32 %r5, 0, %p2;
        add.u32 %r3, %r3, %r5;
        bar.red.or.pred %p3, 0, %p2;
        add.u32 %r1, %r1, 1;
        @%p3 bra AGAIN;
        END:
        st.global.u32 [%at], %r3;
    """
    out = launch(executor, kernel_ptx(body), np.full(128, 99, np.uint32), block=128).arrays[0]
    total = sum(max(72 - (10 * turn + 6), 0) for turn in range(8))
    assert out.tolist() == [total] * 72 + [0] * 56


def test_a_reduction_at_a_barrier_takes_no_guard() -> None:
    body = "setp.lt.u32 %p1, %tid, 3;\n@%p1 bar.red.popc.u32 %r1, 0, %p1;"
    with pytest.raises(UnsupportedInstruction, match="cannot have a guard"):
        launch(ENGINE, kernel_ptx(body), np.zeros(1, np.uint32))


@pytest.mark.parametrize(
    "form",
    [
        *("atom.global.cta.add.u32", "atom.add.acq_rel.gpu.u32", "atom.relaxed.sys.add.u32"),
        *("atom.add.relaxed.cta.global.u32", "atom.global.sys.max.u32", "atom.or.release.gpu.b32"),
        *("red.global.cta.add.u32", "red.release.gpu.global.add.u32"),
    ],
)
def test_spellings_of_atomics(executor: Executor, form: str) -> None:
    old = "" if form.startswith("red") else "%r2, "
    out = launch(executor, kernel_ptx(f"{form} {old}[%rd0], %tid;"), np.zeros(1, np.uint32))
    wanted = int(LANES.sum()) if ".add." in form else 31
    assert out.arrays[0].tolist() == [wanted]


def test_volatile_locals(executor: Executor) -> None:
    body = """
        mov.u32 %r2, kept;
        st.volatile.local.u32 [%r2+4], %tid;
        mov.u32 %r3, 7;
        st.volatile.local.v2.u32 [%r2+8], {%r3, %tid};
        ld.volatile.local.u32 %r4, [%r2+4];
        ld.volatile.local.u8 %r5, [%r2+8];
        mad.lo.u32 %r1, %r4, 100, %r5;
        st.global.u32 [%at], %r1;
    """
    text = kernel_ptx(body, declarations=".local .align 8 .b8 kept[16];")
    out = launch(executor, text, np.zeros(32, np.uint32)).arrays[0]
    assert out.tolist() == (100 * LANES + 7).tolist()
