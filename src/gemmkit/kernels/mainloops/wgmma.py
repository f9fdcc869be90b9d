"""Products by wgmma: tiles come by TMA, and no warp but the producer's spends instructions on them."""

from __future__ import annotations

from functools import lru_cache

from gemmkit.gpu import WARP_SIZE, MathPipe
from gemmkit.kernels import cut
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.work import MOST_REGISTERS, OTHER_REGISTERS, Copies, Demands, Work
from gemmkit.problem import GemmProblem

# Bytes of shared memory in a wavefront.
LINE_BYTES = 128
# Rows of a wgmma, and elements of its k that 32 bytes hold.
ROWS, K_BYTES = 64, 32
# Latencies of L2 that a step lasts at least: none, since loads are several steps ahead.
COVERS = 0.0


def warpgroups(threads: int, shared_bytes: int, problem: GemmProblem, config: TileConfig) -> Work:
    """A tile of C at a time per block."""
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
    return Work.of(found, threads, shared_bytes, _demands(config, problem.dtype, problem.item_bytes))


@lru_cache(maxsize=4096)
def _demands(config: TileConfig, dtype: str, item_bytes: int) -> Demands:
    BM, BN, BK, consumers = (config[key] for key in ("BM", "BN", "BK", "consumers"))
    # Of all threads, though those of the producer multiply nothing.
    threads, results = 4 * WARP_SIZE * (consumers + 1), BM * BN // (4 * WARP_SIZE * consumers)
    products = BM // ROWS * (BK * item_bytes // K_BYTES)
    # A block of a cluster reads its share of what it has in common with the others.
    l2_bytes = item_bytes * BK * (BM / config["cluster_n"] + BN / config["cluster_m"])
    return Demands(
        math=MathPipe(dtype, tensor=True),  # type: ignore[arg-type]
        multiply_adds=BM * BN * BK / threads,
        per_instruction=BN * K_BYTES // item_bytes * ROWS / (4 * WARP_SIZE),
        issue=0.0,
        # Each product reads its rows of A and all columns of B.
        wavefronts=products * (ROWS + BN) * K_BYTES / LINE_BYTES,
        l2_bytes=l2_bytes,
        copies=Copies(),
        waits=0.0,
        covers=COVERS,
        streams=0.0,
        barriers=0,
        results=results,
        registers=results,
        other_registers=OTHER_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
        coalesced_stores=True,
    )
