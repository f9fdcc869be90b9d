"""Block profiles of rungs, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem


@pytest.fixture(scope="session")
def profile_of() -> Callable[[str], BlockProfile]:
    """The profile of a rung in its default configuration, at 512³ on an H100."""
    problem, gpu = GemmProblem(512, 512, 512), find_board("H100")
    return cache(lambda name: profile_block(find_kernel(name), problem, gpu))
