"""The shadow memory in which native code records accesses for the sanitizers."""

from __future__ import annotations

import ctypes
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import BARRIERS, LANES, PATTERN, SITE_BYTES, WINDOWS, WORKER
from gemmkit.emulator.codegen.shadow_layout import (
    COMMON,
    COPY_BYTES,
    COPY_QUEUE,
    COPY_SITE,
    COPY_THREAD,
    FIRST_SITE,
    KNOWN_WARPS,
    LOG_ENTRIES,
    LOG_ENTRY,
    OWN,
    OWN_BITMAPS,
    OWN_WORD_BYTES,
    REPORT_BYTES,
    REPORTED,
    SHADOW,
    SHADOW_SITE_BYTES,
)
from gemmkit.emulator.machine.memory import aligned_bytes
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.traits import Traits

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]

# (class, memory record, pattern, base address or instruction, more) -> 1 if something is wrong
Event = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)

_LANE = np.arange(LANES)
_ALL = np.uint64((1 << 64) - 1)


class Pattern:
    """The addresses of a warp relative to each other, read from native code's memory."""

    def __init__(self, address: int) -> None:
        raw = np.frombuffer(ctypes.string_at(address, PATTERN.size), np.uint8)
        self.offsets: Numbers = raw[PATTERN.offsets :][: 8 * LANES].view(np.int64).copy()
        mask = int(raw[PATTERN.mask :][:4].view(np.uint32)[0])
        self.lanes: Numbers = np.flatnonzero(mask >> _LANE & 1)
        self.serial = int(raw[PATTERN.serial :][:8].view(np.int64)[0])


