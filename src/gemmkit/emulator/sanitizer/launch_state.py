"""`LaunchState`: what the sanitizers of all workers of a launch share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Variable
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.global_order import LaunchOrder
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.left_flags import held_before
from gemmkit.emulator.sanitizer.recording import (
    RecordedOrder,
    RecordedWarpgroupFindings,
)
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.tensor_maps import LaunchMaps
from gemmkit.emulator.sanitizer.trace import NotingCollection, Trace
from gemmkit.emulator.sanitizer.traits import Traits
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings
from gemmkit.findings import Finding


@dataclass
class LaunchState:
    """What the sanitizers of one launch know; `readers` are regions of memory whose loads are
    recorded from the start.

    `readers_wanted` grows if a launch must be run again with more of those: a region that is both
    loaded and stored to may have cross-block races. `tracking_wanted` is set if it must be run
    again with code that tracks undefined bits. `before` is what memory held before the launch,
    and `variables` are those of module scope, by name, of which the host sets some before each
    launch. `stalled`: its blocks poll for what nothing can change. `stop` ends the launch. With
    a `trace` it records the block that runs, and what its findings are about.
    """

    traits: Traits
    flow: ControlFlow
    request: LaunchRequest
    memory: DeviceMemory
    readers: frozenset[int] = frozenset()
    trace: Trace | None = None
    before: Sequence[tuple[Bytes, Bytes]] = ()
    variables: Mapping[str, Variable] = field(default_factory=dict)
    host_sets: frozenset[str] = frozenset()
    readers_wanted: set[int] = field(default_factory=set)
    tracking_wanted: bool = False
    stalled: bool = False
    stop: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        traits = self.traits
        self.kernel = kernel = traits.kernel
        # Computed once per kernel, outside of the time of a launch.
        self.areas = kernel.areas
        self.names = Names(self.flow, kernel.actions, self.request, self.memory, traits.arrays)
        self.collection = Collection() if self.trace is None else NotingCollection(self.trace)
        self.tracks = kernel.compiled.tracks
        self.known = GlobalShadow(
            self.memory,
            self.memory.regions(),
            traits.global_granule,
            ordered=kernel.follows_blocks,
            strong=kernel.strong_in_global,
            readers=self.readers,
            read_only=traits.read_only,
        )
        self.maps = LaunchMaps(self.memory, self.kernel.actions)
        # The workers' orders, if they are recorded.
        self.recorders: list[RecordedOrder] = []
        self.order = LaunchOrder(
            self.names,
            self.known,
            self.collection,
            self._want_loads,
            held_before=lambda address, nbytes: held_before(self.before, address, nbytes),
        )
        self.warpgroups = WarpgroupFindings(self.names, self.collection)
        if self.trace is not None:
            self.warpgroups = RecordedWarpgroupFindings(self.names, self.collection, self.trace)

    def add(self, worker: Worker, finding: Finding) -> None:
        """Add a finding in the block that a worker runs."""
        self.collection.add(finding, worker.number)

    @property
    def runs_again(self) -> bool:
        """Whether the launch was stopped, and must be run again with other code."""
        return bool(self.readers_wanted) or self.tracking_wanted

    def _want_loads(self, region: int) -> None:
        """The launch must be run again with the loads of a region recorded."""
        self.readers_wanted.add(region)
        self.stop()
