"""`port_time`: groups of SMs that read from memory, each through a port of its own."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec, MemoryPorts
from gemmkit.kernels.plan import ceil_div


def port_time(nbytes: float, parts: int, at_once: int, gpu: GpuSpec) -> float:
    """Microseconds in which the SMs read matrices from memory through their ports.

    The blocks of a wave read as much each, and the group with the most of them ends last. Up to
    one block for each two SMs they are dealt to groups in turn; more fill some groups before
    others. An SM that has little company reads no faster than it can by itself.

    Args:
        nbytes: what is read, once each.
        parts: in how many equal parts, by blocks or by tiles that blocks compute in turn.
        at_once: how many parts are read in a wave, at least 1.
        gpu: the board; where nothing is known of its ports, the time is 0.
    """
    ports = gpu.pipes.ports
    if ports is None or not parts:
        return 0.0
    full, rest = divmod(parts, at_once)
    slowest = full / _share(at_once, gpu.sm_count, ports)
    if rest:
        slowest += 1 / _share(rest, gpu.sm_count, ports)
    return nbytes / parts * slowest / 1e3


def _share(blocks: int, sms: int, ports: MemoryPorts) -> float:
    """Bytes per nanosecond that a block reads in the group that has the most of so many."""
    most = ceil_div(blocks, max(1, sms // ports.sms))
    if blocks > sms // 2:
        most = max(most, ports.sms - 1)
    return min(ports.group_bytes / most, ports.sm_bytes)
