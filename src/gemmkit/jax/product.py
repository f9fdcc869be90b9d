"""A bilinear JAX primitive for products, and `matmul` on it.

Being bilinear, it is its own derivative: JAX differentiates it forward, backward and repeatedly,
and each derivative is again a product that reads its operands where they lie.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.jax.prepared import prepared_product
from gemmkit.jax.target import TARGET, finish_at_exit, register_target
from gemmkit.ops.arrays import library_of
from gemmkit.ops.libraries.jax import check_present
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
) -> jax.Array:
    """The product of two arrays by NumPy's rules, computed by gemmkit.

    Vectors and stacks of matrices are multiplied as by `jax.numpy.matmul`. With `transa` the last
    two dimensions of `a` are swapped, with `transb` those of `b`, and read in place. A
    transposed argument is not: XLA passes row-major arrays only, so it copies that first.

    Works under `jit`, `grad`, `jvp`, `vmap` and their combinations, on the CPU and on CUDA GPUs.
    Arguments are never written.

    Args:
        a: float32, float64, float16 or bfloat16, of 1 dimension or more.
        b: of the same type; or such a JAX array as `gemmkit.prepare` makes it, a matrix that stays
            the same, of which a program holds no copy and which gets no gradient.
        transa: whether the last two dimensions of `a` hold its transpose, k x m.
        transb: whether the last two dimensions of `b` hold its transpose, n x k.
        precision: as for `gemmkit.matmul`; gradients are computed in it too. A traced program keeps
            that of its tracing.

    Raises:
        UsageError: an argument that is not an array, shapes or types that cannot be multiplied, a
            transposed vector, an array that has been deleted, or no precision of its type.
    """
    if isinstance(b, PreparedOperand):
        if flag("transa", transa) or flag("transb", transb):
            raise UsageError("transa and transb are for arrays: a prepared operand lies as it lies")
        return prepared_product(_array("a", a), b, precision, matmul)
    a, b = _array("a", a), _array("b", b)
    _check_types(a, b)
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
    return _stacked(a, b, "nt"[transa] + "nt"[transb], chosen).reshape(shape.result)


def _array(name: str, given: Any) -> jax.Array:
    check_present(given, name)
    if not hasattr(given, "__jax_array__"):
        # Whatever JAX would make an array of: lists and numbers as well.
        library_of(given, name)
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise UnsupportedType(
            f"{name}, a {type(given).__name__}, is not an array: {error}"
        ) from None


def _check_types(a: Any, b: Any) -> None:
    for name, array in (("a", a), ("b", b)):
        if known_dtype(array.dtype.name, name) in OPERAND_TYPES:
            raise UnsupportedType(
                f"{name} has type {array.dtype.name}, which programs that JAX traces do not take: "
                "use gemmkit.matmul outside of them"
            )
    if a.dtype != b.dtype:
        raise UnsupportedType(
            f"a has type {a.dtype.name} and b has type {b.dtype.name}: convert one with astype, "
            "gemmkit never "
            "does so on its own"
        )


def _stacked(a: Any, b: Any, layout: str, precision: str) -> jax.Array:
    """The products of two stacks of matrices of any depth, which broadcast."""
    stack = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m = a.shape[-1] if layout[0] == "t" else a.shape[-2]
    n = b.shape[-2] if layout[1] == "t" else b.shape[-1]
    if layout[0] == "n" and prod(b.shape[:-2]) == 1:
        # One B for all: the rows of the stack are those of one tall matrix.
        a = a.reshape(1, -1 if a.size else prod(stack) * m, a.shape[-1])
    a, b = _flat(a, stack), _flat(b, stack)
    found: jax.Array = _product.bind(a, b, layout=layout, precision=precision)
    return found.reshape(*stack, m, n)


def _flat(array: Any, stack: tuple[int, ...]) -> jax.Array:
    """A stack of one dimension: of one matrix that all products share, or of one for each."""
    own, sides = array.shape[:-2], array.shape[-2:]
    if prod(own) == 1:
        return array.reshape(1, *sides)
    if prod(own) != prod(stack):
        array = jnp.broadcast_to(array, (*stack, *sides))
    return array.reshape(-1 if array.size else prod(stack), *sides)


def _abstract(a: Any, b: Any, *, layout: str, precision: str) -> Any:  # noqa: ARG001
    m = a.shape[1 + (layout[0] == "t")]
    n = b.shape[2 - (layout[1] == "t")]
    stack = a.shape[0] if b.shape[0] == 1 else b.shape[0]
    return jax.core.ShapedArray((stack, m, n), a.dtype)


@partial(jax.jit, static_argnames=("layout", "precision"))
def _compiled(a: jax.Array, b: jax.Array, *, layout: str, precision: str) -> jax.Array:
    found: jax.Array = _product.bind(a, b, layout=layout, precision=precision)
    return found


def _compute(a: jax.Array, b: jax.Array, *, layout: str, precision: str) -> jax.Array:
    """The product of arrays that are not traced: by a program of this one operation.

    Where JAX is set to run operations one by one, or does so to find where a NaN came from, that
    program would call this function again; so the settings do not hold inside, and NaNs and
    infinities are looked for here.

    Raises:
        FloatingPointError: JAX is set to look for NaNs or infinities, and the product has some.
    """
    nans, infinities = jax.config.jax_debug_nans, jax.config.jax_debug_infs
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        found: jax.Array = _compiled(a, b, layout=layout, precision=precision)
        if nans and jnp.isnan(found).any():
            raise FloatingPointError("invalid value (nan) encountered in gemmkit_matmul")
        if infinities and jnp.isinf(found).any():
            raise FloatingPointError("invalid value (inf) encountered in gemmkit_matmul")
    return found


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


_lowered = jax.ffi.ffi_lowering(TARGET)


def _lowered_for_cpu(*operands: Any, **options: Any) -> Any:
    finish_at_exit()
    return _lowered(*operands, **options)


def _make_primitive() -> Primitive:
    register_target()
    primitive = Primitive(TARGET)
    primitive.def_impl(_compute)
    primitive.def_abstract_eval(_abstract)
    ad.defbilinear(primitive, _gradient_of_a, _gradient_of_b)
    batching.primitive_batchers[primitive] = _batched
    mlir.register_lowering(primitive, _lowered_for_cpu, platform="cpu")
    mlir.register_lowering(primitive, _lowered, platform="cuda")
    return primitive


_product = _make_primitive()
