"""How long a tiling takes, and what goes over the link: by formulas, and step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from gemmkit.kernels.plan import ceil_div
from gemmkit.ops.streamed.sizes import StreamProblem, Tiling
from gemmkit.ops.streamed.traversal import Slots, Tile, shares, tiles_in_order

Limiter = Literal["product", "copies to the device", "copies to the host", "launches"]


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does in a second, for each device: bytes copied each way, floating-point
    operations of products, bytes of device memory read or written.

    `step_s` is the host's time for one step: launches of a product and of the copies for it.
    """

    to_device: float = 54e9
    to_host: float = 54e9
    product: float = 50e12
    memory: float = 2.5e12
    step_s: float = 1.5e-4


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a tiling costs: bytes copied to and from all devices, and seconds.

    `product_s`, `in_s` and `out_s` are those of the device with most tiles, each by itself, and
    `seconds` those of all of it, overlapped.
    """

    bytes_in: float
    bytes_out: float
    product_s: float
    in_s: float
    out_s: float
    seconds: float
    limiter: Limiter


# Elements of a tile at which products run at half their speed: fewer blocks than a GPU holds.
_HALF_SPEED = 500.0**2


def step_seconds(problem: StreamProblem, tiling: Tiling, rates: Rates) -> float:
    """The product of one panel of A and one of B, added to a tile that is there already."""
    elements = float(tiling.group * tiling.m * tiling.n)
    seconds = 2.0 * (elements + _HALF_SPEED) * min(tiling.k, problem.k) / rates.product
    # Few lines are multiplied as fast as the other operand is read.
    seconds = max(seconds, (tiling.panel_a(problem) + tiling.panel_b(problem)) / rates.memory)
    if tiling.chunks(problem) > 1:
        seconds += 2 * tiling.tile_bytes(tiling.accumulator_item(problem)) / rates.memory
    return seconds


def panels_loaded(problem: StreamProblem, tiling: Tiling, devices: int) -> tuple[float, float]:
    """Panels of A and B that all devices load, as `Slots` has them in serpentine order."""
    groups, rows, columns = tiling.counts(problem)
    chunks = tiling.chunks(problem)
    if tiling.squares:
        # Only for one device that holds them all.
        turns_a, turns_b = (1 if shared else groups for shared in problem.shared)
        return float(turns_a * rows * chunks), float(turns_b * columns * chunks)
    outer, inner = (rows, columns) if tiling.by_rows else (columns, rows)
    shared_outer, shared_inner = problem.shared if tiling.by_rows else problem.shared[::-1]
    kept_outer, kept_inner = tiling.slots_a, tiling.slots_b
    if not tiling.by_rows:
        kept_outer, kept_inner = kept_inner, kept_outer
    # Of one device, or of as many as there are lines, each of which has a part of one.
    lines = max(groups * outer / devices, 1.0)
    inner_own = max(groups * outer * inner / devices / lines, 1.0)
    turns = max(lines / outer, 1.0)
    of_line = chunks + (inner_own - 1) * max(0, chunks - kept_outer)
    loaded_outer = lines * of_line
    if shared_outer:
        loaded_outer -= (turns - 1) * min(kept_outer, outer * chunks)
    all_inner = inner_own * chunks
    turns_inner = 1.0 if shared_inner else turns
    loaded_inner = turns_inner * all_inner + (lines - turns_inner) * max(0, all_inner - kept_inner)
    loads = loaded_outer * devices, loaded_inner * devices
    return loads if tiling.by_rows else loads[::-1]


def further_bytes_in(problem: StreamProblem, tiling: Tiling) -> float:
    """Bytes of C and residual that are copied to devices, widened where tiles are."""
    item = tiling.accumulator_item(problem)
    return (problem.reads_c + problem.residual) * problem.result_bytes / problem.out_item * item


def estimate(problem: StreamProblem, tiling: Tiling, rates: Rates, devices: int) -> Estimate:
    """By formulas, in some microseconds: for comparing many tilings."""
    groups, rows, columns = tiling.counts(problem)
    chunks = tiling.chunks(problem)
    tiles = groups * rows * columns
    most = ceil_div(tiles, devices)
    share = most / tiles
    loaded_a, loaded_b = panels_loaded(problem, tiling, devices)
    panel_a = problem.m * problem.k * problem.item / (rows * chunks)
    panel_b = problem.n * problem.k * problem.item / (columns * chunks)
    panel_a *= 1 if problem.shared_a else problem.batch / groups
    panel_b *= 1 if problem.shared_b else problem.batch / groups
    bytes_in = loaded_a * panel_a + loaded_b * panel_b + further_bytes_in(problem, tiling)
    bytes_in += problem.fixed_bytes * devices
    bytes_out = problem.result_bytes * (1.0 + problem.auxiliary)
    in_s = bytes_in * share / rates.to_device
    out_s = bytes_out * share / rates.to_host
    of_tile = chunks * max(step_seconds(problem, tiling, rates), rates.step_s * devices)
    product_s = most * of_tile
    first = (panel_a + panel_b) / rates.to_device
    last = bytes_out / tiles / rates.to_host
    # What the first tile, and the first line of tiles, wait for their panels.
    inner = panel_b if tiling.by_rows else panel_a
    in_line = min(columns if tiling.by_rows else rows, most)
    ramp = max(0.0, chunks * first - of_tile)
    if tiling.squares:
        ramp += sum(
            max(0.0, chunks * first - (2 * side + 1) * of_tile)
            for side in range(1, min(rows, columns))
        )
    else:
        ramp += (in_line - 1) * max(0.0, chunks * inner / rates.to_device - of_tile)
    sides: dict[Limiter, float] = {
        "product": product_s,
        "copies to the device": in_s,
        "copies to the host": out_s,
    }
    limiter = max(sides, key=lambda side: sides[side])
    seconds = first + max(product_s + ramp, in_s - first + of_tile, out_s) + last
    if min(tiling.slots_a, tiling.slots_b) == 1 and tiles * chunks > 1:
        # Nothing is copied to the device while a product runs.
        seconds = product_s + in_s + last
    if tiling.tiles == 1:
        seconds += out_s - last
    if limiter == "product" and rates.step_s * devices * chunks >= of_tile:
        limiter = "launches"
    return Estimate(bytes_in, bytes_out, product_s, in_s, out_s, seconds, limiter)


@dataclass(slots=True)
class Simulated:
    """What a device did: seconds at the end of everything, bytes copied each way."""

    seconds: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


def simulate(
    problem: StreamProblem, tiling: Tiling, rates: Rates, tiles: Iterator[Tile] | list[Tile]
) -> Simulated:
    """One device's tiles, each copy and product in turn on its stream, as the worker orders them.

    All tiles count as whole ones.
    """
    slots_a, slots_b = Slots(tiling.slots_a), Slots(tiling.slots_b)
    chunks = tiling.chunks(problem)
    step, item = step_seconds(problem, tiling, rates), tiling.accumulator_item(problem)
    size_a, size_b = tiling.panel_a(problem), tiling.panel_b(problem)
    further = (problem.reads_c + problem.residual) * tiling.tile_bytes(item)
    result = tiling.tile_bytes(problem.out_item) * (1 + problem.auxiliary)
    done = Simulated()
    copied_in = computed = copied_out = 0.0
    used: dict[tuple[str, int], float] = {}
    stored: list[float] = []
    for tile in tiles:
        if len(stored) >= tiling.tiles:
            copied_in = max(copied_in, stored[-tiling.tiles])
        copied_in += further / rates.to_device
        done.bytes_in += further
        for chunk in tile.chunks(chunks) if problem.k else ():
            taken = []
            for name, slots, key, size in (
                ("a", slots_a, tile.panel_a(chunk, problem), size_a),
                ("b", slots_b, tile.panel_b(chunk, problem), size_b),
            ):
                slot, missing = slots.take(key)
                taken.append((name, slot))
                if missing:
                    copied_in = max(copied_in, used.get((name, slot), 0.0))
                    copied_in += size / rates.to_device
                    done.bytes_in += size
            # Panels are copied in the order of the steps that need them.
            computed = max(computed, copied_in) + max(step, rates.step_s)
            used.update(dict.fromkeys(taken, computed))
        copied_out = max(copied_out, computed, copied_in) + result / rates.to_host
        done.bytes_out += result
        stored.append(copied_out)
    done.seconds = copied_out
    return done


def share_of_last(problem: StreamProblem, tiling: Tiling, devices: int) -> Iterator[Tile]:
    """The tiles of the last device, which has as many as any."""
    groups, rows, columns = tiling.counts(problem)
    own = shares(groups * rows * columns, devices)[-1]
    return islice(tiles_in_order(problem, tiling), own.start, own.stop)
