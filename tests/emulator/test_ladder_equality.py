"""Engine and oracle run the ladder to the same bits and the same counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemm_launches import Operands, run_rung
from launching import ENGINE, ORACLE

from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import HOPPER, SMALL_HOPPER, board_for

# Ragged, tiny and aligned shapes; an architecture of each PTX dialect. The tiny one runs the code
# of the first.
CASES = {
    "33x65x17": ("sm_86", GemmProblem(m=33, n=65, k=17, alpha=1.5, beta=-0.5)),
    "66x67x40": ("sm_90a", GemmProblem(m=66, n=67, k=40, lda=43, ldb=70, ldc=81)),
    "1x1x1": ("sm_86", GemmProblem(m=1, n=1, k=1, beta=2.0)),
    "64x128x32": ("sm_100a", GemmProblem(m=64, n=128, k=32)),
}


# What counts the multiply-adds of each type.
MULTIPLIED = {
    "float32": "ptx__inst_executed_op_fma.sum",
    "bfloat16": "ptx__inst_executed_op_tensor.sum",
}

# Tiles smaller than the defaults: less code to compile, more blocks and edges.
TILES = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}
WARP_TILES = {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4}
# One warp per tile; there are already many blocks that share tiles.
WARP_TILE = {**WARP_TILES, "BM": 32, "BN": 32}
TENSOR_TILES = {"BM": 32, "BN": 32, "BK": 16, "WM": 32, "WN": 16}
CONFIGS = {
    **dict.fromkeys(("coarsening_2d", "vectorized", "conflict_free", "double_buffered"), TILES),
    "warp_tiled": WARP_TILES,
    "async_copy": {**WARP_TILES, "stages": 3},
    "split_k": {**WARP_TILE, "BK": 16, "stages": 2, "split_k": 3},
    "warp_reduce": {"BN": 32, "BK": 64},
    "stream_k": {**WARP_TILE, "stages": 2},
    **dict.fromkeys(("wmma", "mma_sync", "mma_pipelined"), TENSOR_TILES),
    **SMALL_HOPPER,
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("kernel", [kernel.name for kernel in LADDER])
@pytest.mark.sample(17)
def test_every_rung(kernel: str, case: str) -> None:
    arch, problem = CASES[case]
    if kernel != "naive_uncoalesced" and arch == "sm_86":
        problem = replace(problem, epilogue=Epilogue(bias=True, activation="relu"))
    if kernel in HOPPER:
        arch = "sm_90a"
    problem = in_types_of(find_kernel(kernel), problem)
    board = board_for(find_kernel(kernel), find_board("rtx3090"))
    problem = fitting(find_kernel(kernel), problem, board)
    operands = Operands.random(problem)
    engine, oracle = (
        run_rung(executor, kernel, problem, operands, arch, **CONFIGS.get(kernel, {}))
        for executor in (ENGINE, ORACLE)
    )
    assert engine[0].tobytes() == oracle[0].tobytes()
    assert engine[1].tally.differences(oracle[1].tally) == {}
    assert engine[1].metrics[MULTIPLIED[problem.dtype]] > 0


def test_the_result_is_the_product() -> None:
    """The result that both agree on is correct."""
    problem = GemmProblem(m=33, n=65, k=17, alpha=1.5, beta=-0.5)
    operands = Operands.random(problem)
    C, _ = run_rung(ORACLE, "naive", problem, operands)
    wanted = 1.5 * (operands.A.astype(np.float64) @ operands.B) - 0.5 * operands.C
    assert np.allclose(C, wanted, rtol=1e-5, atol=1e-5)
