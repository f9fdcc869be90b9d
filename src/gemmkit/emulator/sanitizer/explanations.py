"""Adds interleavings to the findings of a launch: records the clusters that have some once more."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gemmkit.emulator.clusters import cluster_of
from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.sanitizer.collection import key_of
from gemmkit.emulator.sanitizer.interleavings import interleaving
from gemmkit.emulator.sanitizer.monitor import Sanitizer
from gemmkit.emulator.sanitizer.trace import Trace
from gemmkit.emulator.sanitizer.traits import Traits
from gemmkit.findings import Finding, Interleaving

# Runs one cluster, by its number, with a sanitizer that is made for the kernel's traits; a block
# alone is a cluster.
Record = Callable[[Callable[[Traits], Sanitizer], int], None]

_KINDS = frozenset(
    [
        *("read before wait", "write before wait", "read after write", "write after read"),
        *("write after write", "missing proxy fence", "phase overrun", "deadlock"),
        "mbarrier not visible",
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
# Clusters of a launch that are recorded: the same bug shows in most of them.
_MOST_CLUSTERS = 3


def with_interleavings(
    findings: tuple[Finding, ...],
    flow: ControlFlow,
    request: LaunchRequest,
    memory: DeviceMemory,
    record: Record,
) -> tuple[Finding, ...]:
    """The findings, those about the order of a block or cluster with an interleaving.

    A finding that does not occur in the recorded cluster again, as it depends on other blocks, has
    none. Nothing is recorded of a launch that did not end.
    """
    if any(each.kind == "endless" for each in findings):
        return findings
    threads = request.block[0] * request.block[1] * request.block[2]
    asked = dict.fromkeys(
        cluster_of(request.grid, request.cluster_shape, each.block)
        for each in findings
        if each.kind in _KINDS
    )
    found = {
        key_of(each): Interleaving(reason=_REASONS[each.kind])
        for each in findings
        if each.kind in _REASONS
    }
    for cluster in list(asked)[:_MOST_CLUSTERS]:
        trace = Trace(flow.kernel.body, -(-threads // LANES))

        def sanitizer(traits: Traits, trace: Trace = trace) -> Sanitizer:
            return Sanitizer(traits, flow, request, memory, trace=trace)

        record(sanitizer, cluster)
        for key, (finding, pair) in trace.notes.items():
            if finding.kind in _KINDS:
                found.setdefault(key, interleaving(trace, finding, pair))
    return tuple(replace(each, interleaving=found.get(key_of(each))) for each in findings)
