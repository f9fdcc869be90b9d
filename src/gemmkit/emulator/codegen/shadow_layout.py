"""Where the sanitizers keep what they know of memory, shared by native code and Python.

Shared memory is divided into granules, as large as the smallest access of the kernel, and bitmaps
hold one bit a granule, 64 in a word. An epoch lasts from one barrier of the whole block to the
next: accesses in different epochs cannot race.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import LANES, words

# 64-bit fields of a worker's shadow.
SHADOW = words(
    # log2 of the bytes of a granule of shared memory; words of its bitmaps.
    *("granule_shift", "words"),
    # Bitmaps of the block, bitmaps of each warp, and the running warp's.
    *("common", "warps", "warp_bytes", "own", "own_tag"),
    # The accesses to shared memory of late, in a ring; how many there were, also when the epoch
    # began; the number of the epoch, which no other of this worker has.
    *("log", "log_count", "log_epoch", "epoch"),
    # Records of memory instructions, beside those of the worker, and the function to tell Python.
    *("sites", "event"),
    # What is known of each region of global memory, and log2 of the bytes of its granules.
    *("rows", "global_shift"),
    # A clock that barriers and fences move on, what it showed after the block's last barrier, and
    # the fences so far. Of some of the warps that were met, of this block or others, up to when
    # what they did is known to come before what the running warp does: `KNOWN_WARPS` pairs of the
    # warp's bits of an actor and the time, each in the place that these bits choose.
    *("time", "barrier_time", "fences", "known"),
    # For each granule of shared memory, the copy by cp.async that was last sent there.
    "copies",
    # Where barriers hold back a part of the block: for each warp and each barrier what it does not
    # know of each warp, as bitmaps like a warp's own, and up to when it knows what each warp did.
    # Else null.
    *("pairs", "clocks"),
    # Of a store that is about to be made: the registers and the bits of each of their elements.
    *("data0", "data1", "data2", "data3", "data_bits"),
    # Of an access to global memory that meets another one of its block: the other's actor and time.
    *("conflict", "met_time"),
    # Where undefined bits are tracked: of each thread's local memory the bits that are defined.
    "local_defined",
)
DATA = tuple(f"data{place}" for place in range(4))

# A word of the block's bitmaps: granules written in this epoch; ever written; to be looked at
# closely, since a copy is on its way there or atomics of several warps have met; written by
# atomics only.
COMMON = words("written", "initialized", "alarm", "atomic")
COMMON_BYTES = 32

# A warp's shadow: the place in the log where its lanes were last in step, copies by cp.async on
# their way, the place in the log where the last of them landed, groups of copies that each lane
# has closed (32 bits each), the time on the clock when its lanes were last in step, the place in
# the log where a part of them was. Then its bitmaps.
OWN = words("in_step", "copies", "copy_queue", "landed") | {
    "groups": 32,
    "step_time": 160,
    "in_part": 168,
}
OWN_BITMAPS = 192
# A word of a warp's bitmaps: granules read and written in this epoch.
OWN_READ, OWN_WRITTEN, OWN_WORD_BYTES = 0, 8, 16

# An entry of the log: the pattern, its base address and serial number, and a tag that holds the
# record's place in the worker (32 bits), the warp (8), the bytes of each lane (8) and the kind.
LOG_ENTRY = words("pattern", "base", "serial", "tag")
LOG_ENTRY_BYTES = 32
LOG_ENTRIES = 1 << 14
TAG_WARP, TAG_BYTES, TAG_KIND = 32, 40, 48
LOADED, STORED, UPDATED = range(3)
# No access: the lanes in `base` were in step.
IN_STEP = 3
# How far back accesses of the same warp are compared, lane with lane.
LOOK_BACK = 64

# A copy on its way: its lanes (bits), bytes of each, its instruction; for each lane the group, the
# place in shared memory, and the data.
COPY = words("lanes", "bytes", "site") | {
    "groups": 32,
    "places": 32 + 4 * LANES,
    "data": 32 + 8 * LANES,
}
COPY_BYTES = 32 + 8 * LANES + 16 * LANES
# Copies of one warp on their way; beyond that the oldest lands early.
COPY_QUEUE = 256
# Of the last copy to a granule: record's place in the worker (32 bits), warp and lane, and the
# lowest bits of the epoch in which it landed.
COPY_SITE, COPY_THREAD, COPY_EPOCH_BITS = 32, 16, 16

# What goes wrong at a memory instruction, each with a record of its own in which native code keeps
# from telling Python too often: the epoch and block of the last time, times told in that block,
# times not told.
BOUNDS, UNINITIALIZED, RACE, LANES_RACE, GLOBAL_RACE = range(5)
CLASSES = 5
REPORTED = words("epoch", "block", "times", "unreported")
REPORT_BYTES = 32
REPORTS_PER_BLOCK = 2
# Among what native code tells of two lanes: they store at the same time.
SAME_STORE = 1 << 15
# The other has brought by cp.async what this one reads.
COPIED = 1 << 14
# Behind those, the row of the region that the instruction touched last, the region's address,
# whether its accesses may meet those of other blocks (and are not noted for that), whether they may
# meet those of their own block, whether it loads what must not be written during the launch, and
# whether it is an atomic that reads nothing.
SHADOW_SITE = {
    name: CLASSES * REPORT_BYTES + place
    for name, place in words(
        "row", "region", "strong", "strong_in_block", "nc", "overwrites"
    ).items()
}
SHADOW_SITE_BYTES = 256

# What goes wrong beside memory accesses.
BARRIER_DIVERGENT, BARRIER_SITES, BARRIER_COUNT, BARRIER_NUMBER, MEMBERS, WARP_BARRIER = range(
    CLASSES, CLASSES + 6
)
# No fault: blocks may meet in a region whose loads must be noted for that from the start.
LOADS_WANTED = CLASSES + 6
# No faults: a fence, a strong access that may order blocks.
FENCE, SYNCHRONIZES = CLASSES + 7, CLASSES + 8
# An access meets another block's: that of the last plain writer, or, if so marked, of the last
# plain reader or the last strong writer, and the running thread from this bit on. The answer that
# the other one came before.
CONFLICT, AGAINST_READER, AGAINST_STRONG, CONFLICT_THREAD, IN_ORDER = CLASSES + 9, 1, 2, 2, 2

# A region of global memory: its bytes that were written (one byte each) or null where all were;
# for each granule the last and the first block that stored to it, and that loaded it, or, where
# blocks make an order among themselves, the last and when; whether the launch loaded or stored at
# all. For what happens within a block, of each granule: who wrote it last, who read it last, and
# who read it last of another warp than that (or, for want of one, of the same), each with the time,
# whose lowest bit says that the access was strong.
ROW = words(
    *("written", "last_writer", "first_writer", "last_reader", "first_reader", "loaded", "stored"),
    *("start", "writer_time", "reader_time"),
    *("writer", "writer_at", "reader", "reader_at", "other_reader", "other_reader_at"),
    # For each granule the last read-only load of it.
    "nc_reader",
    # Where blocks run one by one and some access memory strongly, as atomics do: of each granule
    # the last strong write and its time, and the last strong access of any kind.
    *("last_strong", "strong_time", "seen_strong"),
)
ROW_BYTES = 192
KNOWN_WARPS = 64
# A granule's writer or reader: the block plus one, the record's place among the instructions, the
# thread. The first one's bits are inverted, so that the larger number stands for it too.
ACTOR_BLOCK, ACTOR_SITE = 32, 10
ACTOR_WARP = (1 << ACTOR_SITE) - LANES
# Bits that are not defined are used: by a guard, an address, the second one, or a source and those
# that follow, in what stands beside the instruction's number.
USED, USED_SHIFT = CLASSES + 20, 32
# A shuffle reads from a lane that does not take part: beside the lanes that do, its number.
ABSENT = USED + 1
# Bits that are not defined are stored to shared or local memory, which is no use of them.
KEPT = USED + 2
USED_GUARD, USED_ADDRESS, USED_SOURCE = 0, 1, 3
