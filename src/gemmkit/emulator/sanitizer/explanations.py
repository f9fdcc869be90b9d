"""Adds interleavings to the findings of a launch: records the clusters that have some once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from gemmkit.emulator.clusters import cluster_of
from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.sanitizer.collection import Key, key_of
from gemmkit.emulator.sanitizer.interleavings import interleaving
from gemmkit.emulator.sanitizer.monitor import Sanitizer
from gemmkit.emulator.sanitizer.trace import Trace
from gemmkit.emulator.sanitizer.traits import Traits
from gemmkit.findings import Finding, Interleaving

_KINDS = frozenset(
    [
        *("read before wait", "write before wait", "read after write", "write after read"),
        *("write after write", "missing proxy fence", "phase overrun", "deadlock"),
        *("mbarrier not visible", "early arrival", "ambiguous parity"),
    ]
)
# Findings about a matter of order that no order of steps shows, and why.
_VISIBLE = "no order of the warps shows it: it is a matter of what is visible, not of when"
_WGMMA = "no step delays it: the emulator computes a wgmma when it is issued"
_REASONS = {
    **dict.fromkeys(("tensor map not fenced", "missing wgmma.fence"), _VISIBLE),
    **dict.fromkeys(
        ("accumulator in flight", "operand in flight", "accumulator of another shape"), _WGMMA
    ),
    "copy not waited for": "no step shows it: copies in flight take effect before a block is over",
    "block may not run yet": (
        "no step shows it: the emulator starts the blocks of a cluster together"
    ),
    "block may have exited": (
        "no step shows it: the emulator keeps the shared memory of a block until its cluster has "
        "ended"
    ),
}
_GLOBAL = "no order of steps shows it: only accesses to shared memory are recorded"
_NOT_SEEN = "it was not seen again in the few blocks that were recorded, without the others"
# Clusters of a launch that are recorded: the same bug shows in most of them.
_MOST_CLUSTERS = 3
# A block that waits for others, which do not run then, ends after about a second.
_MOST_STEPS = 100_000_000


def explained(
    execution: Execution,
    run: Callable[..., Execution],
    traits: Traits,
    flow: ControlFlow,
    request: LaunchRequest,
    memory: DeviceMemory,
    before: list[tuple[Bytes, Bytes]],
) -> Execution:
    """An execution whose findings about the order of a block or cluster have an interleaving.

    A finding that does not occur again in its cluster alone, as it depends on others, has a reason
    instead. Nothing is recorded of a launch that did not end.

    Args:
        execution: what the sanitizers found.
        run: runs some clusters of the launch, by their numbers, with a sanitizer; a block alone is
            a cluster.
        traits: what a sanitizer needs to know of the code that `run` runs.
        flow: its instructions.
        request: the launch.
        memory: all memory; it holds the results of the execution again at the end.
        before: what it held before the launch.
    """
    if any(each.kind == "endless" for each in execution.findings):
        return execution
    after = memory.snapshot()
    try:
        found = _interleavings(execution.findings, run, traits, flow, request, memory, before)
    finally:
        memory.restore(after)
    findings = (
        structs.replace(each, interleaving=found.get(key_of(each))) for each in execution.findings
    )
    return replace(execution, findings=tuple(findings))


def _interleavings(
    findings: tuple[Finding, ...],
    run: Callable[..., Execution],
    traits: Traits,
    flow: ControlFlow,
    request: LaunchRequest,
    memory: DeviceMemory,
    before: list[tuple[Bytes, Bytes]],
) -> dict[Key, Interleaving]:
    threads = request.block[0] * request.block[1] * request.block[2]
    found: dict[Key, Interleaving] = {}
    clusters: dict[int, None] = {}
    arrays = memory.names() - set(flow.kernel.shared)
    for each in findings:
        if each.kind in _REASONS:
            found[key_of(each)] = Interleaving(reason=_REASONS[each.kind])
        elif each.kind in _KINDS and each.array and each.array in arrays:
            found[key_of(each)] = Interleaving(reason=_GLOBAL)
        elif each.kind in _KINDS:
            clusters[cluster_of(request.grid, request.cluster_shape, each.block)] = None
    for cluster in list(clusters)[:_MOST_CLUSTERS]:
        trace = Trace(flow.kernel.body, -(-threads // LANES))
        sanitizer = Sanitizer(traits, flow, request, memory, trace=trace)
        memory.restore(before)
        run(sanitizer=sanitizer, only=range(cluster, cluster + 1), max_steps=_MOST_STEPS)
        for key, (finding, pair) in trace.notes.items():
            if finding.kind in _KINDS:
                found.setdefault(key, interleaving(trace, finding, pair))
    for each in findings:
        if each.kind in _KINDS:
            found.setdefault(key_of(each), Interleaving(reason=_NOT_SEEN))
    return found
