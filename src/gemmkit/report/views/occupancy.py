"""Occupancy over registers, shared memory and threads, to be changed."""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.analysis.explain import Facts
from gemmkit.analysis.occupancy import Limiter, launch_resources, occupancy
from gemmkit.gpu import WARP_SIZE
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table


def occupancy_view(facts: Facts, name: str) -> View:
    """Occupancy of the kernel of this name over registers, shared memory and threads, to be changed
    together.

    Occupancy is the least of limits that each depend on one or two of them; the page looks them up.
    """
    seen, taken = facts.occupancy, launch_resources(facts.plan, facts.binary)
    assert seen is not None
    capability = facts.gpu.capability
    warps = range(1, capability.max_threads_per_block // WARP_SIZE + 1)
    registers = range(8, capability.max_registers_per_thread + 2, 8)
    units = range(0, capability.max_shared_per_block + 1, capability.shared_unit)

    def limits(registers: int, warps: int, shared_bytes: int) -> Mapping[Limiter, int]:
        return occupancy(
            facts.gpu,
            registers=min(registers, capability.max_registers_per_thread),
            threads=WARP_SIZE * warps,
            shared_bytes=shared_bytes,
            blocks=1,
        ).limits

    data = {
        "kernel": name,
        "board": facts.gpu.name,
        "here": {
            "registers": taken["registers"],
            "threads": taken["threads"],
            "shared": taken["shared_bytes"],
        },
        "most_warps": capability.max_warps_per_sm,
        "registers": [min(each, capability.max_registers_per_thread) for each in registers],
        "shared": list(units),
        "by_registers": [
            [limits(each, count, 0)["registers"] for each in registers] for count in warps
        ],
        "by_shared": [limits(8, 1, each)["shared memory"] for each in units],
        "by_warps": [limits(8, count, 0)["warps"] for count in warps],
        "blocks": capability.max_blocks_per_sm,
        "barriers": seen.limits["barriers"],
    }
    rows = tuple(Row((Cell(name), Cell(str(limit)))) for name, limit in seen.limits.items())
    columns = (Column("limit", "left"), Column("blocks per SM"))
    return View("occupancy", data, Table(f"Limits of {name}", columns, rows))
