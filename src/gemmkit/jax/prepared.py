"""Products with prepared operands in JAX programs: a primitive that is linear in the other one.

A program holds the operand itself, not its elements: XLA neither copies them nor has them among its
constants. It gets no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.primitive import make_primitive
from gemmkit.jax.target import PREPARED_TARGET
from gemmkit.ops.libraries.jax import check_present
from gemmkit.ops.prepared_operands import PreparedOperand, taken
from gemmkit.ops.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable


def prepared_product(
    a: Any, w: PreparedOperand, precision: str | None, gradient: Callable[..., jax.Array]
) -> jax.Array:
    """a · w for an array of any number of dimensions.

    `gradient` is `gemmkit.jax.matmul`, which multiplies the gradient of the result by the
    transpose of the array that was prepared.

    Raises:
        UsageError: as `gemmkit.jax.matmul`.
        UnsupportedType: the operand is not of a JAX array, or of another type than a.
    """
    *_, found, _ = taken(a, w, precision)
    if not isinstance(w.array, jax.Array):
        raise UnsupportedType(
            f"b was prepared of a {type(w.array).__name__}: prepare an array of JAX's"
        )
    check_present(w.array, "b")
    if a.dtype != w.array.dtype:
        raise UnsupportedType(
            f"a has type {a.dtype.name} and b has type {w.array.dtype.name}: convert one with "
            "astype, gemmkit never does so on its own"
        )
    if a.ndim == 0:
        raise UsageError("a has 0 dimensions: a product needs 1 or more")
    shape = Shape.of(a.shape, w.shape)
    held = _Held(w, found or w.precision, gradient)
    rows: jax.Array = _product.bind(a.reshape(-1, a.shape[-1]), held=held)
    return rows.reshape(shape.result)


class _Held:
    """A prepared operand as a parameter of the primitive: equal to others of the same."""

    def __init__(
        self, operand: PreparedOperand, precision: str, gradient: Callable[..., jax.Array]
    ) -> None:
        self.operand, self.precision, self.gradient = operand, precision, gradient
        self._key = operand.key, precision

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.operand)


def _abstract(a: Any, *, held: _Held) -> Any:
    return jax.core.ShapedArray((a.shape[0], held.operand.shape[1]), a.dtype)


def _gradient(grad: Any, a: Any, *, held: _Held) -> tuple[Any]:
    """dA = dC · Bᵀ, from the array itself."""
    if type(grad) is ad.Zero:
        return (ad.Zero(a.aval),)
    array = held.operand.array
    return (held.gradient(grad, array, transb=True, precision=held.precision),)


def _batched(operands: Any, axes: Any, *, held: _Held) -> tuple[jax.Array, int]:
    """The rule of `vmap`: more rows."""
    (a,), (axis,) = operands, axes
    stacked = jnp.moveaxis(a, axis, 0)
    found = _product.bind(stacked.reshape(-1, stacked.shape[-1]), held=held)
    return found.reshape(*stacked.shape[:2], found.shape[-1]), 0


def _lowered(context: Any, a: Any, *, held: _Held) -> Any:
    # As long as there is the program.
    context.module_context.add_keepalive(held)
    lowering = jax.ffi.ffi_lowering(PREPARED_TARGET)
    return lowering(context, a, key=held.operand.key, precision=held.precision)


def _make_primitive() -> Primitive:
    primitive = make_primitive(PREPARED_TARGET, _abstract, ("held",), _lowered)
    ad.deflinear2(primitive, _gradient)
    batching.primitive_batchers[primitive] = _batched
    return primitive


_product = _make_primitive()
