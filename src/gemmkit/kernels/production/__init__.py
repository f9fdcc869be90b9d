"""`PRODUCTION`: kernels that dispatch launches and that are no rungs."""

from __future__ import annotations

from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.production import typed, typed_mma

PRODUCTION: tuple[Kernel, ...] = (typed.KERNEL, typed_mma.KERNEL)
