"""Operands of products in JAX programs: read, and laid out as stacks."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemmkit.errors import UnsupportedType
from gemmkit.ops.arrays import library_of
from gemmkit.ops.libraries.jax import check_present


def array_of(name: str, given: Any) -> jax.Array:
    """What a user gives, as an array of JAX's.

    Raises:
        UsageError: it has been deleted.
        UnsupportedType: it is not an array.
    """
    check_present(given, name)
    if not hasattr(given, "__jax_array__"):
        # Whatever JAX would make an array of: lists and numbers as well.
        library_of(given, name)
    if isinstance(given, np.ndarray) and not given.dtype.isnative:
        # JAX takes none of another byte order, as a file may have it.
        given = given.astype(given.dtype.newbyteorder("="))
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise UnsupportedType(
            f"{name}, a {type(given).__name__}, is not an array: {error}"
        ) from None


def flat(array: Any, stack: tuple[int, ...]) -> jax.Array:
    """A stack of one dimension: of one matrix that all products share, or of one for each."""
    own, sides = array.shape[:-2], array.shape[-2:]
    if prod(own) == 1:
        return array.reshape(1, *sides)
    if prod(own) != prod(stack):
        array = jnp.broadcast_to(array, (*stack, *sides))
    return array.reshape(-1 if array.size else prod(stack), *sides)
