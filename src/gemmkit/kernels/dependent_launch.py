"""Programmatic dependent launches: kernels whose blocks start while the kernel before them ends."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import LaunchShape

# The first compute capability, its major number, that has them.
DEPENDENT_SINCE = 9


def dependent(shape: LaunchShape, gpu: GpuSpec) -> LaunchShape:
    """The launch of a kernel that calls `wait_for_previous_kernel`, as a dependent one.

    No two of its blocks may share an SM, so each reserves more than half of the shared memory. The
    GPU places blocks where there is room when the kernel before them has not ended yet: two on an
    SM that it leaves idle, and none on another. Products of 512³ whose blocks fit beside each other
    took 3.8 times as long that way (`gemm_split_k`, fp32, H100).
    """
    return replace(shape, dependent=True, reserved_bytes=gpu.capability.shared_per_sm // 2)
