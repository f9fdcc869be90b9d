"""What gemmkit's JAX primitives have in common: each is one call of a function that XLA knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gemmkit.jax.registry import finish_at_exit

Lowering = Callable[..., Any]


def make_primitive(
    name: str,
    abstract: Callable[..., Any],
    parameters: tuple[str, ...],
    lowered: Lowering | None = None,
) -> Primitive:
    """A primitive without derivatives and without a rule for `vmap`.

    Args:
        name: its own, and that of the function which XLA calls.
        abstract: the shape and type of the result, from those of the operands.
        parameters: the names of what is no array.
        lowered: how it becomes XLA's operation, by default a call with the parameters as
            attributes.
    """
    primitive = Primitive(name)

    def bind(*operands: jax.Array, **given: Any) -> jax.Array:
        found: jax.Array = primitive.bind(*operands, **given)
        return found

    compiled = jax.jit(bind, static_argnames=parameters)

    def compute(*operands: jax.Array, **given: Any) -> jax.Array:
        """The product of arrays that are not traced: by a program of this one operation.

        Where JAX is set to run operations one by one, or does so to find where a NaN came from,
        that program would call this function again; so the settings do not hold inside, and NaNs
        and infinities are looked for here.

        Raises:
            FloatingPointError: JAX is set to look for NaNs or infinities, and the product has some.
        """
        nans, infinities = jax.config.jax_debug_nans, jax.config.jax_debug_infs
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            found: jax.Array = compiled(*operands, **given)
            if nans and jnp.isnan(found).any():
                raise FloatingPointError(f"invalid value (nan) encountered in {name}")
            if infinities and jnp.isinf(found).any():
                raise FloatingPointError(f"invalid value (inf) encountered in {name}")
        return found

    by_call = lowered or jax.ffi.ffi_lowering(name)

    def lowered_for_cpu(*operands: Any, **given: Any) -> Any:
        finish_at_exit()
        return by_call(*operands, **given)

    primitive.def_impl(compute)
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, lowered_for_cpu, platform="cpu")
    mlir.register_lowering(primitive, by_call, platform="cuda")
    return primitive
