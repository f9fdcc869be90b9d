"""What the timer needs of a device, by PyTorch's streams, graphs, events and profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gemmkit.bench.torch_peer import without_advice
from gemmkit.devices.device import Work
from gemmkit.record import Part

# A graph is what the GPU needs; calls one after the other show where the host takes longer.
Manner = Literal["graph", "calls"]

PROFILED_CALLS = 5


class TorchTimer:
    """Records works for arrays that PyTorch allocates, on its current stream.

    A graph of its own keeps the memory that works allocate apart from all other.
    """

    stream = None

    def __init__(self, torch: Any, manner: Manner) -> None:
        self._torch, self._manner = torch, manner

    def record(self, works: Sequence[Work], kept: Sequence[object] = ()) -> Replayed:
        """The works as one graph, or as they are."""
        torch = self._torch
        if self._manner == "calls":
            return Replayed(torch, lambda: [work(None) for work in works], kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work(None)
        return Replayed(torch, graph.replay, [graph, kept])


class Replayed:
    """Work that is run again and again on the current stream."""

    def __init__(self, torch: Any, run: Callable[[], object], kept: object) -> None:
        self._run, self._kept = run, kept
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds(self) -> float:
        """Run it once more and wait: the time from its first launch to the end of its last."""
        self._start.record()
        self._run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3


def kernels_of(torch: Any, call: Callable[[], object]) -> dict[str, Part]:
    """The kernels of a call by name, copies among them, the longest first."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with without_advice(), torch.profiler.profile(activities=activities) as profiler:
        for _ in range(PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[_plain(event.name)].append(event.time_range.elapsed_us())
    parts = {
        name: Part(len(times) / PROFILED_CALLS, sum(times) / PROFILED_CALLS)
        for name, times in found.items()
    }
    return dict(sorted(parts.items(), key=lambda each: -each[1].us))


def _plain(name: str) -> str:
    """`void a::(anonymous namespace)::f<4>(float*)` as `f`."""
    bare = name.replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return bare.removeprefix("void ").rpartition("::")[2].strip()
