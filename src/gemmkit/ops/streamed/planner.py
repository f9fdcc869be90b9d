"""Which tiling a product of host matrices gets: the fastest that the device memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gemmkit.errors import UsageError
from gemmkit.kernels.plan import ceil_div
from gemmkit.ops.streamed.sizes import StreamProblem, Tiling, round_up
from gemmkit.ops.streamed.timeline import (
    Estimate,
    Rates,
    estimate,
    share_of_last,
    simulate,
    step_seconds,
)
from gemmkit.units import bytes_text

# Into how many parts a side is cut; beyond that, sides are halved.
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_MOST_PARTS = 1 << 20
# For each side of a tile, as many of the other, the nearest to a square.
_SQUARE = 2
# What a second of copies counts for, where a product hides it.
_COPIES_COUNT = 0.05
# Tiles in flight, where there is memory: panels of the next ones are loaded while these wait.
_IN_FLIGHT = 5
# One step takes no longer, so that an interrupt does not wait for it.
LONGEST_STEP_S = 0.2
# Tilings that are looked at closely, and the steps up to which they are.
_CLOSE, _MOST_STEPS = 6, 600


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A tiling for a problem on some devices, what it should cost, and how long a step takes: its
    product, or the copies for it."""

    problem: StreamProblem
    tiling: Tiling
    devices: int
    estimate: Estimate
    step_s: float

    @property
    def device_bytes(self) -> int:
        """Memory that each device needs."""
        return self.tiling.device_bytes(self.problem)


@lru_cache(maxsize=256)
def plan_stream(problem: StreamProblem, memory: int, rates: Rates, devices: int = 1) -> StreamPlan:
    """The tiling that should take least time, in so many bytes of memory of each device.

    Scratch memory of launches comes on top.

    Raises:
        UsageError: no tiling fits; the text says what the smallest needs.
    """
    every = list(_tilings(problem))
    fitting = [each for each in every if each.device_bytes(problem) <= memory]
    if not fitting:
        least = min(each.device_bytes(problem) for each in every)
        raise UsageError(
            f"device_memory = {bytes_text(memory)} is too little for this product, whose smallest "
            f"tiles need {bytes_text(least)}"
        )
    # Steps that take the device less time than the host are of use to the smallest products alone.
    busy = [max(_step_times(problem, each, rates)) for each in fitting]
    shortest = min(rates.step_s * devices, max(busy))
    sensible = [
        each
        for each, seconds in zip(fitting, busy, strict=True)
        if seconds >= shortest and _step_times(problem, each, rates)[0] <= LONGEST_STEP_S
    ]
    # The best of each size of tiles.
    best: dict[int, tuple[float, Estimate, Tiling]] = {}
    for each in sensible or fitting:
        for kept in _with_slots(problem, each, memory, devices):
            own = estimate(problem, kept, rates, devices)
            order = _cost(own)
            if each.m not in best or order < best[each.m][0]:
                best[each.m] = order, own, kept
    close = sorted(best.values(), key=lambda found: found[0])[:_CLOSE]
    chosen = [(_closer(problem, kept, rates, devices, own), kept) for _, own, kept in close]
    own, kept = min(chosen, key=lambda found: _cost(found[0]))
    return StreamPlan(problem, kept, devices, own, max(_step_times(problem, kept, rates)))


def _step_times(problem: StreamProblem, tiling: Tiling, rates: Rates) -> tuple[float, float]:
    """Seconds of a step's product, and of copies of its panels."""
    panels = tiling.panel_a(problem) + tiling.panel_b(problem)
    return step_seconds(problem, tiling, rates), panels / rates.to_device


def _cost(seen: Estimate) -> float:
    """Its time, and a little for the copies under the product: links and host memory are shared."""
    return seen.seconds + _COPIES_COUNT * (seen.in_s + seen.out_s)


def _closer(
    problem: StreamProblem, tiling: Tiling, rates: Rates, devices: int, first: Estimate
) -> Estimate:
    """The estimate with the time of a step-by-step run, where that is short."""
    groups, rows, columns = tiling.counts(problem)
    if groups * rows * columns * tiling.chunks(problem) > _MOST_STEPS * devices:
        return first
    seen = simulate(problem, tiling, rates, share_of_last(problem, tiling, devices))
    return replace(first, seconds=seen.seconds)


