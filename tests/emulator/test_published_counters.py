"""Published counters of a 1024³ product with 32×32 blocks on GPUs, in full emulated runs."""

from __future__ import annotations

import pytest
from gemm_launches import Operands, run_rung
from launching import ENGINE

from gemmkit.problem import GemmProblem

PROBLEM = GemmProblem(m=1024, n=1024, k=1024)
LOADS = "pipe_lsu_mem_global_op_ld"
STORES = "pipe_lsu_mem_global_op_st"
# What the hardware adds to the wavefronts that addresses need: it varies from run to run.
WAITS = 0.001


@pytest.mark.parametrize(
    ("kernel", "requests", "sectors", "per_request"),
    [
        ("naive_uncoalesced", 67_108_864, 1_107_296_256, 16.5),
        ("naive", 67_108_864, 167_772_160, 2.5),
        ("shared_tiling", 2_097_152, 8_388_608, 4.0),
    ],
)
def test_global_memory(kernel: str, requests: int, sectors: int, per_request: float) -> None:
    config = {"BM": 32, "BN": 32} | ({"BK": 32} if kernel == "shared_tiling" else {})
    operands = Operands.random(PROBLEM)
    C, outcome = run_rung(ENGINE, kernel, PROBLEM, operands, **config)
    metrics = outcome.metrics
    assert metrics[f"l1tex__t_requests_{LOADS}.sum"] == requests
    assert metrics[f"l1tex__t_sectors_{LOADS}.sum"] == sectors
    assert metrics[f"l1tex__average_t_sectors_per_request_{LOADS}.ratio"] == per_request
    assert metrics[f"l1tex__t_bytes_{LOADS}.sum"] == 32 * sectors
    assert metrics[f"l1tex__t_requests_{STORES}.sum"] == 32_768
    assert metrics["ptx__inst_executed_op_fma.sum"] >= 1024**3 // 32
    if kernel == "naive_uncoalesced":
        loads, stores = (f"l1tex__t_output_wavefronts_{each}.sum" for each in (LOADS, STORES))
        assert metrics[loads] == pytest.approx(301_990_397, rel=WAITS)
        assert metrics[stores] == pytest.approx(262_156, rel=WAITS)
    if kernel == "shared_tiling":
        assert metrics["smsp__sass_inst_executed_op_shared_ld.sum"] == 41_943_040
        wavefronts = metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"]
        assert wavefronts == pytest.approx(50_370_530, rel=WAITS)
    row = operands.A[7].astype("f8") @ operands.B
    assert abs(C[7] - row).max() < 1e-3
