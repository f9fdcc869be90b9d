"""`ragged_matmul` for JAX programs, and its derivatives, which are products by groups as well.

Two primitives are bilinear: each group's rows times a matrix of its own, and, for the gradient of
those matrices, the transpose of each group's rows times other rows of it. The gradients of either
are products of both kinds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.operands import array_of
from gemmkit.jax.primitive import make_primitive
from gemmkit.jax.ragged_target import OUTER_TARGET, RAGGED_TARGET
from gemmkit.ops.operands import known_dtype
from gemmkit.ops.precision import settled
from gemmkit.ops.ragged_request import NOT_INTEGERS
from gemmkit.ops.request import flag
from gemmkit.units import counted


def ragged_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    transb: bool = False,
    precision: str | None = None,
) -> jax.Array:
    """Multiply each group of a's rows by a matrix of its own.

    It is `jax.lax.ragged_dot(a, b, group_sizes)` with `offsets = jnp.cumsum(group_sizes)`, computed
    by gemmkit. Works under `jit`, `grad`, `jvp`, `vmap` and their combinations, on the CPU and on
    CUDA GPUs.

    On a GPU with a kernel that reads offsets there (see `gemmkit.ragged_matmul`), the product and
    the gradient of a wait for nothing. Elsewhere, and for the gradient of b, the offsets are
    brought to the host, which waits for them.

    Args:
        a: of shape (rows, k), float32, float64, float16 or bfloat16.
        b: of shape (groups, k, n) and the same type.
        offsets: integers of shape (groups,), in order: where the rows of each group end. Rows past
            the last end are zero in the result.
        transb: whether the last two dimensions of b hold its transposes, n x k, as the weights of
            layers do; they are read in place.
        precision: as for `gemmkit.jax.matmul`.

    Returns:
        An array of shape (rows, n).

    Raises:
        UsageError: an argument that is not an array, shapes or types that do not go together, an
            array that has been deleted, or no precision of its type.
    """
    a, b, offsets = array_of("a", a), array_of("b", b), _ends(offsets)
    for name, array in (("a", a), ("b", b)):
        if known_dtype(array.dtype.name, name) in OPERAND_TYPES:
            raise UnsupportedType(
                f"{name} has type {array.dtype.name}: products by groups take float32, float64, "
                "float16 and bfloat16"
            )
    if a.dtype != b.dtype:
        raise UnsupportedType(
            f"a has type {a.dtype.name} and b has type {b.dtype.name}: convert one with astype"
        )
    transb = flag("transb", transb)
    for name, array, sides, wanted in (
        ("a", a, 2, "(rows, k)"),
        ("b", b, 3, "(groups, n, k)" if transb else "(groups, k, n)"),
        ("offsets", offsets, 1, "(groups,)"),
    ):
        if array.ndim != sides:
            raise UsageError(f"{name} has {counted(array.ndim, 'dimension')}; it is {wanted}")
    inner = b.shape[2 if transb else 1]
    if a.shape[1] != inner:
        raise UsageError(
            f"a of shape {a.shape} has {a.shape[1]} columns and the matrices of b, of shape "
            f"{b.shape}, have {inner} {'columns' if transb else 'rows'}: k must be the same"
        )
    if offsets.shape[0] != b.shape[0]:
        raise UsageError(
            f"offsets have the shape {offsets.shape}; b has {counted(b.shape[0], 'group')}, each "
            "of which has an end"
        )
    layout = "nt" if transb else "nn"
    chosen = settled(precision, a.dtype.name)
    found: jax.Array = _product.bind(a, b, offsets, layout=layout, precision=chosen)
    return found


def _ends(given: Any) -> jax.Array:
    """Offsets as the functions that XLA calls read them: of 32 bits, or of 64.

    Raises:
        UnsupportedType: they are not integers.
        UsageError: one does not fit the integers that JAX has.
    """
    if isinstance(given, list | tuple):
        try:
            found = jnp.asarray(given, None if given else jnp.int32)
        except OverflowError as error:
            raise UsageError(f"offsets do not fit JAX's integers: {error}") from error
        except (TypeError, ValueError) as error:
            raise UnsupportedType(NOT_INTEGERS) from error
    else:
        found = array_of("offsets", given)
    if not jnp.issubdtype(found.dtype, jnp.integer):
        raise UnsupportedType(NOT_INTEGERS)
    return found if found.dtype in (jnp.int32, jnp.int64) else found.astype(jnp.int32)


def _abstract_product(
    a: Any,
    b: Any,
    offsets: Any,  # noqa: ARG001
    *,
    layout: str,
    precision: str,  # noqa: ARG001
) -> Any:
    return jax.core.ShapedArray((a.shape[0], b.shape[2 - (layout[1] == "t")]), a.dtype)


def _abstract_outer(a: Any, c: Any, offsets: Any, *, precision: str) -> Any:  # noqa: ARG001
    return jax.core.ShapedArray((offsets.shape[0], a.shape[1], c.shape[1]), a.dtype)


def _times(a: Any, b: Any, offsets: Any, *, turned: bool, precision: str) -> Any:
    """Each group's rows times its matrix, or times the transpose of that."""
    return _product.bind(a, b, offsets, layout="nt" if turned else "nn", precision=precision)


