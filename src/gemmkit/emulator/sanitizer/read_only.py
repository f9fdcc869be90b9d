"""Read-only loads (`__ldg`, `ld.global.nc`) of memory that the launch writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemmkit.emulator.codegen.shadow_layout import ACTOR_BLOCK, ACTOR_RANK, ACTOR_SITE
from gemmkit.emulator.sanitizer.cross_block_races import Actor
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.sites import Names, verb
from gemmkit.findings import Finding


def read_only_writes(
    names: Names, known: GlobalShadow, numbers: dict[int, int]
) -> Iterator[tuple[Finding, int]]:
    """One finding for each pair of a load and a store, with the number of the load's block.

    `numbers` gives the instruction of a memory record by the record's offset in a worker.
    """
    pair = np.uint64((1 << ACTOR_RANK) - (1 << ACTOR_SITE))
    for start in known.stored():
        readers = known.actors.get((start, "nc_reader"))
        writers = known.actors.get((start, "last_writer"))
        if readers is None or writers is None:
            continue
        met = np.flatnonzero((readers != 0) & (writers != 0))
        sites = (readers[met] & pair) << np.uint64(ACTOR_BLOCK) | writers[met] & pair
        for each in np.unique(sites):
            chosen = met[sites == each]
            place = int(chosen[np.argmin(readers[chosen])])
            reader, writer = (Actor.read(int(who[place]), numbers) for who in (readers, writers))
            address = start + place * known.granule
            finding = _finding(names, address, reader, writer, len(chosen))
            yield finding, reader.block


def _finding(names: Names, address: int, reader: Actor, writer: Actor, count: int) -> Finding:
    array, offset = names.device(address)
    here = names.site(reader.number, names.thread(reader.thread))
    other = names.site(writer.number, names.thread(writer.thread))
    block, its = names.block(reader.block), names.block(writer.block)
    place = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
    return Finding(
        check="racecheck",
        kind="write to read-only memory",
        message=f"write to read-only memory: thread {here.thread} of block {block} loads {place} "
        f"at {here} by {here.instruction}, which is for memory that nothing writes while the "
        f"kernel runs, but thread {other.thread} of block {its} "
        f"{verb(names.actions[writer.number])} it at {other}; remove __ldg() and "
        f"const __restrict__ there",
        block=block,
        here=here,
        other=other,
        array=array,
        offset=offset,
        count=count,
    )
