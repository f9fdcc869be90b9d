"""Bulk copies: their effect, when it happens, and what is refused, on each executor."""

from __future__ import annotations

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor, kernel_ptx, launch

from gemmkit.emulator import load
from gemmkit.errors import DeviceError

SHARED = (
    ".shared .align 8 .b64 full; .shared .align 16 .b32 tile[64]; .shared .align 16 .b32 other[64];"
)
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
# Thread 0 initializes the mbarrier `%r10`; `%r11` is the tile, `%r12` the thread's word in it.
START = """mov.u32 %r10, full;
mov.u32 %r11, tile;
shl.b32 %r12, %tid, 2;
add.u32 %r12, %r12, %r11;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
bar.sync 0;
"""
WAIT = """WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
@!%p2 bra WAIT;
"""


def text(body: str) -> str:
    return kernel_ptx(START + body, pointers=2, declarations=SHARED, target="sm_90")


def seeded(seed: int) -> Executor:
    return Executor(
        f"seed {seed}",
        lambda ptx, flow, request, memory: load(ptx, flow.kernel.name).run(
            request, memory, warp_seed=seed
        ),
    )


def both(executor: Executor, body: str, out: np.ndarray, source: np.ndarray) -> np.ndarray:
    return launch(executor, text(body), out, source, block=64).arrays[0]


NUMBERS = np.arange(1000, 1064, dtype=np.uint32)
ZEROS = np.zeros(64, np.uint32)
# A sound copy of 256 bytes through shared memory.
ROUND_TRIP = f"""@!%p0 bra LATER;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;
{LOAD} [%r11], [%rd1], 256, [%r10];
LATER:
{WAIT}
ld.shared.u32 %r1, [%r12];
add.u32 %r1, %r1, 1;
st.shared.u32 [%r12], %r1;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p0 bra END;
{STORE} [%rd0], [%r11], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
END:"""


@pytest.mark.parametrize("seed", [None, *range(4)])
def test_a_round_trip(seed: int | None) -> None:
    executor = ORACLE if seed is None else seeded(seed)
    assert both(executor, ROUND_TRIP, ZEROS, NUMBERS).tolist() == (NUMBERS + 1).tolist()


def test_a_cache_policy_changes_nothing(executor: Executor) -> None:
    body = ROUND_TRIP.replace(f"{LOAD} ", f"{LOAD}.L2::cache_hint ")
    body = body.replace("256, [%r10];", "256, [%r10], %rd5;")
    body = "createpolicy.fractional.L2::evict_first.b64 %rd5;\n" + body
    assert both(executor, body, ZEROS, NUMBERS).tolist() == (NUMBERS + 1).tolist()


