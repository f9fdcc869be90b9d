"""The clusters of a grid: what a kernel says of their size, and which blocks each has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmkit.errors import DeviceError

Dim3 = tuple[int, int, int]

# More than 8 blocks are not portable (CUDA C++ programming guide, "Thread Block Clusters").
MOST_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class ClusterDirectives:
    """What a kernel's PTX says of its clusters.

    `size` is that of `.reqnctapercluster`; `explicit` says whether `.explicitcluster` asks for a
    size, and `most` is the number of blocks in `.maxclusterrank`, or 0.
    """

    size: Dim3 | None = None
    explicit: bool = False
    most: int = 0

    def shape(self, grid: Dim3, given: Dim3 | None, kernel: str) -> Dim3 | None:
        """The shape of a cluster in blocks, if the launch gives one or the kernel has one.

        Raises:
            DeviceError: the grid does not consist of such clusters, or the two disagree.
        """
        given = given if given != (1, 1, 1) else None
        if given is not None and self.size not in (None, given):
            raise DeviceError(
                f"kernel '{kernel}' is compiled for clusters of {self.size} blocks and launched "
                f"with clusters of {given}"
            )
        cluster = given or self.size
        if cluster is None:
            if self.explicit:
                raise DeviceError(
                    f"kernel '{kernel}' needs a cluster size at its launch (.explicitcluster)"
                )
            return None
        most = min(self.most or MOST_BLOCKS, MOST_BLOCKS)
        if min(cluster) < 1 or math.prod(cluster) > most:
            raise DeviceError(
                f"a cluster of {cluster} blocks: kernel '{kernel}' may have 1 to {most} in a "
                "cluster"
            )
        if any(extent % size for extent, size in zip(grid, cluster, strict=True)):
            raise DeviceError(
                f"a grid of {grid} blocks does not consist of whole clusters of {cluster}"
            )
        return cluster


NO_CLUSTERS = ClusterDirectives()


def members(grid: Dim3, cluster: Dim3, number: int) -> list[int]:
    """The numbers in the grid (x fastest) of the blocks of a cluster, in the order of their
    ranks."""
    (gx, gy, _), (cx, cy, cz) = grid, cluster
    nx, ny = gx // cx, gy // cy
    x, y, z = number % nx * cx, number // nx % ny * cy, number // (nx * ny) * cz
    return [
        x + i + gx * (y + j + gy * (z + k)) for k in range(cz) for j in range(cy) for i in range(cx)
    ]


def cluster_of(grid: Dim3, cluster: Dim3, block: Dim3) -> int:
    """The number of the cluster that has a block, by the block's coordinates."""
    (gx, gy, _), (cx, cy, cz), (x, y, z) = grid, cluster, block
    return x // cx + gx // cx * (y // cy + gy // cy * (z // cz))
