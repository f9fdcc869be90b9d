"""A process of benchmarks/distributed.py: its place among the ranks, its GPU, and its groups."""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from typing import Any

# A millisecond at the highest clocks of today.
CYCLES_AHEAD = 2_000_000


class Rank:
    """One rank: its group, its GPU, and the file of results, which rank 0 writes."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        self.options, self.torch, self.dist = options, torch, dist
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = options.backend == "nccl"
        if self.on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        else:
            self.device = torch.device("cpu")
        dist.init_process_group(
            options.backend,
            timeout=timedelta(seconds=options.step_timeout),
            **({"device_id": self.device} if self.on_gpu else {}),
        )
        # For what ranks tell each other beside the measurements.
        self.quiet = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        self.group = dist.group.WORLD
        sizes = options.mesh.lower().split("x") if options.mesh else (1, self.size)
        self.mesh_sizes = tuple(map(int, sizes))
        self._mesh: Any = None
        self._end = time.monotonic() + float(os.environ["DISTRIBUTED_SECONDS"]) - 12

    @property
    def mesh(self) -> Any:
        """The mesh of SUMMA; all ranks ask for it together the first time."""
        if self._mesh is None:
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh(self.device.type, self.mesh_sizes)
        return self._mesh

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def start_together(self) -> None:
        """Have the streams of all ranks go on at the same time.

        Processes leave a barrier up to a millisecond apart, which would be a tenth of a measurement
        after a rest; there, the GPU also waits until the host is some calls ahead.
        """
        if self.options.rest:
            self.torch.cuda._sleep(CYCLES_AHEAD)
        self.dist.all_reduce(self.torch.zeros(1, device=self.device), group=self.group)

    def all_of(self, value: Any) -> list[Any]:
        found = [None] * self.size
        self.dist.all_gather_object(found, value, group=self.quiet)
        return found

    def time_left(self) -> bool:
        """Whether all ranks may begin another problem."""
        return all(self.all_of(time.monotonic() < self._end))
