"""Instructions that compute from registers alone, for all lanes of a group at once."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.isa.semantics import evaluate, reads_carry, writes_carry
from gemmkit.emulator.isa.semantics.raw import Raw
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.control import Lanes
from gemmkit.emulator.oracle.steps import PREDICATE, Step
from gemmkit.emulator.ptx.module import CARRY


def evaluate_step(group: Group, step: Step, lanes: Lanes) -> None:
    """An instruction of `isa.semantics`, with the carry where it has one."""
    sources: list[Raw | int] = [group.read(*each) for each in step.sources]
    sources += step.immediates
    dests = list(step.dests)
    if reads_carry(step.form):
        sources.append(group.read(CARRY, PREDICATE))
    if writes_carry(step.form):
        dests.append((CARRY, PREDICATE))
    results = evaluate(step.form, sources)
    for (dest, of), result in zip(dests, results, strict=False):
        group.write(dest, of, result, lanes)


def move(group: Group, step: Step, lanes: Lanes) -> None:
    """`mov`, which also joins and splits registers: `mov.b64 {lo, hi}, d`."""
    if len(step.dests) == len(step.sources) == 1:
        group.write(*step.dests[0], group.read(*step.sources[0]), lanes)
        return
    joined = np.zeros(lanes.shape, np.uint64)
    shift = 0
    for source, of in step.sources:
        joined |= group.read(source, of).astype(np.uint64) << np.uint64(shift)
        shift += of.bits
    shift = 0
    for dest, of in step.dests:
        group.write(dest, of, (joined >> np.uint64(shift)).astype(f"u{of.bytes}"), lanes)
        shift += of.bits
