"""`TensorMap`: how the Tensor Memory Accelerator (TMA) sees a tensor in global memory, and which
boxes it copies; tiled mode only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol

from gemmkit.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Element = Literal[
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz",
]  # fmt: skip

# In the order of the driver's enumeration, CUtensorMapDataType.
ELEMENT_BYTES: Mapping[Element, int] = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float32_ftz": 4,
    "tfloat32": 4,
    "tfloat32_ftz": 4,
}
INTEGERS: frozenset[Element] = frozenset(["uint8", "uint16", "uint32", "int32", "uint64", "int64"])
MAP_BYTES, MAP_ALIGNMENT = 128, 64
SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)

# Bounds of the driver API, `cuTensorMapEncodeTiled`.
MAX_RANK, MAX_BOX, MAX_ELEMENT_STRIDE = 5, 256, 8
_MAX_SIZE, _STRIDE_LIMIT = 1 << 32, 1 << 40
_UNIT = 16


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and a box of it, innermost dimension first.

    The rules are those of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object
    Management").

    Args:
        address: of the tensor's first element.
        element: its element type.
        sizes: of the tensor, in elements, one for each of 1 to 5 dimensions.
        strides: bytes from one element to the next along each dimension but the innermost, whose
            elements are contiguous.
        box: the size of a box along each dimension, in elements of the tensor.
        element_strides: a box holds each element along the innermost dimension and, of every such
            number of elements along another one, the first. By default 1 everywhere.
        swizzle: bytes of the swizzle span: 0 (none), 32, 64 or 128.
        fill_nan: elements outside of the tensor read as NaN instead of zero.
        l2: bytes to which reads are promoted in the L2, a hint: 0 (none), 64, 128 or 256.

    Raises:
        UsageError: a rule is broken; the message says which, and by what.
    """

    address: int
    element: Element
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    fill_nan: bool = False
    l2: int = 0

    def __post_init__(self) -> None:
        if self.element not in ELEMENT_BYTES:
            raise UsageError(
                f"a tensor map has no elements of type '{self.element}'; it has "
                f"{', '.join(ELEMENT_BYTES)}"
            )
        if not 1 <= len(self.sizes) <= MAX_RANK:
            raise UsageError(f"a tensor map has 1 to {MAX_RANK} dimensions, not {len(self.sizes)}")
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * self.rank)
        self._check_lengths()
        self._check_tensor()
        self._check_box()

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.element]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The elements that a box holds along each dimension."""
        steps = self.steps
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The element strides that apply: without interleaving, the innermost one is ignored."""
        return (1, *self.element_strides[1:])

    @cached_property
    def box_bytes(self) -> int:
        """Bytes of a box's elements, also of those that are outside of the tensor."""
        return prod(self.counts) * self.item_bytes

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a box along the innermost dimension."""
        return self.box[0] * self.item_bytes

    @cached_property
    def pitch(self) -> int:
        """Bytes in shared memory from a row of a box to the next.

        With a swizzle a row takes all of the swizzle's span, also if it is narrower (measured on an
        H100).
        """
        return self.swizzle or self.row_bytes

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the begin of a box to the end of its last row's pitch."""
        return self.box_bytes // self.row_bytes * self.pitch

    @cached_property
    def span(self) -> int:
        """Bytes from the tensor's first element to the end of its last one."""
        outer = zip(self.sizes[1:], self.strides, strict=True)
        return self.sizes[0] * self.item_bytes + sum((size - 1) * step for size, step in outer)

    def _check_lengths(self) -> None:
        for name, given, wanted in (
            ("strides", self.strides, self.rank - 1),
            ("box sizes", self.box, self.rank),
            ("element strides", self.element_strides, self.rank),
        ):
            if len(given) != wanted:
                raise UsageError(
                    f"a tensor map of {self.rank} dimensions has {wanted} {name}, not {len(given)}"
                )

    def _check_tensor(self) -> None:
        if self.address % _UNIT:
            raise UsageError(
                f"a tensor map's tensor begins at a multiple of {_UNIT} bytes, not at "
                f"{self.address:#x}"
            )
        for dimension, size in enumerate(self.sizes):
            if not 1 <= size <= _MAX_SIZE:
                raise UsageError(
                    f"dimension {dimension} of a tensor map has a size of {size:,}; it must be 1 "
                    f"to 2^32"
                )
        for dimension, stride in enumerate(self.strides, 1):
            if stride % _UNIT or not 0 <= stride < _STRIDE_LIMIT:
                raise UsageError(
                    f"dimension {dimension} of a tensor map has a stride of {stride:,} bytes; it "
                    f"must be a multiple of {_UNIT} and less than 2^40"
                )
        if self.swizzle not in SWIZZLES or self.l2 not in L2_PROMOTIONS:
            name, value = ("swizzle", self.swizzle)
            allowed = SWIZZLES
            if self.swizzle in SWIZZLES:
                name, value, allowed = "L2 promotion", self.l2, L2_PROMOTIONS
            raise UsageError(f"a tensor map's {name} is {_listed(allowed)} bytes, not {value}")
        if self.fill_nan and self.element in INTEGERS:
            raise UsageError(
                f"a tensor map fills with NaN only floating-point elements, not {self.element}"
            )

    def _check_box(self) -> None:
        for dimension, size in enumerate(self.box):
            if not 1 <= size <= MAX_BOX:
                raise UsageError(
                    f"dimension {dimension} of a tensor map's box has a size of {size:,}; it must "
                    f"be 1 to {MAX_BOX}"
                )
        for dimension, step in enumerate(self.element_strides):
            if not 1 <= step <= MAX_ELEMENT_STRIDE:
                raise UsageError(
                    f"dimension {dimension} of a tensor map has an element stride of {step:,}; it "
                    f"must be 1 to {MAX_ELEMENT_STRIDE}"
                )
        inner = self.row_bytes
        if inner % _UNIT:
            raise UsageError(
                f"the innermost dimension of a tensor map's box has {inner:,} bytes "
                f"({self.box[0]} elements of {self.element}); it must be a multiple of {_UNIT}"
            )
        if self.swizzle and inner > self.swizzle:
            raise UsageError(
                f"the innermost dimension of a tensor map's box has {inner:,} bytes "
                f"({self.box[0]} elements of {self.element}); with a swizzle of {self.swizzle} "
                f"bytes it may have at most {self.swizzle}"
            )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"


class MapFormat(Hashable, Protocol):
    """How a device holds tensor maps in memory: `MAP_BYTES` each, in an encoding of its own."""

    def encoded(self, tensor_map: TensorMap) -> bytes:
        """The bytes of a map.

        Raises:
            DeviceError: the device refuses it.
        """

    def move(self, maps: NDArray[np.uint64], addresses: NDArray[np.uint64]) -> None:
        """Have maps describe the same matrices elsewhere.

        Args:
            maps: the words of each, a row of 16; they are changed. Where all are zero is none.
            addresses: of the matrices' first elements, one for each map.
        """
