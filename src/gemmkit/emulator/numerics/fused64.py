"""Chains of fp64 fused multiply-adds with the NaN that tensor cores return."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.isa.semantics.rounding import BINARY64, rounded_product_sum
from gemmkit.emulator.numerics.formats import Bits

_QUIET = np.uint64(1 << 51)
# What an operation without a NaN operand returns, as on x86.
_INDEFINITE = np.uint64(0xFFF8_0000_0000_0000)


def multiply_chain(a: Bits, b: Bits, c: Bits) -> Bits:
    """d = fma(a[k], b[k], d) for ascending k, from d = C on.

    A NaN result is the first of b, d and a that is one, made quiet.
    """
    total = c
    for step in range(a.shape[-1]):
        factors = a[..., :, step, None], b[..., None, step, :]
        left, right, addend = np.broadcast_arrays(*factors, total)
        x, y, z = (np.ascontiguousarray(each).view(np.float64) for each in (left, right, addend))
        with np.errstate(all="ignore"):
            found = rounded_product_sum(x, y, z, BINARY64, "n")
        total = np.where(np.isnan(found), _INDEFINITE, found.view(np.uint64))
        for operand, number in ((left, x), (addend, z), (right, y)):
            total = np.where(np.isnan(number), operand | _QUIET, total)
    return total
