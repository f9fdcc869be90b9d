"""Occupancy against published figures of real boards, and against its own monotonicity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.analysis import occupancy
from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS, KIB, find_board

RTX3090 = find_board("RTX 3090")
H100 = find_board("H100")


@pytest.mark.parametrize(
    ("threads", "registers", "blocks_per_sm", "percent", "limiter"),
    [
        (256, 38, 6, 100.0, "warps"),
        (128, 40, 12, 100.0, "warps"),
        (64, 40, 16, 66.67, "blocks"),
        (32, 52, 16, 33.33, "blocks"),
        (16, 72, 16, 33.33, "blocks"),
    ],
)
def test_coarsening_strides_on_an_rtx3090(threads, registers, blocks_per_sm, percent, limiter):
    seen = occupancy(RTX3090, registers=registers, threads=threads, shared_bytes=2048, blocks=4096)
    assert seen.blocks_per_sm == blocks_per_sm
    assert round(100 * seen.theoretical, 2) == percent
    assert seen.limiter == limiter


@pytest.mark.parametrize("registers", [38, 40])
def test_waves_of_16x16_tiles_at_1024_on_an_rtx3090(registers):
    seen = occupancy(RTX3090, registers=registers, threads=256, shared_bytes=0, blocks=64 * 64)
    assert seen.waves_per_sm == pytest.approx(4096 / 6 / 82)
    assert round(seen.waves_per_sm, 2) == 8.33


def test_32x32_tiles_at_1024_on_an_h100():
    seen = occupancy(H100, registers=32, threads=1024, shared_bytes=8 * KIB, blocks=1024)
    assert seen.theoretical == 1.0
    assert round(seen.waves_per_sm, 2) == 3.88


def test_registers_limit_by_sub_partition():
    # 200 registers take 25 × 256 words per warp: 2 warps fit a sub-partition, so 8 the SM.
    seen = occupancy(H100, registers=200, threads=256, shared_bytes=0, blocks=132)
    assert (seen.blocks_per_sm, seen.limiter, seen.waves_per_sm) == (1, "registers", 1.0)
    # Three warps per block: 8 // 3 blocks.
    assert occupancy(H100, registers=200, threads=96, shared_bytes=0, blocks=1).blocks_per_sm == 2


def test_shared_memory_limits_with_the_reserved_kibibyte():
    def blocks(shared_bytes):
        return occupancy(H100, registers=32, threads=128, shared_bytes=shared_bytes, blocks=1)

    # 228 KiB an SM: two blocks of 113 KiB and 1 KiB reserved each fit, a byte more does not.
    assert (blocks(113 * KIB).blocks_per_sm, blocks(113 * KIB).limiter) == (2, "shared memory")
    assert blocks(113 * KIB + 1).blocks_per_sm == 1
    assert blocks(227 * KIB).blocks_per_sm == 1
    # Turing reserves nothing.
    t4 = find_board("T4")
    assert occupancy(t4, registers=32, threads=64, shared_bytes=32 * KIB, blocks=1) == occupancy(
        t4, registers=32, threads=64, shared_bytes=32 * KIB - 255, blocks=1
    )


@pytest.mark.parametrize(
    ("registers", "threads", "shared_bytes", "limiter"),
    [
        (256, 32, 0, "registers"),
        (80, 1024, 0, "registers"),
        (32, 1025, 0, "warps"),
        (32, 128, 227 * KIB + 1, "shared memory"),
    ],
)
def test_a_block_that_does_not_fit_has_zero_everywhere(registers, threads, shared_bytes, limiter):
    seen = occupancy(
        H100, registers=registers, threads=threads, shared_bytes=shared_bytes, blocks=10
    )
    assert (seen.theoretical, seen.waves_per_sm, seen.blocks_per_sm) == (0.0, 0.0, 0)
    assert seen.limiter == limiter


def test_limits_stand_side_by_side():
    seen = occupancy(H100, registers=122, threads=256, shared_bytes=16640, blocks=1024)
    assert dict(seen.limits) == {
        "warps": 8,
        "blocks": 32,
        "registers": 2,
        "shared memory": 13,
        "barriers": 64,
    }
    assert (seen.warps_per_block, seen.warps_per_sm) == (8, 16)


def test_barriers_can_limit_from_hopper_on():
    launch = {"registers": 32, "threads": 32, "shared_bytes": 0, "blocks": 1, "barriers": 16}
    assert occupancy(H100, **launch).limiter == "barriers"
    assert occupancy(H100, **launch).blocks_per_sm == 4
    assert occupancy(find_board("RTX 5090"), **launch).blocks_per_sm == 1
    assert occupancy(RTX3090, **launch).limiter == "blocks"


@pytest.mark.parametrize(
    ("blocks", "full_waves", "tail_idle"),
    [(264, 1, 0.0), (265, 1, 263 / 264), (132, 0, 0.5), (576, 2, 1 - 48 / 264), (0, 0, 0.0)],
)
def test_the_last_wave_idles_where_it_is_not_full(blocks, full_waves, tail_idle):
    seen = occupancy(H100, registers=122, threads=256, shared_bytes=0, blocks=blocks)
    assert seen.full_waves == full_waves
    assert seen.tail_idle == pytest.approx(tail_idle)


@pytest.mark.parametrize(
    "wrong", [{"threads": 0}, {"registers": -1}, {"blocks": -1}, {"barriers": -1}]
)
def test_impossible_launches_are_refused(wrong):
    launch = {"registers": 32, "threads": 32, "shared_bytes": 0, "blocks": 1} | wrong
    with pytest.raises(UsageError, match="invalid launch"):
        occupancy(H100, **launch)


@given(
    board=st.sampled_from(sorted(BOARDS)),
    registers=st.integers(1, 254),
    threads=st.integers(1, 1024),
    shared_bytes=st.integers(0, 48 * KIB),
)
def test_never_above_one_and_more_resources_never_help(board, registers, threads, shared_bytes):
    spec = BOARDS[board]
    launch = {"registers": registers, "threads": threads, "shared_bytes": shared_bytes, "blocks": 9}
    here = occupancy(spec, **launch)
    assert 0.0 <= here.theoretical <= 1.0
    for more in ({"registers": registers + 1}, {"shared_bytes": shared_bytes + 1}):
        assert occupancy(spec, **(launch | more)).blocks_per_sm <= here.blocks_per_sm
