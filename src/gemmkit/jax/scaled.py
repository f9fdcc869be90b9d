"""Products of 8-bit types in JAX programs, with their scales: a primitive without derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.operands import array_of, flat
from gemmkit.jax.primitive import make_primitive
from gemmkit.jax.target import SCALED_TARGET
from gemmkit.ops.operands import View, read_dtype
from gemmkit.ops.request import number, read_scales
from gemmkit.ops.shapes import Shape

# Of results, unless another is asked for.
OUT_DTYPE = "float32"


def scaled_product(
    a: jax.Array,
    b: jax.Array,
    given: Mapping[str, Any],
    shape: Shape,
    *,
    layout: str,
    precision: str,
    out_dtype: Any,
) -> jax.Array:
    """The products of two stacks of matrices of 8 bits, in the shape of both sides.

    Args:
        a, b: of any depth, which broadcast.
        given: their scales by role, scale_a and scale_b; None where there are none.
        shape: that of the product.
        layout, precision: as of other products.
        out_dtype: of the result; None for float32.

    Raises:
        UsageError: scales that do not fit, or a type that JAX does not have now.
    """
    scales = {role: _scale(role, each) for role, each in given.items() if each is not None}
    read_scales({role: each.shape for role, each in scales.items()}, shape)
    for role, each in scales.items():
        shape.scales(View.tight(each.shape), role)
    wanted = OUT_DTYPE if out_dtype is None else read_dtype(out_dtype)
    if jax.dtypes.canonicalize_dtype(wanted).name != wanted:
        raise UsageError(f"out_dtype = {wanted}: JAX has it with jax_enable_x64 alone")
    return _stacked(
        (a, b, *scales.values()),
        layout=layout,
        scaled="".join(role[-1] for role in scales),
        precision=precision,
        out_dtype=wanted,
    )


def _scale(role: str, given: Any) -> jax.Array:
    if isinstance(given, Real):
        return jnp.full((), number(role, given), jnp.float32)
    found = array_of(role, given)
    if found.dtype != jnp.float32:
        raise UnsupportedType(f"{role} has type {found.dtype.name}: scales are float32")
    return found


def _stacked(operands: tuple[Any, ...], **how: str) -> jax.Array:
    """The products of stacks of any depth, and their scales, which broadcast."""
    a, b, *scales = operands
    scales = [each.reshape(1, 1) if each.ndim < 2 else each for each in scales]
    stack = jnp.broadcast_shapes(*(each.shape[:-2] for each in (a, b, *scales)))
    if prod(stack) != 1 and prod(a.shape[:-2]) == prod(b.shape[:-2]) == 1:
        # Scales alone make it a stack, as under `vmap`.
        a = jnp.broadcast_to(a, (*stack, *a.shape[-2:]))
    found: jax.Array = _product.bind(*(flat(each, stack) for each in (a, b, *scales)), **how)
    return found.reshape(*stack, *found.shape[1:])


def _abstract(
    a: Any,
    b: Any,
    *_scales: Any,
    layout: str,
    scaled: str,  # noqa: ARG001
    precision: str,  # noqa: ARG001
    out_dtype: str,
) -> Any:
    m = a.shape[1 + (layout[0] == "t")]
    n = b.shape[2 - (layout[1] == "t")]
    stack = a.shape[0] if b.shape[0] == 1 else b.shape[0]
    return jax.core.ShapedArray((stack, m, n), jnp.dtype(out_dtype))


def _differentiated(*_: Any, **__: Any) -> Any:
    raise UsageError(
        "products of 8-bit types have no gradients: give them with jax.custom_vjp, or use "
        "jax.lax.stop_gradient"
    )


def _batched(operands: Any, axes: Any, **how: str) -> tuple[jax.Array, int]:
    """The rule of `vmap`: one more dimension of the stack."""
    moved = (
        array[None] if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    )
    found = _stacked(tuple(moved), **how)
    return found, 0


def _make_primitive() -> Primitive:
    parameters = ("layout", "scaled", "precision", "out_dtype")
    primitive = make_primitive(SCALED_TARGET, _abstract, parameters)
    ad.primitive_jvps[primitive] = _differentiated
    batching.primitive_batchers[primitive] = _batched
    return primitive


_product = _make_primitive()
