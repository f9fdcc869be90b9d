"""Single tensor copies as PTX programs, run on each executor, and a plain model of what they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from launching import kernel_ptx, parsed
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.tensor_maps import ELEMENT_BYTES, TensorMap

Bytes = NDArray[np.uint8]
TILE_BYTES = 16384
# What shared memory holds before.
BEFORE = 0xEE

_START = f"""mov.u32 %r10, full;
mov.u32 %r11, tile;
ld.global.u32 %r20, [%rd2];
ld.global.u32 %r21, [%rd2+4];
ld.global.u32 %r22, [%rd2+8];
ld.global.u32 %r23, [%rd2+12];
ld.global.u32 %r24, [%rd2+16];
ld.global.u32 %r25, [%rd2+20];
ld.global.u32 %r26, [%rd2+24];
add.u32 %r26, %r26, %r11;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
shl.b32 %r12, %tid, 4;
add.u32 %r13, %r12, %r11;
cvt.u64.u32 %rd6, %r12;
add.u64 %rd6, %rd6, %rd0;
mov.u32 %r14, 0;
FILL: ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd6];
st.shared.v4.u32 [%r13], {{%r1, %r2, %r3, %r4}};
add.u32 %r13, %r13, 1024;
add.u64 %rd6, %rd6, 1024;
add.u32 %r14, %r14, 1024;
setp.lt.u32 %p1, %r14, {TILE_BYTES};
@%p1 bra FILL;
fence.proxy.async;
bar.sync 0;
"""
_LOAD = """@!%p0 bra LATER;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], %r25;
cp.async.bulk.tensor.{n}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
[%r26], [%rd1, {at}], [%r10];
LATER:
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
@!%p2 bra WAIT;
"""
_STORE = """@!%p0 bra LATER;
{opcode} [%rd1, {at}], [%r26];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
LATER:
bar.sync 0;
"""
_END = f"""add.u32 %r13, %r12, %r11;
cvt.u64.u32 %rd6, %r12;
add.u64 %rd6, %rd6, %rd0;
mov.u32 %r14, 0;
DUMP: ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r13];
st.global.v4.u32 [%rd6], {{%r1, %r2, %r3, %r4}};
add.u32 %r13, %r13, 1024;
add.u64 %rd6, %rd6, 1024;
add.u32 %r14, %r14, 1024;
setp.lt.u32 %p1, %r14, {TILE_BYTES};
@%p1 bra DUMP;"""


@cache
def program(rank: int, reduction: str | None, *, stores: bool) -> str:
    """A program that copies a box of a tensor to shared memory, or from there."""
    at = "{" + ", ".join(f"%r{20 + n}" for n in range(rank)) + "}"
    plain = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    if reduction is not None:
        plain = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduction}.bulk_group"
    body = _STORE.format(opcode=plain, at=at) if stores else _LOAD.format(n=rank, at=at)
    return kernel_ptx(
        _START + body + _END,
        pointers=3,
        target="sm_90",
        declarations=f".shared .align 8 .b64 full; .shared .align 1024 .b8 tile[{TILE_BYTES}];",
    )


@dataclass(frozen=True)
class Case:
    """A map without its address, the storage of its tensor, and a copy by it."""

    map: TensorMap
    storage: Bytes
    coordinates: tuple[int, ...]
    offset: int
    tile: Bytes

    @property
    def packed(self) -> NDArray[np.int32]:
        """What the program reads of it."""
        five = (*self.coordinates, 0, 0, 0, 0)[:5]
        return np.array([*five, self.map.box_bytes, self.offset], np.int32)


def at_address(tensor_map: TensorMap, address: int) -> TensorMap:
    """The map of a tensor that begins elsewhere."""
    fields = {name: getattr(tensor_map, name) for name in TensorMap.__dataclass_fields__}
    return TensorMap(**{**fields, "address": address})


def run(
    case: Case,
    name: str,
    *,
    stores: bool = False,
    reduction: str | None = None,
    seed: int = 0,
    rank: int = 0,
) -> tuple[Bytes, Bytes, Tally]:
    """Shared memory and the tensor's storage after a copy on the engine or the oracle.

    The instruction's `rank` is that of the map by default.
    """
    ptx = program(rank or case.map.rank, reduction, stores=stores)
    memory, addresses = DeviceMemory(), []
    held = memory.allocate(len(case.storage), "A")
    memory.view(held.address, held.nbytes)[:] = case.storage
    map_bytes = np.frombuffer(encoded(at_address(case.map, held.address)), np.uint8)
    for data in (case.tile, map_bytes, case.packed.view(np.uint8)):
        placed = memory.allocate(len(data))
        memory.view(placed.address, placed.nbytes)[:] = data
        addresses.append(placed.address)
    request = LaunchRequest((1, 1, 1), (64, 1, 1), np.array(addresses, np.uint64).tobytes())
    if name == "oracle":
        execution = oracle.run(parsed(ptx)[1], request, memory)
    else:
        execution = load(ptx, "k").run(request, memory, warp_seed=seed)
    tile = memory.view(addresses[0], TILE_BYTES).copy()
    return tile, memory.view(held.address, held.nbytes).copy(), execution.tally


def random_case(
    rng: np.random.Generator, rank: int, *, integers: bool = False, stores: bool = False
) -> Case:
    """A map of some type, box, strides and swizzle, and coordinates near its tensor, of those that
    the hardware takes."""
    elements = [each for each in ELEMENT_BYTES if "tf" not in each and "ftz" not in each]
    if integers:
        elements = ["uint32", "int32", "uint64"]
    element = elements[rng.integers(len(elements))]
    size = ELEMENT_BYTES[element]
    swizzle = int(rng.choice([0, 32, 64, 128]))
    inner = 16 * int(rng.integers(1, (swizzle or 128) // 16 + 1)) // size
    steps = (1, *(int(each) for each in rng.choice([1, 1, 1, 2, 3], rank - 1)))
    most = {1: 1, 2: 40, 3: 7, 4: 4, 5: 3}[rank]
    box = (inner, *(int(each) for each in rng.integers(1, most + 1, rank - 1)))
    sizes = tuple(int(rng.integers(1, 2 * each + 3)) for each in box)
    strides, end = [], sizes[0] * size
    for count in sizes[1:]:
        stride = -(-end // 16) * 16 + 16 * int(rng.integers(0, 3))
        strides.append(stride)
        end = stride * count
    nan = "float" in element and bool(rng.integers(2))
    tensor_map = TensorMap(0, element, sizes, tuple(strides), box, steps, swizzle, nan)
    first, *others = (
        int(rng.integers(0 if stores else -each - 1, size + 2))
        for each, size in zip(box, sizes, strict=True)
    )
    coordinates = (first // (16 // size) * (16 // size), *others)
    # A store may write up to 15 bytes past the tensor.
    storage = rng.integers(0, 256, -(-tensor_map.span // 16) * 16, np.uint8)
    tile = rng.integers(0, 256, TILE_BYTES, np.uint8)
    return Case(tensor_map, storage, coordinates, 128 * int(rng.integers(0, 9)), tile)


def tensor_of(
    tensor_map: TensorMap, storage: Bytes, *, stores: bool = False
) -> NDArray[np.generic]:
    """A tensor's elements as a view of its storage, outermost dimension first; with those that a
    store may write past each row, which ends at a multiple of 16 bytes."""
    size = tensor_map.item_bytes
    strides = (*tensor_map.strides[::-1], size)
    innermost, *outer = tensor_map.sizes
    if stores:
        innermost = -(-innermost * size // 16) * 16 // size
    return np.ndarray((*outer[::-1], innermost), f"u{size}", storage, 0, strides)


def box_of(
    case: Case, tensor: NDArray[np.generic]
) -> tuple[tuple[NDArray[np.int64], ...], NDArray[np.bool_]]:
    """The positions of a box's elements in a tensor, clipped to it, and which are inside of it."""
    tensor_map = case.map
    wanted = np.meshgrid(
        *(
            np.arange(start, start + extent, step)
            for start, extent, step in zip(
                case.coordinates, tensor_map.box, tensor_map.element_strides, strict=True
            )
        ),
        indexing="ij",
    )
    # Both of a tensor's sizes and of a box's the innermost comes first, of an array's last.
    positions = tuple(each.T for each in wanted[::-1])
    sizes = list(zip(positions, tensor.shape, strict=True))
    inside = np.all([(each >= 0) & (each < size) for each, size in sizes], axis=0)
    return tuple(np.clip(each, 0, size - 1) for each, size in sizes), inside


