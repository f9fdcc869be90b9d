"""Tensor copies: their effect on engine and oracle against a plain model, and what is refused."""

from __future__ import annotations

import re
import timeit
from dataclasses import replace

import numpy as np
import pytest
from launching import kernel_ptx
from tensor_runs import (
    TILE_BYTES,
    Case,
    loaded,
    program,
    random_case,
    run,
    shared_places,
    stored,
)

from gemmkit.emulator import load
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.isa.tensor_copies import box_at, footprint, read_tensor, write_shared
from gemmkit.emulator.isa.tensor_maps import decoded, encoded
from gemmkit.errors import DeviceError, UnsupportedInstruction
from gemmkit.tensor_maps import Element, TensorMap

RANKS = (1, 2, 3, 4, 5)


def cases(seed: int, rank: int, count: int, **options: bool) -> list[Case]:
    rng = np.random.default_rng((seed, rank))
    return [random_case(rng, rank, **options) for _ in range(count)]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.sample(3)
def test_loads(rank: int) -> None:
    for number, case in enumerate(cases(1, rank, 24)):
        tile, storage, tally = run(case, "engine", seed=number % 3)
        assert np.array_equal(tile, loaded(case)), case
        assert np.array_equal(storage, case.storage)
        if number < 6:
            again, _, counts = run(case, "oracle")
            assert np.array_equal(again, tile), case
            assert not counts.differences(tally), case


# Elements before and after an H100 loaded them as tfloat32 (driver 580.159.04).
ROUNDED = {
    0x6AC1F000: 0x6AC20000,  # a tie, to even
    0x20CCD000: 0x20CCC000,
    0x3C705000: 0x3C704000,
    0xFF478FFF: 0xFF478000,
    0x65928D86: 0x65928000,
    0x803C1448: 0x803C2000,  # subnormal
    0x00077EFF: 0x00078000,
    0xFF7FFFFF: 0xFF800000,  # the largest number
    0xFF800000: 0xFF800000,
    0x7F865081: 0x7FFFE000,  # any NaN
    0xFFA6F9DD: 0x7FFFE000,
}


@pytest.mark.parametrize("element", ["tfloat32", "tfloat32_ftz"])
@pytest.mark.parametrize("name", ["engine", "oracle"])
def test_loads_of_tfloat32_round(name: str, element: Element) -> None:
    case = box_of(TensorMap(0, element, (64, 1), (256,), (32, 1)))
    given = np.zeros(64, np.uint32)
    given[: len(ROUNDED)] = list(ROUNDED)
    tile, storage, _ = run(replace(case, storage=given.view(np.uint8)), name)
    assert tile.view(np.uint32)[: len(ROUNDED)].tolist() == list(ROUNDED.values())
    assert np.array_equal(storage, given.view(np.uint8))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.sample(3)
def test_stores(rank: int) -> None:
    for number, case in enumerate(cases(2, rank, 18, stores=True)):
        tile, storage, tally = run(case, "engine", stores=True, seed=number % 3)
        assert np.array_equal(storage, stored(case)), case
        assert np.array_equal(tile, case.tile)
        if number < 6:
            _, again, counts = run(case, "oracle", stores=True)
            assert np.array_equal(again, storage), case
            assert not counts.differences(tally), case


@pytest.mark.parametrize("operation", ["add", "min", "max", "xor"])
@pytest.mark.sample(4)
def test_reductions_of_integers(operation: str) -> None:
    for rank in (1, 2, 3):
        for number, case in enumerate(cases(3, rank, 8, integers=True, stores=True)):
            _, storage, tally = run(case, "engine", stores=True, reduction=operation)
            assert np.array_equal(storage, stored(case, operation)), case
            if number < 3:
                _, again, counts = run(case, "oracle", stores=True, reduction=operation)
                assert np.array_equal(again, storage), case
                assert not counts.differences(tally), case


