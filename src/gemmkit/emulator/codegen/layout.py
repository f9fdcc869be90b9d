"""The layout of the memory that native code and Python share.

A worker (one host thread) owns one buffer: its fields, barriers, counters, one record per memory
instruction, and pattern caches. Scratch registers are another buffer, and each warp has one: its
header, then the registers that live across basic blocks.

A vector register is an array of 32 elements, one per lane, processed in strips of eight lanes. A
predicate is one bit per lane in a 32-bit word.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 32
STRIPS = 4
STRIP_LANES = 8
ALL_LANES = (1 << LANES) - 1


def vector_bytes(bits: int) -> int:
    """Bytes reserved for a vector register; 8- and 16-bit ones take as much as 32-bit ones."""
    return LANES * max(32, bits) // 8


def words(*names: str) -> dict[str, int]:
    """Byte offsets of consecutive 64-bit fields."""
    return {name: 8 * index for index, name in enumerate(names)}


# Where generic addresses of shared and local memory begin, far from any host address.
WINDOWS = {"shared": 1 << 60, "local": 1 << 61}
WINDOW_BYTES = 1 << 32

# 64-bit fields of a worker. Sizes are in bytes, block and grid coordinates in blocks, `threads_*`
# is the block's shape.
WORKER = words(
    *("warp_function", "operation", "parameters", "globals", "scratch"),
    # Shared memory from address 0; the block's own part begins at `shared_base`.
    *("shared", "shared_base", "shared_bytes", "static_shared_bytes"),
    # The size of a thread's local memory, and the distance between those of two threads.
    *("local", "local_bytes", "local_stride"),
    # Allocations as (first byte, size), sorted.
    *("regions", "region_count"),
    *("warps", "warp_count", "warp_bytes"),
    # The next block is taken from a counter that all workers share.
    *("next_block", "block_limit", "block", "running", "exit_block", "ended", "cleared_bytes"),
    *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"),
    *("threads_x", "threads_y", "threads_z"),
    # Loop iterations left before control returns to Python, weighted by their length.
    *("fuel", "turn_cost", "turn"),
    # The fuel of the whole share, and what the turn of a warp that the last share has interrupted
    # has spent.
    *("share", "spent_in_turn"),
    *("fault", "fault_site", "fault_address", "fault_lane"),
    # The sanitizers' shadow memory, and the number of patterns built so far.
    *("shadow", "patterns"),
    # The order of the warps' turns; the seed that shuffles it, 0 for none; the generator's state.
    *("warp_order", "order_seed", "order_state"),
    # How many asynchronous copies of the block have not taken effect.
    "in_flight",
    # The cluster: where each block's shared memory begins on the host, how many blocks there are,
    # the rank of this one, the cluster's shape, and whether the launch or the kernel names one.
    *("peers", "cluster_blocks", "cluster_rank"),
    *("cluster_x", "cluster_y", "cluster_z", "explicit_cluster"),
    # The first block of the cluster: the sanitizers compare accesses to global memory by cluster.
    "cluster_start",
    # For each address of an mbarrier, the bytes that `expect_tx` has announced in its current
    # phase.
    "announced",
    # Whether Python executes all asynchronous instructions.
    "through_python",
    # The block that follows a schedule or is recorded, the warp that may run at its start and now
    # (`HOLD`, `FREE` and `RECORDED` are others), and the function to call where a warp could stop.
    *("scheduled_block", "first_chosen", "chosen", "stop_function"),
)
# Values of `chosen`: no warp may run; all may; all may, and Python is called.
HOLD, FREE, RECORDED = 1 << 20, -1, -2
# Barriers follow the fields. Each holds the warps that have arrived, the warps expected (0: all),
# and the sum of the warps' votes in a reduction.
BARRIERS = 16
BARRIER_VOTES = 16
BARRIER_BYTES = 32
WORKER_BARRIERS = 512
# A pattern without active lanes follows, then the counters.
NO_PATTERN = WORKER_BARRIERS + BARRIERS * BARRIER_BYTES

# The record of a memory instruction: the region that it accessed last, and its counts: sectors of
# global and local memory, the fewest possible sectors, tag-stage wavefronts beyond one per request;
# wavefronts and conflicts of shared memory. `counts_as` says how a shared access counts: its low
# half selects one of a pattern's counts, its high half holds the bytes per lane and, in one bit,
# whether an address may be in the shared memory of another block of the cluster. cp.async adds: the
# bytes copied if it has a source size, and the counts of a request, with the serial numbers of the
# two patterns that have these counts. Other accesses count there what they do in the shared memory
# of other blocks of the cluster.
SITE = words(
    *("region", "region_bytes", "sectors", "ideal_sectors", "wavefronts", "conflicts"),
    *("more_tags", "counts_as"),
    *("bytes_copied", "copied_again", "copy_wavefronts", "copy_conflicts"),
    *("copied_to", "copied_from"),
    # For the sanitizers: the range of shared memory that the instruction may access.
    *("shared_start", "shared_size"),
)
SITE |= {"peer_requests": SITE["copy_wavefronts"], "peer_sectors": SITE["copy_conflicts"]}
SITE_BYTES = 128
REACHES_PEERS = 1 << 48


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Offsets in a pattern: the lanes' addresses relative to each other, and what follows from
    them.

    `offsets` are the lanes' distances from the first active lane's address, 0 in inactive lanes,
    and `narrow` their low 32 bits. `least` is their minimum, `extent` the maximum minus the
    minimum, `bits` all of them or-ed. `base` is the first active lane's address at the last lookup.
    A strip whose active lanes access whole words within 32 bytes is read as one vector at
    `strip_least` and permuted by `order`. `sectors` and `wavefronts` cache the counts for each
    access size and alignment, `tags` the tag-stage wavefronts for a base address that shares no bit
    with the offsets; base addresses from `tags_from` on take as many as `tags_within` says above
    its low byte, and the low byte says how far on. `serial` is unique to the pattern.

    For the sanitizers, `starts` holds where the accesses begin, as pairs of 64-bit words: a
    distance from `least` in granules, and a set of the 48 granules from there. `start_pairs` is the
    number of pairs, 0 if they are not computed yet. `overlaps` says whether several lanes access
    the same address.
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


# Where the counts of accesses begin that follow the rule of stores.
STORE_WAVEFRONTS = PATTERN.wavefronts + 8 * 16


def counted_wavefronts(nbytes: int, *, store: bool) -> int:
    """The offset in a pattern of the count for an access of 4, 8, 16 or 32 bytes per lane."""
    index = {4: 1, 8: 8, 16: 9, 32: 10}[nbytes]
    return (STORE_WAVEFRONTS if store else PATTERN.wavefronts) + 8 * index


WORKER_COUNTERS = NO_PATTERN + PATTERN.size
# The counter of a basic block: executions, and active lanes summed over them. Of an instruction
# that may act in fewer lanes than its block: executions with an active lane (of a branch:
# executions in which lanes diverged), and active lanes.
COUNTER_BYTES = 16
# The counts of a bulk copy, `st.async` or `red.async`: requests of warps, and sectors.
TRANSFER = words("requests", "sectors")
TRANSFER_BYTES = 16
# Ways of the pattern cache of one address in the code.
PATTERN_WAYS = 8
# Flags of a pattern: every strip fits a window; all lanes are active at consecutive words; all
# lanes are active at addresses that do not decrease.
WINDOWS_FIT = 1
LINEAR = 2
RISING = 4

# 32-bit fields of a warp. `reconvergence` is the block where the running lanes wait for others,
# `depth` the height of the stack of waiting lanes, `initial` the lanes that exist, `votes` the
# warp's contribution to a reduction at a barrier and, once that is complete, the sum of all.
# `verdict` says how a warp continues after an instruction that waits for an mbarrier, `waits` who
# knows what it waits for; if native code does, all lanes that run wait for the phase `awaited`: the
# mbarrier's address and, in the lowest bit, the parity. For wgmma: how many the warp has issued,
# how many groups it has committed, with how many wgmma each of the last eight ended, and how many
# its warpgroup must have issued before it goes on, 0 if it does not wait for that.
GROUPS_KEPT = 8
_ENDS_OF_GROUPS = [f"product_group{number}" for number in range(GROUPS_KEPT)]
PRODUCTS = ("products", "product_groups", *_ENDS_OF_GROUPS, "products_awaited")
WARP = {
    name: 4 * index
    for index, name in enumerate(
        (
            *("block", "mask", "exited", "reconvergence", "depth", "status", "index", "initial"),
            *("barrier", "barrier_warps", "instruction", "votes", "verdict", "waits"),
            "awaited",
            *PRODUCTS,
        )
    )
}
# An entry of the stack: the block where its lanes continue, where they reconverge, and the lanes.
STACK = 128
STACK_ENTRY = 16
STACK_ENTRIES = 64
WARP_REGISTERS = STACK + STACK_ENTRY * STACK_ENTRIES

# The results of a warp function, and a warp's `status`; a warp is parked while another is chosen.
# At products it waits until the other warps of its warpgroup have issued their part of its wgmma.
RUNNING, AT_BARRIER, DONE, PAUSED, TRAPPED, AT_PHASE, PARKED, AT_PRODUCTS, POLLED = range(9)

# Verdicts: continue with the result; continue with other lanes, at the warp's `block`; wait.
ANSWERED, TURNED, HELD = range(3)

# Values of `waits`: nobody waits for a phase; all lanes that run do; Python knows.
WAITS_NATIVELY, WAITS_IN_PYTHON = 1, 2

# The results of the function that runs blocks.
FINISHED, OUT_OF_FUEL, FAULTED, STUCK, TRAP, IN_FLIGHT = range(6)

# Kinds of fault.
OUT_OF_BOUNDS, MISALIGNED, FAILED_OPERATION = 1, 2, 3
