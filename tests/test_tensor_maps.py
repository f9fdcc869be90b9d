"""Tensor maps: the driver's rules, each in one sentence; encodings; and a user's descriptions."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmkit.devices import tensor_maps
from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.tensor_maps import MapsOfSizes, driver_encoded
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.tensor_maps import decoded, encoded, is_map
from gemmkit.errors import DeviceError, UsageError
from gemmkit.kernels.tensor_maps import MapRule, read_maps
from gemmkit.problem import GemmProblem
from gemmkit.tensor_maps import ELEMENT_BYTES, TensorMap

MAP = TensorMap(
    1 << 20, "bfloat16", (100, 50, 3), (256, 1 << 16), (64, 20, 1), (1, 2, 1), 128, True, 256
)

BROKEN: dict[str, dict[str, Any]] = {
    "begins at a multiple of 16 bytes, not at 0x8": {"address": 8},
    "no elements of type 'int8'": {"element": "int8"},
    "has 1 to 5 dimensions, not 0": {"sizes": ()},
    "of 3 dimensions has 2 strides, not 1": {"strides": (256,)},
    "of 3 dimensions has 3 box sizes, not 2": {"box": (64, 20)},
    "of 3 dimensions has 3 element strides, not 1": {"element_strides": (1,)},
    "dimension 1 of a tensor map has a size of 0": {"sizes": (100, 0, 3)},
    "a size of 4,294,967,297; it must be 1 to 2^32": {"sizes": (2**32 + 1, 1, 1)},
    "dimension 1 of a tensor map has a stride of 200 bytes": {"strides": (200, 1 << 16)},
    "dimension 2 of a tensor map has a stride of 1,099,511,627,776": {"strides": (256, 1 << 40)},
    "dimension 1 of a tensor map's box has a size of 257": {"box": (64, 257, 1)},
    "an element stride of 9; it must be 1 to 8": {"element_strides": (1, 9, 1)},
    "has 40 bytes (20 elements of bfloat16); it must be a multiple of 16": {"box": (20, 1, 1)},
    "has 256 bytes (128 elements of bfloat16); with a swizzle of 128 bytes it may have at most": {
        "box": (128, 1, 1)},
    "swizzle is 0, 32, 64 or 128 bytes, not 16": {"swizzle": 16},
    "L2 promotion is 0, 64, 128 or 256 bytes, not 32": {"l2": 32},
    "fills with NaN only floating-point elements, not uint16": {"element": "uint16"},
}  # fmt: skip


@pytest.mark.parametrize("words", BROKEN)
def test_each_broken_rule_is_one_sentence(words: str) -> None:
    fields = BROKEN[words]
    if "sizes" in fields and not fields["sizes"]:
        fields = {**fields, "strides": (), "box": (), "element_strides": ()}
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        replace(MAP, **fields)
    assert "\n" not in str(caught.value)


def test_what_a_map_says_of_its_box() -> None:
    assert MAP.counts == (64, 10, 1)
    assert MAP.box_bytes == 64 * 10 * 2
    assert MAP.span == 100 * 2 + 49 * 256 + 2 * (1 << 16)


def test_an_encoding_holds_the_whole_map() -> None:
    rng = np.random.default_rng(2)
    for element in ELEMENT_BYTES:
        rank = int(rng.integers(1, 6))
        each = TensorMap(
            int(rng.integers(1, 2**40)) * 16,
            element,
            tuple(int(size) for size in rng.integers(1, 2**32 + 1, rank)),
            tuple(int(step) * 16 for step in rng.integers(0, 2**36, rank - 1)),
            (16, *(int(size) for size in rng.integers(1, 257, rank - 1))),
            tuple(int(step) for step in rng.integers(1, 9, rank)),
            int(rng.choice([0, 128])),
            "float" in element,
            int(rng.choice([0, 64, 128, 256])),
        )
        data = encoded(each)
        assert len(data) == 128
        assert decoded(data) == each
        assert is_map(np.frombuffer(data, np.uint64)).tolist() == [True] + 15 * [False]


@pytest.mark.parametrize("place", range(0, 128, 9))
def test_other_bytes_are_no_map(place: int) -> None:
    data = bytearray(encoded(MAP))
    data[place] ^= 1
    with pytest.raises(Misuse, match="do not hold one"):
        decoded(bytes(data))


def test_the_driver_gets_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    taken: list[Any] = []
    ok, wrong = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_VALUE
    answers = [ok, ok, ok, wrong]

    def words(address: int, of: Any, count: int) -> list[int]:
        return list((of * count).from_address(address))

    @tensor_maps.ENCODE
    def encode(to: int, *given: int) -> int:
        ctypes.memmove(to, np.arange(16, dtype=np.uint64).tobytes(), 128)
        element, rank, address, sizes, strides, box, steps, *options = given
        taken.extend([to % 64, element, rank, address, words(sizes, ctypes.c_uint64, rank)])
        taken.append(words(strides, ctypes.c_uint64, rank - 1))
        taken.extend(words(each, ctypes.c_uint32, rank) for each in (box, steps))
        taken.append(options)
        return int(answers.pop(0))

    place = ctypes.cast(encode, ctypes.c_void_p).value
    found = driver.CUresult.CUDA_SUCCESS, place, None
    monkeypatch.setattr(driver, "cuGetProcAddress", lambda *_: found)
    monkeypatch.setattr(tensor_maps, "_encode", tensor_maps._encode.__wrapped__)
    assert driver_encoded(MAP) == np.arange(16, dtype=np.uint64).tobytes()
    names = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion
    kind, swizzle, l2 = (
        of(value).name for of, value in zip(names, (taken[1], *taken[8][1:3]), strict=True)
    )
    assert kind == "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
    assert (swizzle, l2) == ("CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_L2_256B")
    assert (taken[0], *taken[2:4]) == (0, 3, 1 << 20)
    assert taken[4:8] == [[100, 50, 3], [256, 1 << 16], [64, 20, 1], [1, 2, 1]]
    none = driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    fill = driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
    assert (taken[8][0], taken[8][3]) == (int(none), int(fill))
    # Others of other sizes are told the same but for these.
    maps, first = MapsOfSizes(MAP), taken.copy()
    for rows in (7, 4096):
        taken.clear()
        assert len(maps.encoded((100, rows, 3))) == 128
        assert taken == [*first[:4], [100, rows, 3], *first[5:]]
    with pytest.raises(DeviceError, match="encoding a tensor map failed"):
        driver_encoded(MAP)


@pytest.mark.gpu
@pytest.mark.parametrize("element", ELEMENT_BYTES)
def test_the_driver_accepts_what_the_rules_accept(element: Any) -> None:
    CudaDevice()
    sizes = (16, *MAP.sizes[1:])
    each = replace(MAP, element=element, sizes=sizes, box=(16, 20, 1), fill_nan="float" in element)
    assert len(set(driver_encoded(each))) > 1


# Descriptions


def test_a_description() -> None:
    text = "map_a = a, box=64x128, swizzle=128B, fill=nan, l2=256b, type=fp16"
    assert MapRule.parse(text) == MapRule(
        "map_a", "A", (64, 128), 128, fill_nan=True, l2=256, element="float16"
    )
    assert MapRule.parse("m=C,box=32,swizzle=none").box == (32,)
    assert MapRule.parse("m=B,box=32x8,rank=3").box == (32, 8, 1)


WRONG = {
    "map_a": "describes no tensor map",
    "map_a=": "describes no tensor map",
    "map_a=D,box=8": "is of 'D'; a map is of A, B or C",
    "map_a=A": "it has no box",
    "map_a=A,box=64*64": "'64*64' is no box",
    "map_a=A,box=64x300": "a box of 64x300 has a size of 300; sizes are 1 to 256",
    "map_a=A,box=1x1x1x1": "has 4 dimensions; that of a matrix has at most 3",
    "map_a=A,box=64x64,swizzle=16B": "swizzle=16B is not one of none, 32B, 64B, 128B",
    "map_a=A,box=64x64,l2=1": "l2=1 is not one of none, 64B, 128B, 256B",
    "map_a=A,box=64x64,fill=one": "fill=one is neither zero nor nan",
    "map_a=A,box=64x64,type=int9": "unknown type 'int9'",
    "map_a=A,box=64x64,swizle=128B": "unknown option 'swizle': did you mean swizzle?",
    "map_a=A,box=64x64,rank=9": "a rank is 1 to 3, not '9'",
    "map_a=A,box=64x64,rank=1": "has a rank of 1, and its box 64x64 has 2 dimensions",
    "map_a=A,box=64x64,box=32x32": "has 'box=32x32' twice",
    "map_a=A,box=64x64,128B": "has '128B' without '=' and a value",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_description_names_what_is_wrong(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(WRONG[text])):
        MapRule.parse(text)


def test_two_maps_of_one_name() -> None:
    with pytest.raises(UsageError, match="tensor map 'm' is described twice"):
        read_maps(["m=A,box=8x8", "m=B,box=8x8"])


@pytest.mark.parametrize(
    ("operand", "layout", "sizes", "strides"),
    [
        ("A", "nn", (32, 24), (2 * 40,)),
        ("A", "tn", (24, 32), (2 * 40,)),
        ("B", "nn", (16, 32), (2 * 48,)),
        ("B", "nt", (32, 16), (2 * 48,)),
        ("C", "nn", (16, 24), (4 * 56,)),
        ("C", "nnt", (24, 16), (4 * 56,)),
    ],
)
def test_the_map_of_a_matrix(
    operand: str, layout: str, sizes: tuple[int, int], strides: tuple[int, int]
) -> None:
    problem = GemmProblem(24, 16, 32, dtype="bfloat16", out_dtype="float32")
    problem = replace(problem.laid_out(layout), lda=40, ldb=48, ldc=56)
    rule = MapRule(f"map_{operand}", operand, (8, 8))
    arguments = {"M": 24, "N": 16, "K": 32, "lda": 40, "ldb": 48, "ldc": 56, operand: 1 << 30}
    found = rule.planned(problem).of({**arguments, "batch": 1, **STRIDES})
    element = "float32" if operand == "C" else "bfloat16"
    assert found == TensorMap(1 << 30, element, sizes, strides, (8, 8))


STRIDES = {"stride_a": 4096, "stride_b": 512, "stride_c": 768}


def test_maps_of_a_batch_and_of_all_storage() -> None:
    problem = GemmProblem(24, 16, 32, batch=5)
    values = {"M": 24, "N": 16, "K": 32, "lda": 40, "batch": 5, "A": 0, **STRIDES}
    batch = MapRule("m", "A", (8, 8, 2)).planned(problem).of(values)
    assert (batch.sizes, batch.strides) == ((32, 24, 5), (160, 4 * 4096))
    flat = MapRule("m", "A", (64,)).planned(problem).of(values)
    assert (flat.sizes, flat.strides) == ((23 * 40 + 32,), ())
