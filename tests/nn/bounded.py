"""References with their own tolerance, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.running import Bounded


def check(expected: Bounded, computed: Any) -> None:
    """See that a result lies within the bound, in every element.

    Raises:
        AssertionError: it does not.
    """
    verdict = expected.check(computed)
    assert verdict.correct, verdict.detail


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Random numbers; others for each shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
