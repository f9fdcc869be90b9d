"""`Operand`: where an array's elements are, whatever library it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, RESULT_TYPES, Dtype, full_type_name
from gemmkit.errors import UnsupportedType, UsageError

# Bytes of the kernels' widest access, which all matrices have to be aligned to for vector accesses.
WIDEST_ACCESS = 16

# What libraries call types of 8 bits. In ml_dtypes, float8_e4m3 is another type, with infinities.
_OF_8_BITS: dict[str, Dtype] = {"float8_e4m3fn": "float8_e4m3", "float8_e5m2": "float8_e5m2"}
_NAMES_OF_8_BITS = {own: name for name, own in _OF_8_BITS.items()}

_REFUSED = (
    (("complex",), "multiply its real and imaginary parts separately"),
    (("",), "convert it to one of them first"),
)


@dataclass(frozen=True, slots=True)
class View:
    """How the elements of an array lie in memory: sizes, and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def tight(cls, shape: tuple[int, ...]) -> View:
        """Row-major without gaps."""
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        return cls(shape, tuple(reversed(strides)))

    @property
    def is_tight(self) -> bool:
        """Whether it is row-major without gaps; strides of single elements do not matter."""
        tight = View.tight(self.shape).strides
        return all(
            size == 1 or step == wanted
            for size, step, wanted in zip(self.shape, self.strides, tight, strict=True)
        )

    @property
    def empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.shape

    @property
    def extent(self) -> tuple[int, int]:
        """First element, and the one after the last, from the address of element 0."""
        if self.empty:
            return 0, 0
        reach = [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]
        return sum(min(each, 0) for each in reach), 1 + sum(max(each, 0) for each in reach)

    @property
    def overlaps_itself(self) -> bool:
        """Whether two indices may mean the same element.

        Only views that lie row in row are distinguished from others, which is how strided views are
        made.
        """
        reach = 1
        steps = sorted(
            (abs(step), size)
            for size, step in zip(self.shape, self.strides, strict=True)
            if size > 1
        )
        for step, size in steps:
            if step < reach:
                return not self.empty
            reach += step * (size - 1)
        return False


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as the operations see it.

    `address` is that of element 0, in host memory if `device` is None, else on the GPU of that
    ordinal. `array` is the object itself, which keeps the memory. What `view` cannot tell of a host
    array, that its elements are byte-swapped or begin between others, is in `elements`: the array
    as unsigned integers of their size, for NumPy to copy; `view` is that of such a copy then.
    """

    array: Any
    address: int
    view: View
    dtype: Dtype
    device: int | None
    writable: bool
    elements: NDArray[Any] | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def overlaps_itself(self) -> bool:
        """Whether two indices may mean the same element; see `View.overlaps_itself`."""
        return self._bytes.overlaps_itself

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes."""
        if self.elements is not None:
            return self.elements.strides
        return tuple(step * self.item_bytes for step in self.view.strides)

    @property
    def where(self) -> str:
        """The place in words."""
        return "host memory" if self.device is None else f"GPU {self.device}"

    @property
    def extent(self) -> tuple[int, int]:
        """Addresses of its first byte, and of the one after its last."""
        first, last = self._bytes.extent
        return self.address + first, self.address + last

    @property
    def _bytes(self) -> View:
        return View((*self.view.shape, self.item_bytes), (*self.byte_strides, 1))


def same_memory(one: Operand, other: Operand) -> bool:
    """Whether two operands are the same elements at the same indices."""
    return (
        one.address == other.address
        and one.view.shape == other.view.shape
        and one.byte_strides == other.byte_strides
    )


def element_strides(bytes_apart: Iterable[int], item_bytes: int, role: str) -> tuple[int, ...]:
    """Strides in elements, of those in bytes.

    Raises:
        UsageError: one is no whole number of elements.
    """
    strides = tuple(bytes_apart)
    if any(step % item_bytes for step in strides):
        raise UsageError(
            f"{role} is not aligned to its elements of {item_bytes} bytes: copy it first"
        )
    return tuple(step // item_bytes for step in strides)


def alignment(addresses: int) -> int:
    """What addresses are multiples of, at most the 16 bytes of the widest access.

    They come as the union of their bits, or of the lowest four.
    """
    low = addresses & (WIDEST_ACCESS - 1)
    return low & -low or WIDEST_ACCESS


def check_aligned(operand: Operand, role: str) -> None:
    """Check that an operand's elements lie where a GPU can read them whole.

    Raises:
        UsageError: they do not.
    """
    if operand.device is None or operand.view.empty:
        return
    if operand.address % operand.item_bytes:
        raise UsageError(
            f"{role} is not aligned to its elements of {operand.item_bytes} bytes: copy it first"
        )


def known_dtype(name: str, role: str) -> Dtype:
    """The type of elements that a library's name for it means.

    Raises:
        UnsupportedType: gemmkit does not multiply it; the text says what to do.
    """
    for known in RESULT_TYPES:
        if name == known:
            return known
    if name in _OF_8_BITS:
        return _OF_8_BITS[name]
    if role.startswith("scale_"):
        raise UnsupportedType(f"{role} has type {name}: scales are float32")
    advice = next(words for starts, words in _REFUSED if name.startswith(starts))
    kinds = ", ".join((*RESULT_TYPES, *_OF_8_BITS))
    raise UnsupportedType(f"{role} has type {name}; gemmkit multiplies {kinds}: {advice}")


def library_name(dtype: Dtype) -> str:
    """What ml_dtypes, PyTorch and JAX call a type."""
    return _NAMES_OF_8_BITS.get(dtype, dtype)


def read_dtype(given: object, role: str = "out_dtype", *, narrow: bool = False) -> Dtype:
    """What a user may give as a type of elements: a name, NumPy's, PyTorch's or JAX's object; those
    of 8 bits where these are `narrow` too.

    Raises:
        UnsupportedType: it is not a type that gemmkit multiplies.
    """
    name = getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    # A scalar type such as jax.numpy.float32 has the type itself inside.
    name = getattr(getattr(given, "dtype", None), "name", None) or name
    name = str(name).removeprefix("torch.")
    # As an object that is ml_dtypes's type with infinities, not what is meant by that word.
    other = name == "float8_e4m3" and not isinstance(given, str)
    name = f"ml_dtypes.{name}" if other else full_type_name(name)
    allowed = (*RESULT_TYPES, *OPERAND_TYPES) if narrow else RESULT_TYPES
    for known in allowed:
        if known == {"float": "float64"}.get(name, name):
            return known
    raise UnsupportedType(
        f"{role} = {given!r} is not a type that gemmkit computes: use one of {', '.join(allowed)}"
    )
