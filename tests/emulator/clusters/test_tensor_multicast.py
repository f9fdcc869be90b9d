"""Tensor copies to several blocks of a cluster, and wgmma on what they bring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from launching import kernel_ptx, parsed
from multicast_kernels import BUGS, run, with_bug
from numpy.typing import NDArray
from tensor_runs import TILE_BYTES, at_address, loaded, random_case

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.errors import DeviceError


def test_a_sound_kernel_is_right_and_has_no_findings() -> None:
    for seed, sanitize in ((0, False), (1, False), (0, True), (1, True), (2, True)):
        execution, found, expected = run(seed=seed, sanitize=sanitize)
        assert np.array_equal(found, expected)
        assert execution.findings == ()


def test_the_oracle_gives_the_same_result_and_counts() -> None:
    execution, found, _ = run(sizes=(64, 16, 128))
    other, expected, _ = run(sizes=(64, 16, 128), by_oracle=True)
    assert np.array_equal(found, expected)
    for name in Tally.__dataclass_fields__:
        assert np.array_equal(getattr(execution.tally, name), getattr(other.tally, name)), name


@pytest.mark.parametrize(("name", "seed"), [(name, n % 3) for n, name in enumerate(BUGS)])
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, *_ = run(with_bug(name), seed=seed, sanitize=True)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][2], [each.message for each in execution.findings]


def test_a_stage_that_a_peer_fills_again_names_the_mbarrier_of_its_release() -> None:
    bug = "a stage refilled before the peer's consumers released it"
    execution, *_ = run(with_bug(bug), sanitize=True)
    found = [each for each in execution.findings if each.kind == "overwritten before read"]
    assert any(
        "no arrival at the mbarrier at byte" in each.message
        and "of 'empty' of rank" in each.message
        for each in found
    ), execution.findings


def test_an_mbarrier_that_a_peer_has_not_initialized_is_named_with_its_rank() -> None:
    source = with_bug("the multicast begins before the peer's mbarriers are there")
    execution, *_ = run(source, sanitize=True)
    texts = [each.message for each in execution.findings]
    assert any("of rank 1, a block that may not run yet" in text for text in texts), texts
    # Nothing in this kernel is relaxed.
    assert not any("relaxed" in text for text in texts), texts


# Each block fills its tile; the block of rank %r28 multicasts a box to those of the mask %r27,
# which wait for it, or copies it to the tile of one of them. Then each stores its tile.
PROGRAM = f"""mov.u32 %r10, full;
mov.u32 %r11, tile;
ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%rd2];
ld.global.v4.u32 {{%r24, %r25, %r26, %r27}}, [%rd2+16];
ld.global.u32 %r28, [%rd2+32];
add.u32 %r26, %r26, %r11;
mov.u32 %r30, %cluster_ctarank;
mul.wide.u32 %rd7, %r30, {TILE_BYTES};
add.u64 %rd0, %rd0, %rd7;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
fence.mbarrier_init.release.cluster;
shl.b32 %r12, %tid, 4;
add.u32 %r13, %r12, %r11;
cvt.u64.u32 %rd6, %r12;
add.u64 %rd6, %rd6, %rd0;
mov.u64 %rd8, %rd6;
mov.u32 %r14, 0;
FILL: ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd6];
st.shared.v4.u32 [%r13], {{%r1, %r2, %r3, %r4}};
add.u32 %r13, %r13, 1024;
add.u64 %rd6, %rd6, 1024;
add.u32 %r14, %r14, 1024;
setp.lt.u32 %p1, %r14, {TILE_BYTES};
@%p1 bra FILL;
fence.proxy.async;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
shr.u32 %r31, %r27, %r30;
and.b32 %r31, %r31, 1;
setp.ne.u32 %p3, %r31, 0;
and.pred %p4, %p3, %p0;
@%p4 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], %r25;
setp.eq.u32 %p5, %r30, %r28;
and.pred %p5, %p5, %p0;
COPY
@!%p3 bra STORE;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r10], 0;
@!%p2 bra WAIT;
STORE:
add.u32 %r13, %r12, %r11;
mov.u32 %r14, 0;
DUMP: ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r13];
st.global.v4.u32 [%rd8], {{%r1, %r2, %r3, %r4}};
add.u32 %r13, %r13, 1024;
add.u64 %rd8, %rd8, 1024;
add.u32 %r14, %r14, 1024;
setp.lt.u32 %p1, %r14, {TILE_BYTES};
@%p1 bra DUMP;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;"""
_OPCODE = "cp.async.bulk.tensor.{n}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
MULTICAST = (
    "cvt.u16.u32 %h1, %r27;\n"
    f"@%p5 {_OPCODE}.multicast::cluster [%r26], [%rd1, {{at}}], [%r10], %h1;"
)
# The lowest rank of the mask is that of the peer.
TO_PEER = (
    "brev.b32 %r32, %r27;\nclz.b32 %r32, %r32;\n"
    "mapa.shared::cluster.u32 %r33, %r26, %r32;\nmapa.shared::cluster.u32 %r34, %r10, %r32;\n"
    f"@%p5 {_OPCODE} [%r33], [%rd1, {{at}}], [%r34];"
)


def tiles(
    rng: np.random.Generator, copy: str, mask: int, blocks: int, name: str, *, rank: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The blocks' tiles after a copy by one of them, and what they should be."""
    case = random_case(rng, rank)
    at = "{" + ", ".join(f"%r{20 + n}" for n in range(rank)) + "}"
    ptx = kernel_ptx(
        PROGRAM.replace("COPY", copy.format(n=rank, at=at)),
        pointers=3,
        target="sm_90",
        declarations=f".shared .align 8 .b64 full; .shared .align 1024 .b8 tile[{TILE_BYTES}];",
    )
    before = rng.integers(0, 256, (blocks, TILE_BYTES), np.uint8)
    memory, addresses = DeviceMemory(), []
    storage = memory.allocate(len(case.storage), "A")
    memory.view(storage.address, storage.nbytes)[:] = case.storage
    packed = np.array([*case.packed, mask, int(rng.integers(blocks))], np.int32)
    map_bytes = np.frombuffer(encoded(at_address(case.map, storage.address)), np.uint8)
    for data in (before.reshape(-1), map_bytes, packed.view(np.uint8)):
        held = memory.allocate(len(data))
        memory.view(held.address, held.nbytes)[:] = data
        addresses.append(held.address)
    request = LaunchRequest(
        (blocks, 1, 1),
        (64, 1, 1),
        np.array(addresses, np.uint64).tobytes(),
        cluster=(blocks, 1, 1),
    )
    if name == "oracle":
        oracle.run(parsed(ptx)[1], request, memory)
    else:
        seed = int(rng.integers(3))
        execution = load(ptx, "k").run(request, memory, warp_seed=seed, sanitize=name != "engine")
        assert execution.findings == ()
    expected = before.copy()
    for each in range(blocks):
        if mask >> each & 1:
            expected[each] = loaded(replace(case, tile=before[each]))
    return memory.view(addresses[0], before.size).reshape(before.shape).copy(), expected


@pytest.mark.parametrize("name", ["oracle", "engine", "sanitized"])
@pytest.mark.parametrize(("rank", "copy"), [(1, MULTICAST), (2, MULTICAST), (4, MULTICAST),
                                            (3, TO_PEER)])  # fmt: skip
@pytest.mark.sample
def test_boxes_arrive_in_the_blocks_of_the_mask(name: str, rank: int, copy: str) -> None:
    rng = np.random.default_rng(rank)
    for blocks in (1, 4) if name != "sanitized" else (2, 5):
        mask = int(rng.integers(1, 1 << blocks))
        if copy is TO_PEER:
            mask = 1 << int(rng.integers(blocks))
        found, expected = tiles(rng, copy, mask, blocks, name, rank=rank)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["oracle", "engine"])
def test_a_mask_of_blocks_that_are_not_there(name: str) -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(DeviceError, match=r"invalid multicast.*rank 2 with the mask 0x5"):
        tiles(rng, MULTICAST, 5, 2, name, rank=2)
    with pytest.raises(DeviceError, match=r"invalid multicast.*no block with the mask 0x0"):
        tiles(rng, MULTICAST, 0, 2, name, rank=2)
