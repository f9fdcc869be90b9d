"""A launch on the emulated GPU: the request and the result of engine and oracle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gemmkit.emulator.clusters import ClusterDirectives, members
from gemmkit.errors import DeviceError
from gemmkit.gpu import MAX_GRID

if TYPE_CHECKING:
    from gemmkit.emulator.counters.tally import Tally
    from gemmkit.emulator.machine.memory import DeviceMemory
    from gemmkit.findings import Finding

Dim3 = tuple[int, int, int]

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Grid and block in CUDA's x, y, z order; `parameters` is the kernel's parameter space.

    `shared_bytes` is dynamic shared memory, in addition to the kernel's static part.
    `parameters_at` is the address of a copy of the parameters in device memory, if there is one.
    `cluster` is the shape of a cluster in blocks, if the launch gives one or the kernel has one.
    `registers` are those that the compiler allots to each thread, if they are known, and
    `setmaxnreg_ignored` is why it leaves out what moves them; empty if it does not. At least
    `at_once` blocks are on the board at a time, and may wait for each other. `not_written_before`
    are the names of allocations and variables that no earlier launch writes, which a dependent
    launch may read before it has waited; upper and lower case are one.
    """

    grid: Dim3
    block: Dim3
    parameters: bytes
    shared_bytes: int = 0
    parameters_at: int = 0
    cluster: Dim3 | None = None
    registers: int | None = None
    setmaxnreg_ignored: str = ""
    at_once: int = 1
    not_written_before: frozenset[str] = frozenset()

    @property
    def cluster_shape(self) -> Dim3:
        """The cluster's shape; without one, a block is a cluster."""
        return self.cluster or (1, 1, 1)

    @property
    def cluster_blocks(self) -> int:
        """How many blocks a cluster has."""
        return math.prod(self.cluster_shape)

    def cluster_members(self, number: int) -> list[int]:
        """The numbers in the grid (x fastest) of the blocks of a cluster, in the order of their
        ranks."""
        return members(self.grid, self.cluster_shape, number)

    def checked(self, kernel: str, parameter_bytes: int) -> LaunchRequest:
        """The request, if a kernel that takes so many bytes of parameters can be launched so.

        Raises:
            DeviceError: it cannot.
        """
        if min(self.block) < 1 or math.prod(self.block) > MAX_THREADS:
            raise DeviceError(f"a block of {self.block} threads: it must have 1 to {MAX_THREADS}")
        limits = zip(self.grid, MAX_GRID, strict=True)
        if any(not 0 <= blocks <= limit for blocks, limit in limits):
            raise DeviceError(f"a grid of {self.grid} blocks: at most {MAX_GRID} are possible")
        if len(self.parameters) < parameter_bytes:
            raise DeviceError(
                f"kernel '{kernel}' takes {parameter_bytes} bytes of parameters, "
                f"not {len(self.parameters)}"
            )
        return self

    def in_clusters(self, directives: ClusterDirectives, kernel: str) -> LaunchRequest:
        """The request with the cluster that the kernel asks for.

        Raises:
            DeviceError: the grid does not consist of such clusters, or the launch and the kernel
                disagree.
        """
        cluster = directives.shape(self.grid, self.cluster, kernel)
        return self if cluster == self.cluster else replace(self, cluster=cluster)

    @contextmanager
    def resident(self, memory: DeviceMemory, *, addressed: bool) -> Iterator[LaunchRequest]:
        """The request as it runs: where the kernel takes the address of a parameter (`addressed`),
        with a copy of the parameters in device memory, which is freed at the end."""
        if not addressed:
            yield self
            return
        copy = memory.allocate(len(self.parameters), "kernel parameters")
        try:
            view = memory.view(copy.address, copy.nbytes)
            view[:] = np.frombuffer(self.parameters, np.uint8)
            yield replace(self, parameters_at=copy.address)
        finally:
            memory.free(copy)


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a launch: raw counts, wall time in seconds, and printed lines.

    `findings` are the sanitizers', if these were enabled. `regions` holds, by the number of a
    memory instruction, the address of the allocation in global memory that it accessed last.
    """

    tally: Tally
    seconds: float
    printed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    regions: Mapping[int, int] = field(default_factory=dict)
