"""A bilinear JAX primitive for products, and `matmul` on it.

Being bilinear, it is its own derivative: JAX differentiates it forward, backward and repeatedly,
and each derivative is again a product that reads its operands where they lie.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.operands import array_of, flat
from gemmkit.jax.prepared import prepared_product
from gemmkit.jax.primitive import make_primitive
from gemmkit.jax.scaled import scaled_product
from gemmkit.jax.target import TARGET
from gemmkit.ops.operands import known_dtype
from gemmkit.ops.precision import settled
from gemmkit.ops.prepared_operands import PreparedOperand
from gemmkit.ops.request import flag
from gemmkit.ops.shapes import Shape
from gemmkit.units import counted


def matmul(
    a: Any,
    b: Any,
    *,
    transa: bool = False,
    transb: bool = False,
    precision: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
) -> jax.Array:
    """The product of two arrays by NumPy's rules, computed by gemmkit.

    Vectors and stacks of matrices are multiplied as by `jax.numpy.matmul`. With `transa` the last
    two dimensions of `a` are swapped, with `transb` those of `b`, and read in place. A
    transposed argument is not: XLA passes row-major arrays only, so it copies that first.

    Works under `jit`, `grad`, `jvp`, `vmap` and their combinations, on the CPU and on CUDA GPUs.
    Arguments are never written.

    Args:
        a: float32, float64, float16 or bfloat16, of 1 dimension or more; or float8_e4m3fn or
            float8_e5m2, whose products have no gradients.
        b: of the same type; or such a JAX array as `gemmkit.prepare` makes it, a matrix that stays
            the same, of which a program holds no copy and which gets no gradient.
        transa: whether the last two dimensions of `a` hold its transpose, k x m.
        transb: whether the last two dimensions of `b` hold its transpose, n x k.
        precision: as for `gemmkit.matmul`; gradients are computed in it too. A traced program keeps
            that of its tracing.
        scale_a: what elements of `a` of 8 bits are multiplied by, as for `gemmkit.matmul`, in the
            shape for m x k whether or not `a` holds the transpose: a number, or float32.
        scale_b: the same of `b`, in the shape for k x n.
        scale_result: what results of 8 bits are multiplied by before they are rounded: a number, or
            one float32.
        out_dtype: the type of the result of 8-bit types, by default float32. Others have their own.

    Raises:
        UsageError: an argument that is not an array, shapes or types that cannot be multiplied, a
            transposed vector, an array that has been deleted, no precision of its type, or scales
            that do not fit.
    """
    if isinstance(b, PreparedOperand):
        if flag("transa", transa) or flag("transb", transb):
            raise UsageError("transa and transb are for arrays: a prepared operand lies as it lies")
        _check_for_8_bits(a, (scale_a, scale_b, scale_result), out_dtype)
        return prepared_product(array_of("a", a), b, precision, matmul)
    a, b = array_of("a", a), array_of("b", b)
    _check_types(a, b)
    narrow = known_dtype(a.dtype.name, "a") in OPERAND_TYPES
    if not narrow:
        _check_for_8_bits(a, (scale_a, scale_b, scale_result), out_dtype)
    transa, transb = flag("transa", transa), flag("transb", transb)
    for name, array, swapped in (("a", a, transa), ("b", b, transb)):
        if swapped and array.ndim < 2:
            raise UsageError(
                f"trans{name}: {name} has {counted(array.ndim, 'dimension')}, a matrix has two"
            )
    chosen = settled(precision, a.dtype.name)
    shape = Shape.of(a.shape, b.shape, transa=transa, transb=transb)
    if shape.vector_a:
        a = a[None, :]
    if shape.vector_b:
        b = b[:, None]
    layout = "nt"[transa] + "nt"[transb]
    if narrow:
        scales = {"scale_a": scale_a, "scale_b": scale_b, "scale_result": scale_result}
        found = scaled_product(
            a, b, scales, shape, layout=layout, precision=chosen, out_dtype=out_dtype
        )
    else:
        found = _stacked(a, b, layout, chosen)
    return found.reshape(shape.result)


def _check_types(a: Any, b: Any) -> None:
    for name, array in (("a", a), ("b", b)):
        known_dtype(array.dtype.name, name)
    if a.dtype != b.dtype:
        raise UnsupportedType(
            f"a has type {a.dtype.name} and b has type {b.dtype.name}: convert one with astype, "
            "gemmkit never does so on its own"
        )


def _check_for_8_bits(a: Any, scales: tuple[Any, ...], out_dtype: Any) -> None:
    """See that products of other types are given nothing that only those of 8 bits have."""
    if any(each is not None for each in scales):
        raise UsageError(
            f"scales are for a and b of {' and '.join(OPERAND_TYPES)}, not {a.dtype.name}: "
            "multiply the product instead"
        )
    if out_dtype is not None:
        raise UsageError(
            f"out_dtype is for a and b of 8 bits: products of {a.dtype.name} have their type"
        )


def _stacked(a: Any, b: Any, layout: str, precision: str) -> jax.Array:
    """The products of two stacks of matrices of any depth, which broadcast."""
    stack = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m = a.shape[-1] if layout[0] == "t" else a.shape[-2]
    n = b.shape[-2] if layout[1] == "t" else b.shape[-1]
    if layout[0] == "n" and prod(b.shape[:-2]) == 1:
        # One B for all: the rows of the stack are those of one tall matrix.
        a = a.reshape(1, -1 if a.size else prod(stack) * m, a.shape[-1])
    a, b = flat(a, stack), flat(b, stack)
    found: jax.Array = _product.bind(a, b, layout=layout, precision=precision)
    return found.reshape(*stack, m, n)


def _abstract(a: Any, b: Any, *, layout: str, precision: str) -> Any:  # noqa: ARG001
    m = a.shape[1 + (layout[0] == "t")]
    n = b.shape[2 - (layout[1] == "t")]
    stack = a.shape[0] if b.shape[0] == 1 else b.shape[0]
    return jax.core.ShapedArray((stack, m, n), a.dtype, weak_type=a.weak_type and b.weak_type)


def _gradient_of_a(grad: Any, a: Any, b: Any, *, layout: str, precision: str) -> Any:
    """dA = dC B^T, or its transpose B dC^T where A is stored transposed."""
    if type(grad) is ad.Zero:
        return ad.Zero(a.aval)
    if layout[0] == "n":
        found = _product.bind(grad, b, layout="n" + _other(layout[1]), precision=precision)
    else:
        found = _product.bind(b, grad, layout=layout[1] + "t", precision=precision)
    return _summed(found, a.aval.shape[0])


def _gradient_of_b(grad: Any, a: Any, b: Any, *, layout: str, precision: str) -> Any:
    """dB = A^T dC, or its transpose dC^T A where B is stored transposed."""
    if type(grad) is ad.Zero:
        return ad.Zero(b.aval)
    if layout[1] == "n":
        found = _product.bind(a, grad, layout=_other(layout[0]) + "n", precision=precision)
    else:
        found = _product.bind(grad, a, layout="t" + layout[0], precision=precision)
    return _summed(found, b.aval.shape[0])


def _other(letter: str) -> str:
    return "n" if letter == "t" else "t"


def _summed(found: jax.Array, stack: int) -> jax.Array:
    """The gradient of an operand that all products of the stack shared."""
    return found if found.shape[0] == stack else found.sum(axis=0, keepdims=True)


def _batched(operands: Any, axes: Any, *, layout: str, precision: str) -> tuple[jax.Array, int]:
    """The rule of `vmap`: one more dimension of the stack."""
    a, b = (
        array[None] if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    )
    return _stacked(a, b, layout, precision), 0


def _make_primitive() -> Primitive:
    primitive = make_primitive(TARGET, _abstract, ("layout", "precision"))
    ad.defbilinear(primitive, _gradient_of_a, _gradient_of_b)
    batching.primitive_batchers[primitive] = _batched
    return primitive


_product = _make_primitive()
