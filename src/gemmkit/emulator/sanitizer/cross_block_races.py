"""Cross-block races in global memory: blocks that access one address, at least one of them by a
store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.layout import SITE_BYTES
from gemmkit.emulator.codegen.ordering import scope
from gemmkit.emulator.codegen.shadow_layout import (
    ACTOR_BLOCK,
    ACTOR_RANK,
    ACTOR_RANKS,
    ACTOR_SITE,
    COPY_PLACE,
)
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow, Words
from gemmkit.emulator.sanitizer.sites import Names, is_bulk, verb
from gemmkit.findings import Finding

ANY_ORDER = "blocks run in any order"
_BLOCK_SCOPE = "an atomic of block scope (.cta) is atomic only among the threads of its own block"


def cross_block_races(
    names: Names, known: GlobalShadow, numbers: dict[int, int]
) -> Iterator[tuple[Finding, int]]:
    """Each pair of instructions by which blocks race, with the number of the earlier block.

    `numbers` gives the instruction of a memory record by the record's offset in a worker.
    """
    for start in known.stored():
        last, first = (known.actors.get((start, f"{which}_writer")) for which in ("last", "first"))
        if last is None or first is None:
            continue
        stored = np.flatnonzero(last)
        last_writer, first_writer = last[stored], ~first[stored]
        pairs = [(first_writer, last_writer, "write after write")]
        readers = known.actors.get((start, "last_reader"))
        if readers is not None:
            firsts = known.actors[start, "first_reader"]
            last_reader, first_reader = readers[stored], ~firsts[stored]
            none = last_reader == 0
            last_reader = np.where(none, first_writer, last_reader)
            first_reader = np.where(none, last_writer, first_reader)
            pairs.append((first_writer, last_reader, "read after write"))
            pairs.append((first_reader, last_writer, "write after read"))
        for earlier, later, kind in pairs:
            yield from _pairs(names, start, stored, earlier, later, kind, known.granule, numbers)


def _pairs(
    names: Names,
    start: int,
    granules: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    earlier: Words,
    later: Words,
    kind: str,
    granule: int,
    numbers: dict[int, int],
) -> Iterator[tuple[Finding, int]]:
    block = np.uint64(ACTOR_BLOCK)
    met = (earlier >> block) < (later >> block)
    if not met.any():
        return
    earlier, later, granules = earlier[met], later[met], granules[met]
    mask = np.uint64((1 << ACTOR_RANK) - (1 << ACTOR_SITE))
    sites = (earlier & mask) << np.uint64(32) | later & mask
    for pair in np.unique(sites):
        chosen = np.flatnonzero(sites == pair)
        # The first block in the grid, then the first address.
        place = chosen[np.argmin(earlier[chosen] >> block)]
        first, second = (Actor.read(int(each[place]), numbers) for each in (earlier, later))
        address = start + int(granules[place]) * granule
        yield cross_block_race(names, kind, address, first, second, len(chosen)), first.block


@dataclass(frozen=True, slots=True)
class Actor:
    """The thread and block, by their numbers, that accessed a granule, and the instruction; in a
    cluster `block` is its first one, and `rank` that of the block."""

    block: int
    thread: int
    number: int
    rank: int = 0
    asynchronous: bool = False

    @classmethod
    def read(cls, note: int, numbers: dict[int, int]) -> Actor:
        """Decode what native code recorded."""
        place = (note & (1 << ACTOR_RANK) - 1) >> ACTOR_SITE
        rank = (note & ACTOR_RANKS) >> ACTOR_RANK
        thread = note & (1 << ACTOR_SITE) - 1
        copies = bool(place & COPY_PLACE)
        return cls((note >> ACTOR_BLOCK) - 1, thread, numbers[place], rank, copies)


def cross_block_race(
    names: Names,
    kind: str,
    address: int,
    earlier: Actor,
    later: Actor,
    count: int = 1,
    why: str = ANY_ORDER,
) -> Finding:
    """The finding that two blocks access one address."""
    first, second = (
        names.site(each.number, names.thread(each.thread)) for each in (earlier, later)
    )
    array, offset = names.device(address)
    where = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
    actions = [names.actions[each.number] for each in (later, earlier)]
    does, did = (verb(each, in_global=True) for each in actions)
    scopes = [scope(each) for each in actions]
    by_scope = "block" in scopes
    second_at, first_at = (
        f"{site} ({of} scope)" if by_scope and of else str(site)
        for site, of in zip((second, first), scopes, strict=True)
    )
    if by_scope and all(scopes):
        why = f"{_BLOCK_SCOPE}, and {why}"
    whos = ["the bulk copy by " if is_bulk(each) else "" for each in actions]
    blocks = [names.member(each.block, each.rank) for each in (later, earlier)]
    message = (
        f"{kind}: {whos[0]}thread {second.thread} of block {blocks[0]} {does} {where} at "
        f"{second_at}, which {whos[1]}thread {first.thread} of block {blocks[1]} {did} at "
        f"{first_at}; {why}"
    )
    return Finding(
        check="racecheck",
        kind=kind,
        message=message,
        block=blocks[0],
        here=second,
        other=first,
        array=array,
        offset=offset,
        count=count,
    )


def instruction_numbers(areas: Areas) -> dict[int, int]:
    """The instruction of each memory record, by the record's index in a worker's buffer, and of
    each bulk copy."""
    first = areas.sites_start // SITE_BYTES
    records = {first + place: number for number, place in areas.sites.items()}
    copies = {COPY_PLACE | place: number for number, place in areas.transfers.items()}
    return records | copies