REDUCTIONS = {
    "add.u32": (np.uint32, lambda a, b: a + b),
    "add.f32": (np.float32, lambda a, b: a + b),
    "add.f64": (np.float64, lambda a, b: a + b),
    "add.noftz.f16": (np.float16, lambda a, b: a + b),
    "min.s64": (np.int64, np.minimum),
    "max.f16": (np.float16, np.maximum),
    "and.b64": (np.uint64, np.bitwise_and),
    "inc.u32": (np.uint32, lambda a, b: np.where(a >= b, 0, a + 1)),
    "dec.u32": (np.uint32, lambda a, b: np.where((a == 0) | (a > b), b, a - 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(executor: Executor, name: str) -> None:
    kind, definition = REDUCTIONS[name]
    rng = np.random.default_rng(3)
    values = [rng.integers(-9, 9, 256 // np.dtype(kind).itemsize).astype(kind) for _ in "ab"]
    body = f"""mul.wide.u32 %rd5, %tid, 4;
    add.u64 %rd5, %rd5, %rd1;
    ld.global.u32 %r1, [%rd5];
    st.shared.u32 [%r12], %r1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p0 bra END;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [%rd0], [%r11], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    END:"""
    assert both(executor, body, *values).tolist() == definition(*values).tolist()


def test_shared_memory_may_be_copied_and_reduced(executor: Executor) -> None:
    body = f"""st.shared.u32 [%r12], %tid;
    st.shared.u32 [%r12+256], 5;
    fence.proxy.async;
    bar.sync 0;
    @!%p0 bra LATER;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 192;
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 \
[%r11+256], [%r11], 128, [%r10];
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes \
[%r11+384], [%r11], 64, [%r10];
    LATER:
    {WAIT}
    ld.shared.u32 %r1, [%r12+256];
    st.global.u32 [%at], %r1;"""
    wanted = [*range(5, 37), *range(16), *(16 * [5])]
    assert both(executor, body, ZEROS, NUMBERS).tolist() == wanted


REFUSED = {
    f"@%p0 {LOAD} [%r11], [%rd1], 24, [%r10];":
        "copies 24 bytes; the size of a bulk copy must be a multiple of 16",
    f"@%p0 {LOAD} [%r11+8], [%rd1], 32, [%r10];": "the destination in shared memory, 0x",
    f"@%p0 {LOAD} [%r11], [%rd1+4], 32, [%r10];": "the source in global memory, 0x",
    f"@%p0 {LOAD} [%r11], [%rd1+128], 256, [%r10];": "out of bounds",
    f"@%p0 {LOAD} [%r11+384], [%rd1], 256, [%r10];": "out of bounds",
    f"@%p0 {LOAD} [%r11], [%rd1], 16, [%r10+8];": "uses an mbarrier that is not initialized",
    f"@%p0 {STORE} [%rd0+240], [%r11], 32;": "out of bounds",
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_not_valid_is_refused(executor: Executor, body: str) -> None:
    with pytest.raises(DeviceError) as caught:
        both(executor, body, ZEROS, NUMBERS)
    assert REFUSED[body] in str(caught.value)
    assert "kernel.cu:8" in str(caught.value)


def test_bounds_name_the_array() -> None:
    body = f"@%p0 {LOAD} [%r11+384], [%rd1], 256, [%r10];"
    words = (
        "writes 256 bytes at byte 128 of 'other', out of bounds: the block has 528 bytes of shared "
        "memory, by 'cp.async.bulk"
    )
    with pytest.raises(DeviceError, match=words):
        both(ENGINE, body, ZEROS, NUMBERS)


# Effects are delayed: kernels that do not wait are wrong under some seeds.


def outcomes(body: str) -> set[tuple[int, ...]]:
    return {tuple(both(seeded(seed), body, ZEROS, NUMBERS).tolist()) for seed in range(12)}


def test_a_stage_that_is_read_too_early_is_stale_under_some_seeds() -> None:
    body = f"""@!%p0 bra LATER;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;
    {LOAD} [%r11], [%rd1], 256, [%r10];
    LATER: bar.sync 0;
    ld.shared.u32 %r1, [%r12];
    st.global.u32 [%at], %r1;"""
    assert outcomes(body) == {tuple(NUMBERS.tolist()), tuple(ZEROS.tolist())}


@pytest.mark.parametrize("wait", ["", ".read"])
def test_a_source_that_is_overwritten_too_early_shows(wait: str) -> None:
    body = f"""st.shared.u32 [%r12], 1;
    fence.proxy.async;
    bar.sync 0;
    @!%p0 bra END;
    {STORE} [%rd0], [%r11], 256;
    cp.async.bulk.commit_group;
    FIRST
    st.shared.u32 [%r11], 2;
    SECOND
    END:"""
    waits = f"cp.async.bulk.wait_group{wait} 0;"
    sound = body.replace("FIRST", waits).replace("SECOND", "")
    early = body.replace("SECOND", waits).replace("FIRST", "")
    assert {each[0] for each in outcomes(sound)} == {1}
    assert {each[0] for each in outcomes(early)} == {1, 2}


def test_only_the_groups_that_are_waited_for_have_been_read() -> None:
    store = f"{STORE} [%rd0+{{0}}], [%r11+{{0}}], 16;\ncp.async.bulk.commit_group;"
    body = f"""st.shared.u32 [%r12], 1;
    fence.proxy.async;
    bar.sync 0;
    @!%p0 bra END;
    {store.format(0)}
    {store.format(16)}
    cp.async.bulk.wait_group.read 1;
    st.shared.u32 [%r11], 2;
    st.shared.u32 [%r11+16], 2;
    END:"""
    found = outcomes(body)
    assert {each[0] for each in found} == {1}
    assert {each[4] for each in found} == {1, 2}


def test_copies_of_a_block_that_has_ended_still_arrive() -> None:
    body = f"""st.shared.u32 [%r12], %tid;
    fence.proxy.async;
    bar.sync 0;
    @%p0 {STORE} [%rd0], [%r11], 256;"""
    assert outcomes(body) == {tuple(range(64))}


# cp.async


def test_an_arrival_after_copies(executor: Executor) -> None:
    for noinc, count in ((".noinc", 64), ("", 1)):
        body = f"""@%p0 mbarrier.inval.shared::cta.b64 [%r10];
        @%p0 mbarrier.init.shared::cta.b64 [%r10], {count};
        bar.sync 0;
        mul.wide.u32 %rd5, %tid, 4;
        add.u64 %rd5, %rd5, %rd1;
        cp.async.ca.shared.global [%r12], [%rd5], 4;
        cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%r10];
        {"@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];" if not noinc else ""}
        {WAIT}
        xor.b32 %r12, %r12, 4;
        ld.shared.u32 %r1, [%r12];
        st.global.u32 [%at], %r1;"""
        wanted = NUMBERS.reshape(-1, 2)[:, ::-1].ravel()
        assert both(executor, body, ZEROS, NUMBERS).tolist() == wanted.tolist()
