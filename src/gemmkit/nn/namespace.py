"""The array functions that layers need, under one set of names, for each library of arrays.

A library is imported only where one of its arrays is given: it is imported then already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gemmkit.errors import UnsupportedType, UsageError

# An array of any library; the functions that take it say which element types and shapes they take.
Array = Any


class Namespace:
    """What NumPy and CuPy call it; the subclasses hold what others call differently.

    Functions that all libraries have under one name, such as `where`, are attributes.
    """

    writable = True

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def package(self) -> str:
        """The name by which the library is imported."""
        return str(self._module.__name__).partition(".")[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """Zeros of the type, and on the device, of `like`."""
        return self._module.zeros(tuple(shape), dtype=like.dtype)

    def steps(self, count: int, like: Array) -> Array:
        """0, 1, … `count` - 1, on the device of `like`."""
        del like
        return self._module.arange(count)

    def cast(self, array: Array, like: Array) -> Array:
        """The array with elements of `like`'s type."""
        return array.astype(like.dtype, copy=False)

    def contiguous(self, array: Array) -> Array:
        """The array itself, or a copy with its elements in order."""
        return self._module.ascontiguousarray(array)

    def pad(self, images: Array, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
        """Images, of four dimensions, with zero rows and columns added before and after."""
        return self._module.pad(images, ((0, 0), (0, 0), rows, columns))

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), from the exponential that does not overflow."""
        small = self._module.exp(-abs(x))
        return self._module.where(x >= 0, 1 / (1 + small), small / (1 + small))

    def softmax(self, scores: Array, *, masked: bool = False) -> Array:
        """exp(x) over its sum along the last axis; if `masked`, zero along rows that are all -inf.

        The largest is subtracted first, which changes no quotient and keeps sums in range.
        """
        del masked  # It costs nothing here.
        if 0 in scores.shape:
            return scores
        largest = scores.max(axis=-1, keepdims=True)
        largest = self._module.where(largest == -math.inf, 0, largest)
        powers = self._module.exp(scores - largest)
        total = powers.sum(axis=-1, keepdims=True)
        return powers / self._module.where(total == 0, 1, total)


class TorchNamespace(Namespace):
    """PyTorch's names."""

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """As `Namespace.zeros`."""
        return like.new_zeros(tuple(shape))

    def steps(self, count: int, like: Array) -> Array:
        """As `Namespace.steps`."""
        return self._module.arange(count, device=like.device)

    def cast(self, array: Array, like: Array) -> Array:
        """As `Namespace.cast`."""
        return array.to(like.dtype)

    def contiguous(self, array: Array) -> Array:
        """As `Namespace.contiguous`."""
        return array.contiguous()

    def pad(self, images: Array, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
        """As `Namespace.pad`."""
        return self._module.nn.functional.pad(images, (*columns, *rows))

    def sigmoid(self, x: Array) -> Array:
        """As `Namespace.sigmoid`."""
        return self._module.sigmoid(x)

    def softmax(self, scores: Array, *, masked: bool = False) -> Array:
        """As `Namespace.softmax`."""
        weights = self._module.softmax(scores, -1)
        if not masked or 0 in scores.shape:
            return weights
        return weights.masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0)


class JaxNamespace(Namespace):
    """JAX's names; its arrays are never written."""

    writable = False

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """As `Namespace.zeros`."""
        return self._module.zeros(tuple(shape), dtype=like.dtype, device=_jax_device(like))

    def steps(self, count: int, like: Array) -> Array:
        """As `Namespace.steps`."""
        return self._module.arange(count, device=_jax_device(like))

    def contiguous(self, array: Array) -> Array:
        """As `Namespace.contiguous`: they are so always."""
        return array


def _jax_device(array: Array) -> Any:
    """The device of one of JAX's arrays; None while it is traced, or spread over several."""
    import jax

    devices = set() if isinstance(array, jax.core.Tracer) else array.devices()
    return devices.pop() if len(devices) == 1 else None


_LIBRARIES: dict[str, tuple[str, type[Namespace]]] = {
    "numpy": ("numpy", Namespace),
    "cupy": ("cupy", Namespace),
    "jax": ("jax.numpy", JaxNamespace),
    "jaxlib": ("jax.numpy", JaxNamespace),
}


def namespace(array: Array) -> Namespace:
    """The functions for an array's library.

    Raises:
        UsageError: it has none that gemmkit knows, as Numba's arrays have none at all.
    """
    kind = type(array)
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package == "torch":
            # By a statement, which torch.compile knows.
            import torch

            return TorchNamespace(torch)
        found = _LIBRARIES.get(package)
        if found is not None:
            module, names = found
            return names(import_module(module))
    raise UnsupportedType(
        f"this layer needs element-wise arithmetic, and gemmkit knows none for {kind.__module__}."
        f"{kind.__name__}: give an array of NumPy, CuPy, PyTorch or JAX, which can share its memory"
    )


def shared_namespace(**arrays: Array | None) -> Namespace:
    """The functions for the library that all of these arrays are of; None is none.

    Raises:
        UsageError: they are of different libraries, or of one that gemmkit knows no functions for.
    """
    (name, first), *others = ((key, each) for key, each in arrays.items() if each is not None)
    found = namespace(first)
    for other, array in others:
        package = namespace(array).package
        if package != found.package:
            raise UnsupportedType(
                f"{name} is an array of {found.package} and {other} one of {package}: a layer "
                "takes arrays of one library"
            )
    return found


def shape_of(
    array: Array, name: str, *, rank: int | None = None, least: int = 0
) -> tuple[int, ...]:
    """An array's shape.

    Raises:
        UsageError: it is not an array, has another number of dimensions than `rank`, or has fewer
        than
            `least`.
    """
    shape = getattr(array, "shape", None)
    if shape is None:
        raise UnsupportedType(f"{name} has type {type(array).__name__}, which is not an array")
    if len(shape) < least or rank not in (None, len(shape)):
        wanted = f"{least} or more" if rank is None else rank
        raise UsageError(f"{name} must have {wanted} dimensions, not the shape {tuple(shape)}")
    return tuple(shape)


def expect_shape(array: Array, name: str, wanted: tuple[int, ...]) -> None:
    """See that an array has a shape.

    Raises:
        UsageError: it has another.
    """
    found = shape_of(array, name)
    if found != wanted:
        raise UsageError(f"{name} has the shape {found}, and must have {wanted}")


def expect_one_type(**arrays: Array | None) -> None:
    """See that arrays have elements of one type; None stands for no array.

    Raises:
        UnsupportedType: two differ.
    """
    given = ((name, getattr(each, "dtype", None)) for name, each in arrays.items())
    (name, first), *others = ((name, dtype) for name, dtype in given if dtype is not None)
    for other, dtype in others:
        if dtype != first and _type_name(dtype) != _type_name(first):
            raise UnsupportedType(
                f"{other} has type {_type_name(dtype)} and {name} has type {_type_name(first)}: "
                "gemmkit "
                "does not convert types implicitly, so convert one of them"
            )


def _type_name(dtype: Any) -> str:
    """What all libraries call a type of elements, whatever its byte order."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")
