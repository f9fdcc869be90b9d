"""The layout of the sanitizers' shadow memory, shared by native code and Python.

Shared memory is divided into granules, each as large as the kernel's smallest access. Bitmaps hold
one bit per granule, 64 to a word. An epoch lasts from one barrier of the whole block to the next:
accesses in different epochs cannot race.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import LANES, words

# 64-bit fields of a worker's shadow.
SHADOW = words(
    # log2 of the bytes per granule of shared memory; words of its bitmaps.
    *("granule_shift", "words"),
    # The bitmaps of the block, of each warp, and of the running warp.
    *("common", "warps", "warp_bytes", "own", "own_tag"),
    # A circular buffer of recent accesses to shared memory; the number of accesses so far, and at
    # the start of the epoch; the epoch's number, unique within the worker.
    *("log", "log_count", "log_epoch", "epoch"),
    # The sanitizers' records of memory instructions, and the function that reports to Python.
    *("sites", "event"),
    # The rows of all regions of global memory, and log2 of the bytes per granule.
    *("rows", "global_shift"),
    # A clock that barriers and fences advance, its time at the block's last barrier, and the number
    # of fences so far. `known` is a direct-mapped table of `KNOWN_WARPS` pairs: the warp bits of an
    # actor, of this block or another, and the time up to which its accesses are known to precede
    # the running warp's.
    *("time", "barrier_time", "fences", "known"),
    # For each granule of shared memory, the last cp.async issued to it, and where the log ended
    # when it last landed; in asynchronous kernels, the open group of each warp's copies, see
    # `sanitizer.clocks`.
    *("copies", "landed_at", "open_groups"),
    # If barriers synchronize a part of the block: for each warp and each barrier, bitmaps of the
    # accesses of each warp that it is not ordered after, and the time up to which it is. Else null.
    *("pairs", "clocks"),
    # The registers of a store that is about to be performed, and the bits per element.
    *("data0", "data1", "data2", "data3", "data_bits"),
    # The actor and time of the conflicting access of the same block.
    *("conflict", "conflict_time"),
    # If undefined bits are tracked: the defined bits of each thread's local memory.
    "local_defined",
    # Whether barriers, copies and fences are reported to Python, since the kernel uses mbarriers
    # or bulk copies.
    "asynchronous",
    # The last instruction by which a warp arrived at a barrier.
    "arriving",
    # How many patterns had been built when Python last looked at the log.
    "patterns_seen",
    # The wgmma that native code may enter into the log; null before the first.
    "products",
    # The lanes of a warp that have to wait for earlier launches, all or none, and how often warps
    # have executed `griddepcontrol.wait`.
    *("awaits", "launch_waits"),
    # If flags in shared memory may order warps: for each granule the time of the first write in the
    # block, and who made it, as `FIRST_SITE` says. Else null.
    *("first_times", "first_writers"),
)
DATA = tuple(f"data{index}" for index in range(4))

# A word of the block's bitmaps: granules written in this epoch; ever written; to be checked by
# Python, because a copy to them is in flight or atomics of several warps have accessed them;
# written by atomics only.
COMMON = words("written", "initialized", "alarm", "atomic")
COMMON_BYTES = 32

# A warp's shadow: the position in the log at which its lanes were last in step, the number of its
# cp.async copies in flight and their queue, the position at which the last of them landed, the
# number of copy groups that each lane has committed (32 bits each), the time at which its lanes
# were last in step, and the position at which some of them were; the position in the log of its
# last access, whether Python has to see its arrivals, the position at which it last executed a
# fence, if flags may order its lanes, the time at which some of its lanes were last in step, and
# how often all or some were, and whether Python has to see that; the lanes that are not known to
# come after a `griddepcontrol.wait`, and the time of the warp's first one. Then its bitmaps.
OWN = words("in_step", "copies", "copy_queue", "landed") | {
    "groups": 32,
    "step_time": 160,
    "in_part": 168,
    "last_access": 176,
    "arrives_in_python": 184,
    "fenced": 192,
    "part_time": 200,
    "steps": 208,
    "steps_watched": 216,
    "ahead": 224,
    "launch_wait": 232,
}
OWN_BITMAPS = 240
# A word of a warp's bitmaps: granules read and written in this epoch.
OWN_READ, OWN_WRITTEN, OWN_WORD_BYTES = 0, 8, 16

# An entry of the log: the pattern, its base address and serial number, and a tag with the record's
# offset in the worker (32 bits), the warp (8), the bytes per lane (8) and the kind.
LOG_ENTRY = words("pattern", "base", "serial", "tag")
LOG_ENTRY_BYTES = 32
LOG_ENTRIES = 1 << 14
TAG_WARP, TAG_BYTES, TAG_KIND = 32, 40, 48
LOADED, STORED, UPDATED = range(3)
# Not an access: the lanes in `base` were in step.
IN_STEP = 3
# The issue of cp.async copies, which is recorded in asynchronous kernels only.
SENT = 4
# Not accesses: a lane of the warp uses the mbarrier at `base`, arrives there as well, or observes
# that a phase is complete; above LOGGED_TIME bits of `base` is the time. `pattern` holds the
# instruction's number and, above 32 bits, the lane; the tag's lowest bit says that this completes a
# phase.
USED_BARRIER, ARRIVED, OBSERVED = 5, 6, 7
LOGGED_TIME = 32
# Not accesses of a site: a warp executes the wgmma whose record, see `PRODUCT`, is at `pattern`; it
# commits its open group of wgmma at the time `base`, or has waited until at most `base` groups are
# in flight.
MULTIPLIED, GROUPED, WAITED = 8, 9, 10
# The table by which native code compares the accesses in the log with earlier ones: the numbers of
# the instructions by their records, where these begin, the bytes of a worker, a flag for each
# instruction whose accesses do not race with each other; the last write of each granule (16, 32 and
# 64 bits), a flag for those of mbarriers, by actor the arrays for the last reads, and a list of the
# actors that have some; the warps' clocks, the bytes of each and of one of its rows, the open
# groups of their copies, and the number that the first warp of the block has among them. For wgmma:
# the block, the first block that was seen to execute each instruction; by warp of the block, what
# it has executed (see `EXECUTED`), the actor
# that stands for its wgmma, or −1, its open group, and a row for each of the last `GROUPS_KEPT`
# groups: what is earlier than its commit. For mbarriers: by address, where they are (see
# `MBARRIER`) or null; a flag for each instruction with relaxed semantics.
COMPARISON = words(
    *("numbers", "sites_at", "worker_bytes", "strong"),
    *("granules", "writer", "time", "who", "marks"),
    *("read_times", "read_whos", "readers", "reader_list"),
    *("clocks", "clock_bytes", "row_bytes", "groups", "warps", "copies_from", "first_warp"),
    *("block", "first_blocks", "executed", "product_actors", "product_groups", "product_causes"),
    *("mbarriers", "relaxed"),
    # A flag for each instruction that arrives for cp.async copies, and by warp the last group of
    # which all have arrived so.
    *("for_copies", "arrived_groups"),
    # Whether Python has to see all wgmma: ordinary stores of other blocks have reached the block's
    # shared memory, or lanes were not in step when others handed over what they accessed.
    "reached",
    # Where it stopped, and why: a conflict's granule (or −1), both parties, the other's actor and
    # whether that wrote; a granule of an mbarrier (or −1) that was accessed, and by whom.
    *("next", "granule", "by", "other", "other_actor", "wrote", "marked", "marked_by"),
    # The warp whose turn it is, and what was reported in this turn.
    *("turn_of", "reports", "reported"),
)
REPORTED_PAIRS = 64
COMPARISON_BYTES = 8 * len(COMPARISON) + 16 * REPORTED_PAIRS
# Why it stops before the end.
TOLD, SUSPICIOUS, READS_WANTED = 1, 2, 3
# How many accesses of the same warp are compared, lane by lane.
LOOK_BACK = 64

# A wgmma of a warp that Python found valid: a key, which is never 0, of the instruction and the
# warp's rank in its warpgroup; the descriptors of A, or 0, and of B; the granules that it reads,
# and how many; the same as pairs, a word of a bitmap and the bits there; what it is told from
# others by, its rank apart; the instruction's number; the first granules of strips, see
# `runtime.granules`, and how many, or 0 if they are no strips. A hash leads to the first of the
# `PRODUCT_PROBES` places in a table where it may be.
PRODUCT = words(
    *("key", "left", "right", "granules", "granule_count", "words", "word_count"),
    *("identity", "number", "strips", "strip_count"),
)
PRODUCT_BYTES = 8 * len(PRODUCT)
PRODUCTS_LOG2, PRODUCT_PROBES = 11, 8
PRODUCT_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)
# What a warp has executed of one kind of instruction: an array of identities, how many are there,
# and for how many it has room.
EXECUTED = words("identities", "count", "room")
EXECUTED_BYTES = 24

# The rows of a clock, see `sanitizer.clocks`.
ORDERED, VISIBLE, INITIALIZED, CAUSED, VISIBLE_GLOBAL, VISIBLE_IN_CLUSTER = range(CLOCK_ROWS := 6)
# An mbarrier: the warp that initialized it, and its time then; the clocks of those that arrive and
# of the complete phases; how many phases are complete, and how many copies issued to it have not
# arrived; the actor that stands for its copies, or −1. Then the observations of the last complete
# phase, in order, and how many: a warp as the clocks count it, its time, and the party; and the
# row `CAUSED` of the complete phases but the last.
MBARRIER = words(
    *("warp", "time", "arriving", "complete", "phases", "missing", "actor"),
    *("observations", "observed", "before"),
)
OBSERVATION = words("warp", "time", "who")
OBSERVATION_BYTES = 24

# A copy in flight: its lanes (bits), bytes per lane and instruction, and in asynchronous kernels
# the group of its warp; for each lane the group, the target in shared memory, and the data.
COPY = words("lanes", "bytes", "site", "time") | {
    "groups": 32,
    "targets": 32 + 4 * LANES,
    "data": 32 + 8 * LANES,
}
COPY_BYTES = 32 + 8 * LANES + 16 * LANES
# The most copies in flight per warp; beyond that the oldest lands early.
COPY_QUEUE = 256
# A wait for all copies, and one on behalf of an mbarrier: the lanes themselves go on. What Python
# is told of a wait has, above WAIT_OLDEST bits, the group of the oldest copy left in flight, or
# NOTHING_LEFT.
WAITS_FOR_ALL, ARRIVES_FOR_ALL, WAIT_OLDEST, NOTHING_LEFT = -1, -2, 32, (1 << 31) - 1
# The last copy to a granule: the record's offset in the worker (32 bits), warp and lane, and the
# low bits of the epoch in which it landed.
COPY_SITE, COPY_THREAD, COPY_EPOCH_BITS = 32, 16, 16

# Classes of faults at a memory instruction. Each has a record that limits how often native code
# reports to Python: epoch and block of the last report, reports in that block, and faults not
# reported.
BOUNDS, UNINITIALIZED, RACE, LANES_RACE, GLOBAL_RACE = range(5)
CLASSES = 5
REPORTED = words("epoch", "block", "times", "unreported")
REPORT_BYTES = 32
REPORTS_PER_BLOCK = 2
# Flags in reports about two lanes: they store at the same time;
SAME_STORE = 1 << 15
# the other lane's cp.async wrote what this one reads.
COPIED = 1 << 14
# After those: the row of the region that the instruction accessed last, the region's address,
# whether its accesses may conflict with other blocks without a race (and are not recorded for
# that), the same for its own block, whether it is a read-only load, and whether it is an atomic
# that reads nothing.
SHADOW_SITE = {
    name: CLASSES * REPORT_BYTES + index
    for name, index in words(
        "row", "region", "strong", "strong_in_block", "data", "nc", "overwrites"
    ).items()
}
SHADOW_SITE_BYTES = 256

# Faults that are not those of a memory access.
BARRIER_DIVERGENT, BARRIER_SITES, BARRIER_COUNT, BARRIER_NUMBER, MEMBERS, WARP_BARRIER = range(
    CLASSES, CLASSES + 6
)
# Warps arrive at one barrier for different numbers of threads.
BARRIER_DIFFERS = CLASSES + 10
# Not a fault: a region may have cross-block races, and its loads must be recorded from the start.
LOADS_WANTED = CLASSES + 6
# Not faults: a fence, and a strong access that may order blocks.
FENCE, SYNCHRONIZES = CLASSES + 7, CLASSES + 8
# An access conflicts with another block's: with that of the last plain writer or, if so marked, of
# the last plain reader or the last strong writer. The running thread is in the bits from
# CONFLICT_THREAD on. IN_ORDER is the answer that the other access came first.
CONFLICT, AGAINST_READER, AGAINST_STRONG, CONFLICT_THREAD, IN_ORDER = CLASSES + 9, 1, 2, 2, 2

# The row of a region of global memory: which bytes were written (one byte each), or null if all
# were. For each granule the last and the first block that stored to it and that loaded it or, if
# blocks synchronize with each other, the last access and its time. Whether the launch loaded or
# stored at all. For races within a block, for each granule: the last writer, the last reader, and
# the last reader of another warp (or else of the same), each with a time whose lowest bit says that
# the access was strong.
ROW = words(
    *("written", "last_writer", "first_writer", "last_reader", "first_reader", "loaded", "stored"),
    *("start", "writer_time", "reader_time"),
    *("writer", "writer_at", "reader", "reader_at", "other_reader", "other_reader_at"),
    # For each granule the last read-only load.
    "nc_reader",
    # If blocks run one at a time and some accesses are strong, as atomics are, for each granule:
    # the last strong write and its time, and the last strong access of any kind.
    *("last_strong", "strong_time", "seen_strong"),
)
ROW_BYTES = 192
KNOWN_WARPS = 64
# An actor, the writer or reader of a granule: the block plus one, or the first block of its cluster
# and the rank there, the record's index among the instructions, the thread. For the first actor the
# bits are inverted, so that it too is a maximum.
ACTOR_BLOCK, ACTOR_RANK, ACTOR_SITE = 32, 28, 10
ACTOR_WARP = (1 << ACTOR_SITE) - LANES
ACTOR_RANKS = (1 << ACTOR_BLOCK) - (1 << ACTOR_RANK)
# A bulk copy has no record; its index has this bit, so that its actor has ACTOR_COPY. The time of a
# copy in flight is later than all others.
COPY_PLACE = 1 << 17
ACTOR_COPY = COPY_PLACE << ACTOR_SITE
IN_FLIGHT_TIME = 1 << 61
# What a fence says of its scope: it orders other blocks too, only its own, or those of its cluster.
SCOPES = {"": 0, "block": 1, "cluster": 2}
# Undefined bits are used by a guard, by the first or second address, or by a source and those after
# it; this is in the bits above the instruction's number.
USED, USED_SHIFT = CLASSES + 20, 32
# A shuffle reads from a lane that does not participate; its index is beside the lanes that do.
ABSENT = USED + 1
# Undefined bits are stored to shared or local memory, which is not a use.
KEPT = USED + 2
USED_GUARD, USED_ADDRESS, USED_SOURCE = 0, 1, 3
# Not faults, in asynchronous kernels: the running warp arrives at a barrier, which opens; it
# commits a group of copies, or waits until so many are in flight; it executes a fence of a kind.
# Python should look at the log. A block begins.
ARRIVES, OPENS, COMMITS, WAITS, FENCES, LOOKS, BEGINS = range(CLASSES + 30, CLASSES + 37)
# Where a fence's record holds its lanes and the instruction's number, above its kind.
FENCE_LANES, FENCE_NUMBER = 8, 40
# The kinds of fences: `fence.proxy.async`, or only for the shared memory of the block or of the
# cluster, or for global memory, `fence.mbarrier_init`, any other.
(
    OTHER_FENCE,
    PROXY_FENCE,
    INIT_FENCE,
    SHARED_PROXY_FENCE,
    GLOBAL_PROXY_FENCE,
    CLUSTER_PROXY_FENCE,
) = range(6)
# Not a fault: lanes (a mask) are about to access other blocks' shared memory, so many bytes each.
REACHES = CLASSES + 37
REACHED_BYTES, REACHED_KIND = 32, 40
# Lanes (a mask) access global memory, and are not known to come after a `griddepcontrol.wait`.
AHEAD_OF_WAIT = CLASSES + 38
# A strong access of the running thread (in the bits above the granule's) reads a granule that
# another warp has written first, with no barrier between.
FIRST_WRITE, FIRST_THREAD = CLASSES + 39, 32
# The first writer of a granule: the thread of the block and, above it, the record's offset in the
# worker.
FIRST_SITE = 10
