"""Facts of some rungs, gathered once for all tests of explanations."""

from __future__ import annotations

import pytest

from gemmkit.analysis.explain import Facts, facts, gather
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")


@pytest.fixture(scope="session")
def gathered() -> dict[str, Facts]:
    """By name: two small problems' worth of rungs, each configured so that it is quick."""
    problem = GemmProblem(256, 256, 128)
    wanted = {
        "naive_uncoalesced": {},
        "naive": {},
        "shared_tiling": {},
        "vectorized": {"BM": 64, "BN": 64},
        "conflict_free": {"BM": 64, "BN": 64},
    }
    found = {}
    for name, changes in wanted.items():
        kernel = find_kernel(name)
        found[name] = gather(kernel, problem, BOARD, config=kernel.configure(changes))
    return found


@pytest.fixture(scope="session")
def strides() -> dict[int, Facts]:
    """`coarsening_1d` at 1024³ with one and with eight results per thread; counted at 256³."""
    kernel = find_kernel("coarsening_1d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "LARGEST_COUNTED", 256)
        return {
            stride: gather(
                kernel,
                GemmProblem(1024, 1024, 1024),
                BOARD,
                config=kernel.configure({"stride": stride}),
            )
            for stride in (1, 8)
        }