def shared_places(case: Case) -> NDArray[np.int64]:
    """Where the bytes of the box are in the tile, which begins at a multiple of 1024."""
    row_bytes = case.map.box[0] * case.map.item_bytes
    rows = np.arange(case.map.box_bytes // row_bytes)[:, None] * (case.map.swizzle or row_bytes)
    address = case.offset + (rows + np.arange(row_bytes)).reshape(-1)
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[case.map.swizzle]
    for bit in range(bits):
        address = address ^ ((address >> (7 + bit) & 1) << (4 + bit))
    return address


def loaded(case: Case) -> Bytes:
    """The tile after a load."""
    tensor_map = case.map
    tensor = tensor_of(tensor_map, case.storage)
    places, inside = box_of(case, tensor)
    # What an H100 writes, in each 16 bits.
    nan = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}.get(tensor_map.item_bytes, 0)
    fill = tensor.dtype.type(nan if tensor_map.fill_nan else 0)
    values = np.where(inside, tensor[places], fill)
    tile = case.tile.copy()
    tile[shared_places(case)] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return tile


def stored(case: Case, operation: str | None = None) -> Bytes:
    """The tensor's storage after a store or a reduction."""
    storage = case.storage.copy()
    tensor = tensor_of(case.map, storage, stores=True)
    places, inside = box_of(case, tensor)
    values = case.tile[shared_places(case)].view(tensor.dtype).reshape(inside.shape)
    if operation is not None:
        signed = case.map.element == "int32"
        kind = tensor.dtype.str.replace("u", "i") if signed else tensor.dtype
        function = {"add": np.add, "min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor}
        before = tensor[places]
        values = function[operation](before.view(kind), values.view(kind)).view(tensor.dtype)
    tensor[tuple(each[inside] for each in places)] = values[inside]
    return storage