class BlockShadow:
    """The shadow of one worker's block: shared memory, warps, recent accesses."""

    def __init__(self, worker: Worker, traits: Traits, known: GlobalShadow, event: object) -> None:
        self.traits = traits
        self.granule = granule = traits.shared_granule
        self.shift = granule.bit_length() - 1
        granules = max(-(-worker.shared_end // granule), 1)
        # One more word, which an access across the end of a word may touch.
        self.words = -(-granules // 64) + 1
        self._header = aligned_bytes(8 * len(SHADOW)).view(np.int64)
        self.common: Words = aligned_bytes(self.words * 8 * len(COMMON)).view(np.uint64)
        self.common = self.common.reshape(self.words, len(COMMON))
        size = -(-(OWN_BITMAPS + self.words * OWN_WORD_BYTES) // 64) * 64
        self._warps = aligned_bytes(worker.warps * size).reshape(worker.warps, size)
        self.log: Numbers = aligned_bytes(LOG_ENTRIES * 8 * len(LOG_ENTRY)).view(np.int64)
        self.log = self.log.reshape(LOG_ENTRIES, len(LOG_ENTRY))
        self.copies: Words = np.zeros(granules, np.uint64)
        self.landed_at: Numbers = np.zeros(granules, np.int64)
        # Of the first write to each granule in a block: the time, and who made it.
        firsts = granules if traits.flags_order_warps else 0
        self._first_times: Numbers = np.zeros(firsts, np.int64)
        self._first_writers: Numbers = np.zeros(firsts, np.int64)
        self._queues = aligned_bytes(worker.warps * COPY_QUEUE * COPY_BYTES * traits.copies)
        queues = self._warps[:, OWN["copy_queue"] :][:, :8].view(np.int64)
        queues[:, 0] = self._queues.ctypes.data + np.arange(worker.warps) * COPY_QUEUE * COPY_BYTES
        scale = SHADOW_SITE_BYTES // SITE_BYTES
        # For each warp, then for each barrier, the accesses of each warp that it is not ordered
        # after.
        shape = (worker.warps + BARRIERS, worker.warps, self.words, OWN_WORD_BYTES // 8)
        self._pairs: Words | None = None
        if traits.partial_barriers:
            flat = aligned_bytes(8 * int(np.prod(shape))).view(np.uint64)
            self._pairs = flat.reshape(shape)
        self._clocks: Numbers = np.zeros((worker.warps + BARRIERS, worker.warps), np.int64)
        self._known: Numbers = np.zeros(2 * KNOWN_WARPS, np.int64)
        tracks = worker.kernel.compiled.tracks
        self._local = aligned_bytes(len(worker.local)) if tracks else None
        self._sites = aligned_bytes(traits.sites.size)
        self._sites[:] = traits.sites.reshape(-1)
        values = {
            "granule_shift": self.shift,
            "words": self.words,
            "common": self.common.ctypes.data,
            "warps": self._warps.ctypes.data,
            "warp_bytes": size,
            "log": self.log.ctypes.data,
            # Native code counts from the worker's start, not from its first record.
            "sites": self._sites.ctypes.data - scale * worker.kernel.areas.sites_start,
            "event": ctypes.cast(event, ctypes.c_void_p).value or 0,  # type: ignore[arg-type]
            "rows": known.rows.ctypes.data,
            "global_shift": known.granule.bit_length() - 1,
            "known": self._known.ctypes.data,
            "copies": self.copies.ctypes.data,
            "landed_at": self.landed_at.ctypes.data,
            "pairs": self._pairs.ctypes.data if self._pairs is not None else 0,
            "clocks": self._clocks.ctypes.data if self._pairs is not None else 0,
            "local_defined": self._local.ctypes.data if self._local is not None else 0,
            "asynchronous": traits.asynchronous,
            "first_times": self._first_times.ctypes.data if firsts else 0,
            "first_writers": self._first_writers.ctypes.data if firsts else 0,
            "awaits": (1 << LANES) - 1 if traits.awaits_launches else 0,
        }
        for name, value in values.items():
            self._header[SHADOW[name] // 8] = value
        worker.fields[WORKER["shadow"] // 8] = self._header.ctypes.data

    def field(self, name: str) -> int:
        """The value of a field."""
        return int(self._header[SHADOW[name] // 8])

    def set_field(self, name: str, value: int) -> None:
        """Change a field."""
        self._header[SHADOW[name] // 8] = value

    def looked(self, patterns: int) -> None:
        """The log has been examined when so many patterns had been built."""
        self.set_field("patterns_seen", patterns)

    @property
    def by_pairs(self) -> bool:
        """Whether each pair of warps is tracked, since barriers synchronize a part of a block."""
        return self._pairs is not None

    def unordered(self, warp: int, offset: int) -> Words:
        """What a warp may race with: a bitmap of each warp's reads or writes; its own is empty."""
        if self._pairs is not None:
            return self._pairs[warp, :, :, offset // 8]
        found = self._own_bits(offset).copy()
        found[warp] = 0
        return found

    def _own_bits(self, offset: int) -> Words:
        bitmaps = self._warps[:, OWN_BITMAPS : OWN_BITMAPS + self.words * OWN_WORD_BYTES]
        words: Words = bitmaps.view(np.uint64).reshape(len(self._warps), self.words, 2)
        return words[:, :, offset // 8]

    def unwritten_local(
        self, worker: Worker, first: int, pattern: Pattern, base: int, nbytes: int
    ) -> tuple[int, int] | None:
        """The first lane that reads undefined bits of local memory, and the first such byte;
        `first` is the number of the warp's first thread."""
        assert self._local is not None
        window = WINDOWS["local"]
        stride = worker.field("local_stride")
        for lane in pattern.lanes.tolist():
            address = base + int(pattern.offsets[lane])
            inside = address - window if address >= window else address
            start = (first + lane) * stride + inside
            missing = np.flatnonzero(self._local[start : start + nbytes] != 255)
            if len(missing):
                return lane, inside + int(missing[0])
        return None

    def local_is_set(self, worker: Worker, thread: int, index: int, nbytes: int) -> bool:
        """Whether all bits of some bytes of a thread's local memory are defined."""
        assert self._local is not None
        start = thread * worker.field("local_stride") + index
        return bool((self._local[start : start + nbytes] == 255).all())

    def is_defined(self, granules: Numbers) -> NDArray[np.bool_]:
        """Whether granules of shared memory were ever written."""
        return bits_at(self.common_bits("initialized"), granules)

    def define_shared(self, granules: Numbers) -> None:
        """Granules of shared memory have been written."""
        if not len(granules):
            return
        first, end = int(granules.min()) >> 6, (int(granules.max()) >> 6) + 1
        bits = np.zeros((end - first) * 64, np.uint8)
        bits[granules - (first << 6)] = 1
        words = np.packbits(bits, bitorder="little").view("<u8")
        self.common[first:end, COMMON["initialized"] // 8] |= words

    def define_range(self, granules: range) -> None:
        """Granules of shared memory that follow each other have been written."""
        first, last = granules.start, granules.stop - 1
        words = np.full((last >> 6) - (first >> 6) + 1, _ALL)
        words[0] &= _ALL << np.uint64(first & 63)
        words[-1] &= _ALL >> np.uint64(63 - (last & 63))
        self.common[first >> 6 : (last >> 6) + 1, COMMON["initialized"] // 8] |= words

    def in_step(self, warp: int, *, waits: bool = False) -> None:
        """The lanes of a warp are in step; or (`waits`) one has waited at an mbarrier, which counts
        as that for what they did before."""
        self.now[0] += 1
        for name, value in (("in_step", self.field("log_count")), ("step_time", self.now[0])):
            self._own(warp, name)[0] = value
        self._own(warp, "steps")[0] += not waits

    def _own(self, warp: int, name: str) -> Numbers:
        return self._warps[warp, OWN[name] :][:8].view(np.int64)

    def last_step(self, warp: int) -> int:
        """Where the log ended when the lanes of a warp were last in step."""
        return int(self._own(warp, "in_step")[0])

    def step_time(self, warp: int) -> int:
        """The time at which lanes of a warp, all or some, were last in step."""
        return max(int(self._own(warp, name)[0]) for name in ("step_time", "part_time"))

    def watch_steps(self, warp: int, *, watched: bool) -> None:
        """Python has to see when lanes of a warp come in step, or no longer."""
        self._own(warp, "steps_watched")[0] = watched

    def steps(self, warp: int) -> int:
        """How often lanes of a warp, all or some, have been in step."""
        return int(self._own(warp, "steps")[0])

    def times(self, warp: int) -> tuple[int, int]:
        """The time now, and that at which lanes of a warp were last in step."""
        return int(self.now[0]), self.step_time(warp)

    def first_write(self, granule: int) -> tuple[int, int, int]:
        """The last first write to a granule in a block by an ordinary store or atomic: the thread,
        the record's offset in the worker, and the time."""
        writer = int(self._first_writers[granule])
        thread, record = writer & (1 << FIRST_SITE) - 1, writer >> FIRST_SITE
        return thread, record, int(self._first_times[granule])

    def launch_waits(self) -> list[int]:
        """For each warp, the time of its first `griddepcontrol.wait`, or 0."""
        where = OWN["launch_wait"]
        times: list[int] = self._warps[:, where : where + 8].view(np.int64)[:, 0].tolist()
        return times

    def ahead(self, warp: int) -> int:
        """The lanes of a warp (bits) that are not known to come after such a wait."""
        return int(self._own(warp, "ahead")[0])

    def has_waited(self, warp: int) -> None:
        """All lanes of a warp are known to come after one, or no more is to be said of them."""
        self._own(warp, "ahead")[0] = 0

    def barrier_between(self, warp: int, other: int, time: int) -> bool:
        """Whether a barrier of the block comes after what another warp did at a time, and before
        what a warp does now."""
        if self._pairs is not None:
            return int(self._clocks[warp, other]) > time
        return self.field("barrier_time") > time

    def last_access(self, warp: int) -> int:
        """Where it ended after the warp's last access to shared memory."""
        return int(self._own(warp, "last_access")[0])

    def last_landing(self, warp: int) -> int:
        """Where it ended after the last of the warp's cp.async copies has landed."""
        return int(self._own(warp, "landed")[0])

    def copied_by(self, granules: Numbers) -> tuple[Numbers, Numbers]:
        """Who has issued the last cp.async to each of some granules: the thread of the block, and
        where the record of the instruction is in the worker."""
        notes = self.copies[granules]
        threads = notes >> np.uint64(COPY_THREAD) & np.uint64((1 << COPY_SITE - COPY_THREAD) - 1)
        return threads.astype(np.int64), (notes >> np.uint64(COPY_SITE)).astype(np.int64)

    def forget_accesses(self, warp: int) -> None:
        """The lanes of a warp have each released what they accessed."""
        self._own(warp, "last_access")[0] = 0

    def see_arrivals(self, warps: Collection[int]) -> None:
        """Python has to see all arrivals of these warps, and not of others."""
        for warp in range(len(self._warps)):
            self._own(warp, "arrives_in_python")[0] = warp in warps

    @property
    def now(self) -> Numbers:
        """The time of the block's clock, to read and to advance."""
        return self._header[SHADOW["time"] // 8 :][:1]

    def common_bits(self, name: str) -> Words:
        """A bitmap of the block."""
        return self.common[:, COMMON[name] // 8]

    def take_unreported(self, index: int, what: int) -> int:
        """How many faults of a class at a memory record were not reported since the last call."""
        start = index * SHADOW_SITE_BYTES + what * REPORT_BYTES + REPORTED["unreported"]
        count = self._sites[start : start + 8].view(np.int64)
        found = int(count[0])
        count[0] = 0
        return found


def granules_of(pattern: Pattern, base: int, nbytes: int, shift: int) -> Numbers:
    """The granules that each active lane accesses, one row per lane."""
    first = (base + pattern.offsets[pattern.lanes]) >> shift
    return first[:, None] + np.arange(max(nbytes >> shift, 1))


def bits_at(words: Words, granules: Numbers) -> NDArray[np.bool_]:
    """The bits of a bitmap at these granules."""
    shifts = (granules & 63).astype(np.uint64)
    found: NDArray[np.bool_] = words[granules >> 6] >> shifts & np.uint64(1) != 0
    return found
