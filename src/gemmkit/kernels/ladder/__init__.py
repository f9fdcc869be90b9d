"""`LADDER`: the rungs in their order, each a `.cu` file and a module beside it."""

from __future__ import annotations

from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import (
    async_copy,
    cluster_multicast,
    coarsening_1d,
    coarsening_2d,
    conflict_free,
    double_buffered,
    mma_pipelined,
    mma_sync,
    naive,
    naive_uncoalesced,
    persistent,
    shared_tiling,
    split_k,
    stream_k,
    tma,
    vectorized,
    warp_reduce,
    warp_specialized,
    warp_tiled,
    wgmma,
    wmma,
)

LADDER: tuple[Kernel, ...] = (
    naive_uncoalesced.KERNEL,
    naive.KERNEL,
    shared_tiling.KERNEL,
    coarsening_1d.KERNEL,
    coarsening_2d.KERNEL,
    vectorized.KERNEL,
    conflict_free.KERNEL,
    double_buffered.KERNEL,
    warp_tiled.KERNEL,
    async_copy.KERNEL,
    split_k.KERNEL,
    warp_reduce.KERNEL,
    stream_k.KERNEL,
    wmma.KERNEL,
    mma_sync.KERNEL,
    mma_pipelined.KERNEL,
    wgmma.KERNEL,
    tma.KERNEL,
    warp_specialized.KERNEL,
    cluster_multicast.KERNEL,
    persistent.KERNEL,
)
"""The rungs, from `naive_uncoalesced` to `persistent`: those for fp32, then those for
tensor cores, the last of them on Hopper."""
