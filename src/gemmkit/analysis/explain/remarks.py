"""Remarks on a single kernel: its limiter, its accesses per operand, its resources; by weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from gemmkit.analysis.explain import derived, weights
from gemmkit.analysis.explain.explanation import Evidence, Mark, Sentence
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.explain.wording import differ, listed, number, percent
from gemmkit.analysis.memory import MemoryRow
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.jit.ffma import multiply_adds
from gemmkit.units import counted

# A smaller difference may come from loads outside the main loop.
_FEWER_LOADS = 0.9
# Sectors over the minimum, up to which the cause is that some requests start or end inside a
# sector; lanes whose addresses are apart need a multiple.
_ALIGNMENT = 1.15
# Empty block slots, as a share of all slots of all waves, that are worth a mark.
_EMPTY = 0.05

Remark = Callable[[Facts, Mapping[str, float]], Iterator[Sentence]]


def remarks(facts: Facts, metrics: Mapping[str, float]) -> tuple[Sentence, ...]:
    """Sentences derived from the metrics of the kernel: what costs most first, good news last."""
    if not facts.plan.blocks:
        return (_nothing_launched(facts, metrics),)
    return weights.ranked(sentence for remark in _REMARKS for sentence in remark(facts, metrics))


def _nothing_launched(facts: Facts, metrics: Mapping[str, float]) -> Sentence:
    problem = facts.problem
    if problem.results:
        why = f"The kernel's grid has no blocks at {problem.shape}"
    else:
        why = f"The product is empty: C is {problem.m}x{problem.n}"
    return Sentence(
        text=f"{why}, so nothing is launched.", evidence=_evidence(metrics, "launch__grid_size")
    )


def _evidence(metrics: Mapping[str, float], *names: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(metric=name, this=metrics[name]) for name in names if name in metrics)


def _limiter(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:
    prediction = facts.prediction
    if prediction is None:
        return
    longest = max(prediction.terms, key=lambda term: term.microseconds)
    yield Sentence(
        text=f"It is predicted to take {number(prediction.microseconds)} µs on {facts.gpu.name}, "
        f"{percent(metrics[derived.PEAK_SHARE])} of the {prediction.pipe} peak"
        f"{prediction.pipe.sums}, limited by "
        f"{longest.name}: {longest.meaning.rstrip('.')}.",
        evidence=(
            *_evidence(metrics, derived.MICROSECONDS, derived.PEAK_SHARE),
            Evidence(
                metric=derived.PREDICTED_TERM, operand=longest.name, this=longest.microseconds
            ),
        ),
        weight=1.0,
    )


def _operands(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:  # noqa: ARG001
    """Whether the accesses to each array in global memory are coalesced."""
    for access in facts.of("global", "load", "copy", "store"):
        if not access.ideal_sectors:
            continue
        metric = derived.SECTORS_PER_REQUEST["store" if access.kind == "store" else "load"]
        seen, needed, asked = (
            each / access.requests
            for each in (access.sectors, access.ideal_sectors, access.data_bytes / SECTOR_BYTES)
        )
        sectors = f"{number(seen)} sector{'' if seen == 1 else 's'} per request"
        what = {"load": "Loads of", "copy": "Copies of", "store": "Stores to"}[access.kind]
        what += f" {access.array}"
        mark: Mark = "bad"
        if not differ(seen, needed):
            mark = "good"
            text = f"{what} are coalesced: {sectors}, the minimum."
        elif seen < _ALIGNMENT * needed:
            text = (
                f"{what} are coalesced, but some start or end inside a sector: {sectors}, where "
                f"{number(needed)} would suffice for aligned ones."
            )
        elif not differ(max(seen, asked), asked):
            text = f"{what} access {sectors}, where {number(needed)} would suffice."
        else:
            text = f"{what} are not coalesced: {sectors}, where {number(needed)} would suffice."
        ideal = Evidence(metric=derived.IDEAL_SECTORS, operand=access.array, this=needed)
        yield Sentence(
            text=text,
            evidence=(Evidence(metric=metric, operand=access.array, this=seen), ideal),
            mark=mark,
            weight=weights.sectors_weight(facts, access) if mark == "bad" else 0.0,
            places=weights.access_places(
                facts,
                access,
                lambda row: row.sectors - row.ideal_sectors,
                lambda row: row.sectors,
            ),
        )


def _banks(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:  # noqa: ARG001
    accesses = [each for each in facts.of("shared", "load", "store") if each.wavefronts]
    if not accesses:
        return
    for access in accesses:
        if access.conflicts:
            yield Sentence(
                text=f"{_shared_name(access)} have bank conflicts: "
                f"{number(access.wavefronts / access.instructions)} wavefronts per instruction, "
                f"{percent(100 * access.conflicts / access.wavefronts)} of them due to conflicts.",
                evidence=(
                    Evidence(
                        metric=_SHARED[access.kind][1],
                        operand=access.array,
                        this=access.conflicts,
                    ),
                    Evidence(
                        metric=_SHARED[access.kind][0],
                        operand=access.array,
                        this=access.wavefronts,
                    ),
                ),
                mark="bad",
                weight=weights.conflicts_weight(facts, access),
                places=weights.access_places(facts, access, lambda row: row.conflicts),
            )
    free = [each for each in accesses if not each.conflicts]
    if free:
        first, *rest = map(_shared_name, free)
        names = listed([first, *(name[0].lower() + name[1:] for name in rest)])
        yield Sentence(
            text=f"{names} have no bank conflicts.",
            evidence=tuple(
                Evidence(metric=_SHARED[each.kind][1], operand=each.array, this=each.conflicts)
                for each in free
            ),
            mark="good",
            places=weights.places(
                (
                    row
                    for row in facts.lines
                    if any(
                        (row.array, row.space, row.kind) == (each.array, each.space, each.kind)
                        for each in free
                    )
                ),
                lambda row: row.wavefronts,
            ),
        )


def _copies(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:  # noqa: ARG001
    for access in facts.of("global", "copy"):
        if access.conflicts:
            yield Sentence(
                text=f"Copies of {access.array} by cp.async have bank conflicts: "
                f"{percent(100 * access.conflicts / access.wavefronts)} of their "
                f"{number(access.wavefronts / access.requests)} wavefronts per request. Lanes that "
                "read from the same bank are serialized, even for the same word, and so are lanes "
                "that write to the same bank.",
                evidence=(
                    Evidence(
                        metric=derived.COPY_WAVEFRONTS,
                        operand=access.array,
                        this=access.wavefronts,
                    ),
                ),
                mark="bad",
                weight=weights.conflicts_weight(facts, access),
                places=weights.access_places(facts, access, lambda row: row.conflicts),
            )


_SHARED = {
    kind: (derived.SHARED_WAVEFRONTS[place], derived.SHARED_CONFLICTS[place])
    for place, kind in enumerate(("load", "store"))
}


def _shared_name(access: MemoryRow) -> str:
    return f"{'Loads of' if access.kind == 'load' else 'Stores to'} {access.array}"


def _loads(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:
    names = (derived.GLOBAL_LOADS, derived.SHARED_LOADS)
    values = [metrics.get(name) for name in names]
    if values[0] is None or values[1] is None:
        return
    k = facts.counted.mean_k
    shared = f" and {number(values[1])} from shared memory" if values[1] else ""
    yield Sentence(
        text=f"Per result ({k:,} multiply-adds), threads load {number(values[0])} "
        f"{'word' if values[0] == 1 else 'words'} from global memory{shared}.",
        evidence=_evidence(metrics, *names),
        places=weights.places(
            (row for row in facts.lines if row.kind in ("load", "copy")), lambda row: row.data_bytes
        ),
    )


def _merged_loads(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:
    """Where ptxas unrolls a loop itself, it merges more loads than are adjacent in the PTX."""
    binary = facts.binary
    found = multiply_adds(binary.cubin, binary.entry, binary.arch) if binary.cubin else None
    adds, loads = (metrics.get(name, 0.0) for name in (derived.FMA, derived.SHARED_LOAD_COUNT))
    if found is None or not (found.shared_loads and found.count and adds and loads):
        return
    in_code, counted = found.shared_loads / found.count, loads / adds
    if in_code < _FEWER_LOADS * counted:
        yield Sentence(
            text=f"The main loop of the machine code executes {number(in_code)} shared-memory load "
            f"instructions per multiply-add, fewer than the {number(counted)} counted: ptxas "
            "unrolls the loop and merges loads of several iterations. The hardware counts at most "
            "as many load instructions as shown here.",
            evidence=_evidence(metrics, derived.SHARED_LOAD_COUNT, derived.FMA),
            places=weights.places(
                (row for row in facts.lines if (row.space, row.kind) == ("shared", "load")),
                lambda row: row.instructions,
            ),
        )


def _residency(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:
    seen = facts.occupancy
    if seen is None:
        return
    if not seen.blocks_per_sm:
        yield Sentence(
            text=f"A block does not fit on an SM of {facts.gpu.name}: the limit is "
            f"{_LIMITERS[seen.limiter]}.",
            evidence=_evidence(metrics, derived.OCCUPANCY),
            mark="bad",
            weight=1.0,
        )
        return
    blocks = f"{seen.blocks_per_sm} block{'' if seen.blocks_per_sm == 1 else 's'}"
    warps = f"{seen.warps_per_block} warp{'' if seen.warps_per_block == 1 else 's'}"
    yield Sentence(
        text=f"An SM holds {blocks} of {warps}, {percent(metrics[derived.OCCUPANCY])} of its "
        f"maximum number of warps; the limit is {_LIMITERS[seen.limiter]}.",
        evidence=_evidence(metrics, derived.OCCUPANCY, derived.REGISTERS),
    )
    idle = metrics[derived.TAIL_IDLE]
    if idle:
        lost = weights.waves_weight(seen.waves_per_sm)
        last = "it" if seen.full_waves == 0 else "the last one"
        yield Sentence(
            text=f"The grid is {number(seen.waves_per_sm)} waves; during {last}, "
            f"{percent(idle)} of the block slots are empty.",
            evidence=_evidence(metrics, derived.WAVES, derived.TAIL_IDLE),
            mark="bad" if lost >= _EMPTY else "neither",
            weight=lost if lost >= _EMPTY else 0.0,
        )


_LIMITERS = {
    "warps": "the number of warps that an SM can hold",
    "blocks": "the number of blocks that an SM can hold",
    "registers": "the SM's registers",
    "shared memory": "the SM's shared memory",
    "barriers": "the SM's barriers",
}


def _stages(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:
    fewer = facts.plan.fewer_stages
    if fewer is not None:
        asked = facts.config["stages"]
        yield Sentence(
            text=f"The launch has {counted(fewer.number, 'stage')}, not the {asked} of its "
            f"configuration: {fewer.reason}.",
            evidence=_evidence(metrics, derived.STAGES),
        )


def _work(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:  # noqa: ARG001
    each = metrics.get(derived.RESULTS_PER_THREAD)
    flight = metrics.get(derived.RESULTS_IN_FLIGHT)
    if each is None or flight is None or math.isclose(each, 0):
        return
    results = f"{number(each)} result{'' if each == 1 else 's'}"
    yield Sentence(
        text=f"A thread computes {results}, so an SM can have {number(flight)} independent "
        "results in flight.",
        evidence=_evidence(metrics, derived.RESULTS_PER_THREAD, derived.RESULTS_IN_FLIGHT),
    )


def _spills(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Sentence]:  # noqa: ARG001
    spilled = metrics.get(derived.SPILLS)
    if spilled:
        yield Sentence(
            text=f"A thread spills {number(spilled)} bytes to local memory.",
            evidence=_evidence(metrics, derived.SPILLS, derived.REGISTERS),
            mark="bad",
            weight=weights.spills_weight(spilled, metrics.get(derived.REGISTERS, 0.0)),
        )


_REMARKS: tuple[Remark, ...] = (
    _limiter,
    _operands,
    _banks,
    _copies,
    _loads,
    _merged_loads,
    _residency,
    _stages,
    _work,
    _spills,
)
