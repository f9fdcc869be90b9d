"""Loads, requests and sectors per result, from counters.

Asynchronous copies (cp.async, TMA) count as loads, and so do the operands that wgmma reads from
shared memory, so that kernels with and without them can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WORD_BYTES = 4

# The first two include cp.async, and none includes TMA; bytes are counted separately.
GLOBAL_REQUESTS = ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",)
GLOBAL_SECTORS = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",)
TMA_BYTES = "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"
GLOBAL_BYTES = (
    "ptx__data_bytes_mem_global_op_ld.sum",
    "ptx__data_bytes_mem_global_op_ldgsts.sum",
    TMA_BYTES,
)
SHARED_BYTES = (
    "ptx__data_bytes_mem_shared_op_ld.sum",
    "ptx__data_bytes_mem_shared_op_gmma.sum",
)
SHARED_WAVEFRONTS = ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",)


@dataclass(frozen=True, slots=True)
class Loads:
    """Sums over a launch.

    `global_per_result` and `shared_per_result` are 32-bit words that were loaded per element of C,
    by threads, by TMA and by wgmma: 2K for a naive kernel, 2K/T with tiles of T×T. None if there is
    no result.
    """

    global_requests: int
    global_sectors: int
    shared_wavefronts: int
    global_per_result: float | None
    shared_per_result: float | None

    @property
    def sectors_per_request(self) -> float | None:
        """32-byte sectors per global-load request of a warp; None without requests."""
        return self.global_sectors / self.global_requests if self.global_requests else None


def count_loads(counters: Mapping[str, float], results: int) -> Loads | None:
    """Compute the loads from counters with Nsight Compute's names; None if nothing was counted.

    Args:
        counters: metric name to value.
        results: elements of C.
    """
    if not counters:
        return None

    def total(metrics: tuple[str, ...]) -> int:
        return round(sum(counters.get(metric, 0) for metric in metrics))

    def per_result(metrics: tuple[str, ...]) -> float | None:
        return total(metrics) / WORD_BYTES / results if results else None

    return Loads(
        global_requests=total(GLOBAL_REQUESTS),
        global_sectors=total(GLOBAL_SECTORS),
        shared_wavefronts=total(SHARED_WAVEFRONTS),
        global_per_result=per_result(GLOBAL_BYTES),
        shared_per_result=per_result(SHARED_BYTES),
    )
