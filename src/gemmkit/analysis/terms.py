"""The components of a predicted time, each with what it would take alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gemmkit.analysis.demand import Demand
from gemmkit.analysis.prediction import Term
from gemmkit.gpu import GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the busiest SM of a launch takes, in cycles of the boost clock, and around it.

    `whole` is the demand of each of its `warps`, `l2` what the L2 delivers, `chain` one warp's
    dependent instructions in all `waves`; `fix_up` what blocks that share tiles take besides;
    `finishing` the results that are finished while nothing multiplies; `loads` what the latency of
    bulk copies takes, of which `of_loads` says more. `dram_us` and `before_us`
    are microseconds, of the launch and of the one before.
    """

    whole: Demand
    warps: int
    waves: int
    l2: float
    chain: float
    fix_up: float
    finishing: float
    loads: float
    of_loads: str
    dram_us: float
    before_us: float


def terms_of(parts: Parts, spec: GpuSpec) -> tuple[Term, ...]:
    """The components, the longest first; some only where there is such a thing."""
    return tuple(sorted(_terms(parts, spec), key=lambda term: -term.microseconds))


def _terms(parts: Parts, spec: GpuSpec) -> Iterator[Term]:
    clock, whole = spec.clock_mhz, parts.whole
    on_scheduler = math.ceil(parts.warps / spec.pipes.issue)
    of_some = (
        (
            "the launch before",
            parts.before_us,
            "copies of operands in the form that the kernel reads",
        ),
        (
            "the fix-up of shared tiles",
            parts.fix_up / clock,
            "blocks that share a tile signal their arrival, and the last one adds their parts",
        ),
        (
            "the tensor cores",
            on_scheduler * whole.tensor / clock,
            "products of small matrices, at the rate that mma.sync or wgmma reaches",
        ),
        (
            "the special-function units",
            on_scheduler * whole.special / clock,
            "exponentials, reciprocals and roots, half a warp per cycle and SM",
        ),
        ("latency of TMA loads", parts.loads / clock, parts.of_loads),
        (
            "the write-back",
            parts.finishing / clock,
            "results that are finished while no operands are multiplied",
        ),
    )
    for name, microseconds, meaning in of_some:
        if microseconds:
            yield Term(name, microseconds, meaning)
    yield Term(
        "the FMA pipe",
        on_scheduler * whole.fma / clock,
        "multiply-adds, including waits for the banks of the register file",
    )
    yield Term(
        "issue slots",
        on_scheduler * whole.slots / clock,
        "instructions of all kinds, one per cycle and scheduler",
    )
    yield Term(
        "the data path of shared memory and L1",
        parts.warps * whole.data / clock,
        "wavefronts of shared and global accesses, one per cycle and SM",
    )
    yield Term(
        "the L1's tag stage",
        parts.warps * whole.tag / clock,
        "lookups of cache lines by global accesses",
    )
    yield Term("L2 bandwidth", parts.l2 / clock, "traffic between L2 and the SMs")
    yield Term("DRAM bandwidth", parts.dram_us, "traffic between L2 and DRAM")
    yield Term(
        "latency",
        parts.chain / clock,
        "one warp's dependent instructions, loads and barriers"
        + (", wave after wave" if parts.waves > 1 else ""),
    )