# --- what there is to choose from ---------------------------------------------------------------


def _tilings(problem: StreamProblem) -> Iterator[Tiling]:
    """Cuts of the sides and of k, with one slot for each panel."""
    one = Tiling(1, 1, 1, slots_a=1, slots_b=1, tiles=1)
    if problem.batch > 1:
        for parts in _parts(problem.batch):
            group = ceil_div(problem.batch, parts)
            if group > 1:
                yield replace(one, m=problem.m, n=problem.n, k=problem.k, group=group)
    sides_n = list(_sides(problem.n, problem.line_unit))
    depths = list(_sides(problem.k, problem.k_unit)) if problem.k else [0]
    for m in _sides(problem.m, problem.line_unit):
        # As square as can be.
        near = sorted(sides_n, key=lambda n: max(m, n) / min(m, n))[:_SQUARE]
        if m == problem.m:
            # B goes over the link once, however wide tiles are.
            near += [n for n in sides_n if n > m and n not in near]
        for n in near:
            for k in depths:
                yield replace(one, m=m, n=n, k=k)


def _parts(size: int) -> Iterator[int]:
    yield from (each for each in _PARTS if each <= size)
    parts = 2 * _PARTS[-1]
    while parts <= min(size, _MOST_PARTS):
        yield parts
        parts *= 2


def _sides(size: int, unit: int) -> Iterator[int]:
    """Sides of equal parts, of a multiple of a power of two that is small beside them."""
    seen = set()
    for parts in _parts(size):
        side = ceil_div(size, parts)
        fine = unit
        while fine < 256 and 8 * fine <= side:
            fine *= 2
        side = min(round_up(side, fine), size)
        if side not in seen:
            seen.add(side)
            yield side


def _with_slots(
    problem: StreamProblem, tiling: Tiling, memory: int, devices: int
) -> Iterator[Tiling]:
    """The tiling with as many panels kept as the memory has room for, in each order of tiles."""
    groups, rows, columns = tiling.counts(problem)
    chunks = tiling.chunks(problem)
    tiles = groups * rows * columns
    # Those of a product are of no use to the next one, unless both have the same matrix.
    later = min(groups - 1, 2)
    most_a = rows * chunks + (0 if problem.shared_a else later)
    most_b = columns * chunks + (0 if problem.shared_b else later)
    size_a, size_b = tiling.panel_a(problem), tiling.panel_b(problem)
    tile = replace(tiling, slots_a=0, slots_b=0, tiles=1).device_bytes(problem)
    fixed = replace(tiling, slots_a=0, slots_b=0, tiles=0).device_bytes(problem)
    least = min(2, most_a) * size_a + min(2, most_b) * size_b
    flight = min(_IN_FLIGHT, tiles)
    while flight > 1 and fixed + flight * (tile - fixed) + least > memory:
        flight -= 1
    left = memory - fixed - flight * (tile - fixed)
    line_a, line_b = chunks + min(chunks, 2), chunks + min(chunks, 2)
    pairs = []
    for wanted_a, wanted_b in (
        (line_a, line_b),
        (line_a, 3),
        (3, line_b),
        (3, 3),
        (2, 2),
        (1, 1),
    ):
        a, b = min(wanted_a, most_a), min(wanted_b, most_b)
        spare = left - a * size_a - b * size_b
        if spare < 0:
            continue
        # What is left serves the panels of one side, and then those of the other.
        for first in "ab":
            more_a = min(most_a - a, spare // size_a) if first == "a" and size_a else 0
            more_b = min(most_b - b, (spare - more_a * size_a) // size_b) if size_b else 0
            rest = spare - more_a * size_a - more_b * size_b
            if first == "b" and size_a:
                more_a = min(most_a - a, rest // size_a)
            pairs.append((a + more_a, b + more_b))
    orders = (True, False) if rows > 1 and columns > 1 else (rows > 1,)
    for a, b in dict.fromkeys(pairs):
        kept = replace(tiling, tiles=flight, slots_a=a, slots_b=b)
        for by_rows in orders:
            yield replace(kept, by_rows=by_rows)
        if devices == groups == 1 and a >= most_a and b >= most_b and len(orders) > 1:
            yield replace(kept, squares=True)