def _product_transpose(
    grad: Any, a: Any, b: Any, offsets: Any, *, layout: str, precision: str
) -> list[Any]:
    """dA = dC B^T, and dB = A^T dC of each group, or its transpose dC^T A where B is stored so."""
    turned = layout == "nt"
    if ad.is_undefined_primal(a):
        zero = type(grad) is ad.Zero
        of_a = (
            ad.Zero(a.aval)
            if zero
            else _times(grad, b, offsets, turned=not turned, precision=precision)
        )
        return [of_a, None, None]
    if type(grad) is ad.Zero:
        return [None, ad.Zero(b.aval), None]
    pair = (grad, a) if turned else (a, grad)
    return [None, _outer.bind(*pair, offsets, precision=precision), None]


def _outer_transpose(grad: Any, a: Any, c: Any, offsets: Any, *, precision: str) -> list[Any]:
    """Of A^T C: dA = C dB^T, dC = A dB of each group."""
    if ad.is_undefined_primal(a):
        zero = type(grad) is ad.Zero
        of_a = (
            ad.Zero(a.aval) if zero else _times(c, grad, offsets, turned=True, precision=precision)
        )
        return [of_a, None, None]
    if type(grad) is ad.Zero:
        return [None, ad.Zero(c.aval), None]
    return [None, _times(a, grad, offsets, turned=False, precision=precision), None]


def _batched(primitive: Primitive, operands: Any, axes: Any, **how: Any) -> tuple[jax.Array, int]:
    """The rule of `vmap`: one product after the other, in a loop of XLA's."""
    moved = [
        array if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    ]

    def of_one(members: list[Any]) -> Any:
        own = iter(members)
        every = [
            each if axis is None else next(own) for each, axis in zip(moved, axes, strict=True)
        ]
        return primitive.bind(*every, **how)

    found = jax.lax.map(
        of_one, [each for each, axis in zip(moved, axes, strict=True) if axis is not None]
    )
    return found, 0


def _make_primitive(
    name: str, abstract: Any, parameters: tuple[str, ...], transpose: Any
) -> Primitive:
    primitive = make_primitive(name, abstract, parameters)

    def along_first(tangent: Any, _: Any, second: Any, offsets: Any, **how: Any) -> Any:
        return primitive.bind(tangent, second, offsets, **how)

    def along_second(tangent: Any, first: Any, _: Any, offsets: Any, **how: Any) -> Any:
        return primitive.bind(first, tangent, offsets, **how)

    ad.defjvp(primitive, along_first, along_second, None)
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = partial(_batched, primitive)
    return primitive


_product = _make_primitive(
    RAGGED_TARGET, _abstract_product, ("layout", "precision"), _product_transpose
)
_outer = _make_primitive(OUTER_TARGET, _abstract_outer, ("precision",), _outer_transpose)
