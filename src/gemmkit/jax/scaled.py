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

from gemmkit.dtypes import Dtype
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.operands import array_of, flat
from gemmkit.jax.primitive import make_primitive
from gemmkit.jax.target import SCALED_TARGET
from gemmkit.ops.narrow_results import SCALE_RESULT
from gemmkit.ops.operands import View, library_name, read_dtype
from gemmkit.ops.request import number
from gemmkit.ops.scale_shapes import read_scales
from gemmkit.ops.shapes import Shape
from gemmkit.problem_fields import check_narrow_result

# Of results, unless another is asked for.
OUT_DTYPE: Dtype = "float32"
# What the attribute `scaled` of a call has for each of its scales.
LETTERS = {"scale_a": "a", "scale_b": "b", SCALE_RESULT: "r"}


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
        given: scales by role, scale_a, scale_b and scale_result; None where there are none.
        shape: that of the product.
        layout, precision: as of other products.
        out_dtype: of the result; None for float32.

    Raises:
        UsageError: scales that do not fit, or a type that JAX does not have now.
    """
    scales = {role: _scale(role, each) for role, each in given.items() if each is not None}
    of_result = scales.pop(SCALE_RESULT, None)
    read_scales({role: each.shape for role, each in scales.items()}, shape)
    for role, each in scales.items():
        shape.scales(View.tight(each.shape), role)
    own = OUT_DTYPE if out_dtype is None else read_dtype(out_dtype, narrow=True)
    check_narrow_result(a.dtype.name, 0.0, Epilogue(scale_result=of_result is not None), own)
    if of_result is not None:
        scales[SCALE_RESULT] = _single(of_result)
    wanted = library_name(own)
    if jax.dtypes.canonicalize_dtype(wanted).name != wanted:
        raise UsageError(f"out_dtype = {wanted}: JAX has it with jax_enable_x64 alone")
    return _stacked(
        (a, b, *scales.values()),
        layout=layout,
        scaled="".join(LETTERS[role] for role in scales),
        precision=precision,
        out_dtype=wanted,
    )


def _single(scale: jax.Array) -> jax.Array:
    """The scale of results, of no dimensions.

    Raises:
        UsageError: it has more than one element.
    """
    if scale.size != 1:
        raise UsageError(
            f"{SCALE_RESULT} has the shape {scale.shape}: give one number for all results"
        )
    return scale.reshape(())


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
    of_result = [scales.pop()] if LETTERS[SCALE_RESULT] in how["scaled"] else []
    scales = [each.reshape(1, 1) if each.ndim < 2 else each for each in scales]
    stack = jnp.broadcast_shapes(*(each.shape[:-2] for each in (a, b, *scales)))
    if prod(stack) != 1 and prod(a.shape[:-2]) == prod(b.shape[:-2]) == 1:
        # Scales alone make it a stack, as under `vmap`.
        a = jnp.broadcast_to(a, (*stack, *a.shape[-2:]))
    arrays = (*(flat(each, stack) for each in (a, b, *scales)), *of_result)
    found: jax.Array = _product.bind(*arrays, **how)
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
    """The rule of `vmap`: one more dimension of the stack.

    Raises:
        UsageError: products would have scales of their own for their results.
    """
    if LETTERS[SCALE_RESULT] in how["scaled"]:
        *operands, of_result = operands
        *axes, axis = axes
        if axis is not None:
            raise UsageError(f"{SCALE_RESULT} is one number for all products of a vmap")
        moved = [*_moved(operands, axes), of_result]
    else:
        moved = _moved(operands, axes)
    return _stacked(tuple(moved), **how), 0


def _moved(operands: Any, axes: Any) -> list[jax.Array]:
    """Operands with the dimension that `vmap` maps first; of 1 where there is none."""
    return [
        array[None] if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    ]


def _make_primitive() -> Primitive:
    parameters = ("layout", "scaled", "precision", "out_dtype")
    primitive = make_primitive(SCALED_TARGET, _abstract, parameters)
    ad.primitive_jvps[primitive] = _differentiated
    batching.primitive_batchers[primitive] = _batched
    return primitive


_product = _make_primitive()
