"""What the latency of bulk copies adds to the time of a block that fills a circular buffer."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.copy_pipeline import CopyCosts, CopyPipeline, CopyTime
from gemmkit.analysis.demand import multiplies
from gemmkit.analysis.machine import Machine, pipe_cycles
from gemmkit.analysis.occupancy import launch_resources
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.gpu import FP32, GpuSpec
from gemmkit.problem import GemmProblem

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Loads:
    """The stages that a block goes through in a launch, and what one of them takes.

    `latency` is cycles from the release of a stage until its operands are there, `room` the bytes
    of shared memory that a block could have besides its own.
    """

    buffer: CopyPipeline
    time: CopyTime
    stages: float
    stages_per_tile: float
    latency: float
    room: float

    @property
    def cycles(self) -> float:
        """What all stages take if nothing but the latency of their loads holds them up."""
        return self.stages * self.time.alone

    @property
    def awaited(self) -> float:
        """The share of a tile's stages that are not loaded while the block does something else:
        while it writes back a tile, or starts, all of the buffer is filled for the next one."""
        return max(1 - self.buffer.stages / self.stages_per_tile, 0.0)

    def meaning(self, clock_mhz: float) -> str:
        """What is in flight at a time, and what would help."""
        buffer = self.buffer
        advice = "more stages, or larger ones, would hide more of it"
        if self.room < buffer.stage_bytes:
            advice = "shared memory has no room for one more"
        return (
            f"{buffer.in_flight:.3g} of {buffer.stages} stages of {buffer.stage_bytes / _KIB:.3g} "
            f"KiB in flight, each for {self.latency / clock_mhz:.2f} µs; {advice}"
        )


def loads_of(
    profile: BlockProfile,
    problem: GemmProblem,
    spec: GpuSpec,
    machine: Machine,
    memory_latency: float,
) -> Loads | None:
    """The stages of the busiest block; None if no bulk copies fill a circular buffer.

    The blocks of a wave walk along k in step, so that the last of a stage's lines come from as far
    as `memory_latency` says. To these come the transfer at what the TMA gets from the L2 for one
    SM, and two handshakes by mbarriers.
    """
    buffer = profile.buffer
    if buffer is None:
        return None
    products, asynchronous = {}, set()
    for number, action in enumerate(profile.actions):
        pipe, amount = multiplies(action.form)
        if pipe is None:
            continue
        by_wgmma = action.form.operation == OPERATION
        products[number] = pipe_cycles(spec, amount, pipe, by_wgmma=by_wgmma)
        if pipe == FP32:
            products[number] = machine.ffma_issue
        if by_wgmma:
            asynchronous.add(number)
    rate = machine.delivered(spec.pipes.tma_bytes, spec, profile.plan.blocks)
    costs = CopyCosts(
        latency=machine.tile_spread * memory_latency + machine.tma_latency,
        bytes_per_cycle=rate,
        handshake=machine.barrier_latency,
        products=products,
        asynchronous=asynchronous,
        schedulers=spec.pipes.issue,
    )
    time = buffer.time(costs)
    if time is None:
        return None
    visits = max(profile.visits, 1.0)
    of_stages = profile.copied_bytes_per_k * buffer.share
    per_tile = of_stages * problem.mean_k / buffer.issued_bytes
    stages = per_tile * profile.visits
    own = launch_resources(profile.plan, profile.binary)["shared_bytes"]
    return Loads(
        buffer=buffer,
        time=time,
        stages=stages,
        stages_per_tile=stages / visits,
        latency=costs.latency + 2 * costs.handshake + buffer.issued_bytes / rate,
        room=spec.capability.max_shared_per_block - own,
    )