def test_reductions_of_floating_point_numbers() -> None:
    rng = np.random.default_rng(9)
    for element, kind in (("float32", np.float32), ("float16", np.float16), ("float64", float)):
        size = np.dtype(kind).itemsize
        tensor_map = TensorMap(0, element, (40, 5), (40 * 8,), (128 // size, 4), swizzle=128)
        storage = np.zeros(tensor_map.span, np.uint8)
        values = rng.integers(-50, 50, (5, 40)).astype(kind)
        tensor = np.ndarray((5, 40), kind, storage, 0, (320, size))
        tensor[...] = values
        tile = rng.integers(-50, 50, TILE_BYTES // size).astype(kind).view(np.uint8)
        case = Case(tensor_map, storage, (32, 3), 256, tile)
        added = tile[shared_places(case)].view(kind).reshape(4, -1)[:2, :8]
        values[3:, 32:] += added
        for name in ("engine", "oracle"):
            _, after, _ = run(case, name, stores=True, reduction="add")
            found = np.ndarray((5, 40), kind, after, 0, (320, size))
            assert np.array_equal(found, values), (element, name)


def box_of(tensor_map: TensorMap, coordinates: tuple[int, ...] = (0, 0), offset: int = 0) -> Case:
    storage = np.zeros(tensor_map.span, np.uint8)
    return Case(tensor_map, storage, coordinates, offset, np.zeros(TILE_BYTES, np.uint8))


PLAIN = TensorMap(0, "float32", (64, 64), (256,), (32, 8))
REFUSED = {
    "is not a multiple of 128": (box_of(PLAIN, offset=64), {}),
    "fits no array": (
        replace(box_of(PLAIN, (32, 60)), storage=np.zeros(61 * 256, np.uint8)), {}),
    "reduces uint8 elements by .add": (
        box_of(replace(PLAIN, element="uint8")), {"stores": True, "reduction": "add"}),
    "reduces float32 elements by .min": (
        box_of(PLAIN), {"stores": True, "reduction": "min"}),
    "(4, 0), 8 bytes": (box_of(replace(PLAIN, element="float16"), (4, 0)), {}),
    "(-1, 0), -4 bytes": (box_of(PLAIN, (-1, 0)), {}),
    "stores a box at coordinates (0, -1)": (box_of(PLAIN, (0, -1)), {"stores": True}),
    "stores a box at coordinates (-4, 0)": (
        box_of(replace(PLAIN, element="int32"), (-4, 0)), {"stores": True, "reduction": "add"}),
    "use float32": (box_of(replace(PLAIN, element="tfloat32")), {"stores": True}),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("name", ["engine", "oracle"])
def test_what_is_not_valid_is_refused(words: str, name: str) -> None:
    case, how = REFUSED[words]
    words = {"fits no array": "out of bounds"}.get(words, words)
    with pytest.raises(DeviceError, match=rf"{re.escape(words)}(?s:.*)kernel\.cu:"):
        run(case, name, **how)


@pytest.mark.parametrize("name", ["engine", "oracle"])
def test_a_map_of_another_rank(name: str) -> None:
    ptx = program(2, None, stores=False).replace("{%r20, %r21}", "{%r20, %r21, %r22}")
    with pytest.raises(UnsupportedInstruction, match="does not take these operands"):
        load(ptx, "k")
    three = TensorMap(0, "float32", (8, 8, 8), (32, 256), (4, 4, 4))
    with pytest.raises(DeviceError, match="a box of 2 dimensions, but its tensor map has 3"):
        run(box_of(three, (0, 0, 0)), name, rank=2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
         "[%r11], [%rd1, {%r1, %r2, %r3}], [%r10], {%h1};", "in the im2col modes are not"),
        ("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
         "[%r11], [%rd1, {%r1, %r2, %r3, %r4, %r5}], [%r10];", "tile::gather4, tile::scatter4"),
        ("tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 2;", "tensormap.replace"),
    ],
)  # fmt: skip
def test_other_modes_are_refused_by_name(line: str, words: str) -> None:
    ptx = kernel_ptx(line, target="sm_100a")
    with pytest.raises(UnsupportedInstruction, match=rf"{words}(?s:.*)kernel\.cu:1"):
        load(ptx, "k")


def test_a_box_of_128_rows_is_quick() -> None:
    form = form_of("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes")
    tensor_map = TensorMap(0, "bfloat16", (1024, 1024), (2048,), (64, 128), swizzle=128)
    raw, memory = encoded(tensor_map), np.zeros(2 << 20, np.uint8)
    shared = np.zeros(1 << 16, np.uint8)

    def copy() -> None:
        box = box_at(form, decoded(raw), (64, 128))
        dense = read_tensor(box, memory[box.first : box.end])
        write_shared(box, 1024, dense, shared[1024 : 1024 + footprint(box)])

    # Much more than it takes, for a host that is busy.
    assert min(timeit.repeat(copy, number=10, repeat=20)) / 10 < 200e-6
