"""Where everything lies in memory that native code and Python share.

A worker (one host thread) owns one buffer: its fields, barriers, counters, one record for each
memory instruction, pattern caches. Scratch registers are another, and each warp has one: its
header, then the registers that live from one basic block to the next.

A vector register is an array of 32 elements, one a lane, walked through in strips of eight lanes.
A predicate is one bit a lane in a 32-bit word.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 32
STRIPS = 4
STRIP_LANES = 8
ALL_LANES = (1 << LANES) - 1


def vector_bytes(bits: int) -> int:
    """Bytes set apart for a vector register; 8- and 16-bit ones take as much as 32-bit ones."""
    return LANES * max(32, bits) // 8


def words(*names: str) -> dict[str, int]:
    """Byte offsets of consecutive 64-bit fields."""
    return {name: 8 * place for place, name in enumerate(names)}


# Where generic addresses of shared and local memory begin, far from any of the host's.
WINDOWS = {"shared": 1 << 60, "local": 1 << 61}
WINDOW_BYTES = 1 << 32

# 64-bit fields of a worker. Sizes are in bytes; block and grid are in blocks, `threads` of a block.
WORKER = words(
    *("warp_function", "operation", "parameters", "globals", "scratch"),
    # Shared memory from address 0; a block's own begins at `shared_base`.
    *("shared", "shared_base", "shared_bytes", "static_shared_bytes"),
    # Local memory of one thread, and the distance to the next one's.
    *("local", "local_bytes", "local_stride"),
    # Allocations as (first byte, size), sorted.
    *("regions", "region_count"),
    *("warps", "warp_count", "warp_bytes"),
    # The grid's next block is taken from a counter that all workers share.
    *("next_block", "block_limit", "block", "running", "exit_block", "ended", "cleared_bytes"),
    *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"),
    *("threads_x", "threads_y", "threads_z"),
    # Loop iterations left before control goes back to Python, weighted by their length.
    *("fuel", "turn_cost", "turn"),
    *("fault", "fault_site", "fault_address", "fault_lane"),
    # What the sanitizers know of memory, and patterns worked out so far.
    *("shadow", "patterns"),
    # The warps in the order of their turns; the seed that shuffles them, 0 for none; its state.
    *("warp_order", "order_seed", "order_state"),
)
# Barriers follow the fields: for each, warps that have arrived, warps awaited (0: all), and the sum
# of what warps gave to a reduction there.
BARRIERS = 16
BARRIER_VOTES = 16
BARRIER_BYTES = 32
WORKER_BARRIERS = 384
# A pattern of no lane at all follows, then the counters.
NO_PATTERN = WORKER_BARRIERS + BARRIERS * BARRIER_BYTES

# A memory instruction: the region that it touched last, and counts: sectors of global and local
# memory, the fewest that could have done, wavefronts of the tag stage beyond one a request;
# wavefronts and conflicts of shared memory. `counts_as` says how a shared access counts: in its low
# half which of a pattern's counts that is, in its high half the bytes of a lane. Of cp.async these
# are besides: the bytes copied if it has a source size, and what a request counts, with the serial
# numbers of the two patterns that count so.
SITE = words(
    *("region", "region_bytes", "sectors", "ideal_sectors", "wavefronts", "conflicts"),
    *("more_tags", "counts_as"),
    *("bytes_copied", "copied_again", "copy_wavefronts", "copy_conflicts"),
    *("copied_to", "copied_from"),
    # For the sanitizers, the part of shared memory that the instruction may touch.
    *("shared_start", "shared_size"),
)
SITE_BYTES = 128


@dataclass(frozen=True, slots=True)
class _Pattern:
    """How the addresses of a warp lie to one another, and what follows from that.

    `offsets` are the lanes' distances from the first active lane's address, 0 in inactive lanes,
    and `narrow` their low 32 bits; `least` and `extent` are their minimum and what the maximum is
    above it, `bits` all of them or-ed. `base` is the first active lane's address when the pattern
    was last met. A strip whose active lanes lie within 32 bytes, in whole words, is read as one
    vector at `strip_least` and permuted by `order`. `sectors` and `wavefronts` hold the counts
    for each access size and alignment once found, `tags` the wavefronts of the tag stage that a
    base address takes which shares no bit with the offsets; base addresses from `tags_from` on
    take as many as `tags_within` says above its low byte, which is how far on. `serial` is a
    number that no pattern before it had.

    For the sanitizers, `starts` holds where the accesses begin, as pairs of 64-bit words: a
    distance from `least` in granules, and a set of the 48 granules from there; `start_pairs` their
    number, 0 while they are not known, and `meets` says whether lanes meet at one place.
    """

    offsets: int = 0
    narrow: int = 256
    order: int = 384
    strip_least: int = 512
    base: int = 544
    least: int = 552
    extent: int = 560
    bits: int = 568
    mask: int = 576
    flags: int = 580
    sectors: int = 584
    wavefronts: int = 840
    tags: int = 1064
    tags_from: int = 1072
    tags_within: int = 1080
    serial: int = 1088
    start_pairs: int = 1096
    overlaps: int = 1104
    starts: int = 1112
    size: int = 1664


PATTERN = _Pattern()


def counted_wavefronts(nbytes: int, *, store: bool) -> int:
    """Where in a pattern the count lies of an access of so many bytes per lane: 4, 8, 16 or 32."""
    index = {4: 1, 8: 8, 16: 9, 32: 10}[nbytes]
    return PATTERN.wavefronts + 8 * (index + (16 if store else 0))


WORKER_COUNTERS = NO_PATTERN + PATTERN.size
# Of a basic block: times it ran, active lanes summed over those times. Of an instruction that does
# not always act as its block does: times with an active lane (of a branch: times lanes parted), and
# active lanes.
COUNTER_BYTES = 16
# Ways of the pattern cache of one address in the code.
PATTERN_WAYS = 8
# Flags of a pattern: all strips fit a window; all lanes active, one word further each; all lanes
# active, none at a lower address than the lane before it.
WINDOWS_FIT = 1
LINEAR = 2
RISING = 4

# 32-bit fields of a warp. `meet` is the block where the running lanes wait for others, `depth`
# the height of the stack of lanes that wait; `initial` the lanes that exist at all; `votes` what
# the warp gives to a reduction at a barrier, and the sum of all once that is open.
WARP = {
    name: 4 * place
    for place, name in enumerate(
        (
            *("block", "mask", "exited", "reconvergence", "depth", "status", "index", "initial"),
            *("barrier", "barrier_warps", "instruction", "votes"),
        )
    )
}
# A waiting entry: the block where it goes on, where it meets others, its lanes.
STACK = 64
STACK_ENTRY = 16
STACK_ENTRIES = 64
WARP_REGISTERS = STACK + STACK_ENTRY * STACK_ENTRIES

# What a warp's function returns, and a warp's `status`.
RUNNING, AT_BARRIER, DONE, PAUSED, TRAPPED = range(5)

# What the function that runs blocks returns.
FINISHED, OUT_OF_FUEL, FAULTED, STUCK, TRAP = range(5)

# Kinds of fault.
OUT_OF_BOUNDS, MISALIGNED, FAILED_OPERATION = 1, 2, 3
