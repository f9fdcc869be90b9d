"""`gemmkit.jax.matmul`: gemmkit's products in JAX programs, under `jit`, `grad` and `vmap`."""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("gemmkit.jax needs JAX: pip install 'gemmkit[jax]'") from error

from gemmkit.jax.product import matmul
from gemmkit.jax.ragged import ragged_matmul

__all__ = ["matmul", "ragged_matmul"]
