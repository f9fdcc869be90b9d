"""The pictures of docs/hazards.md, by the names of their files."""

from __future__ import annotations

from hazards.drawing import Arrow, Box, Scene

SCENES = {
    "proxy-fence": Scene(
        "Consumers store Cs by the generic proxy, and TMA reads it with no proxy fence between",
        ("consumers", "TMA"),
        (
            Box(0, 0, 2.4, "st.shared Cs"),
            Box(0, 2.4, 5, "fence.proxy.async", "missing"),
            Box(0, 5, 6.6, "bar.sync", "sync"),
            Box(0, 6.6, 8.4, "store(Cs)"),
            Box(1, 8.4, 11.4, "reads Cs", "bad"),
        ),
        (Arrow((0, 2.2), (1, 8.4), missing=True), Arrow((0, 8.2), (1, 8.8), "issues the copy")),
    ),
    "read-before-full": Scene(
        "wgmma reads a stage while TMA still writes it, since nobody waits for the full barrier",
        ("producer", "TMA", "consumers"),
        (
            Box(0, 0, 2.6, "expect_tx, load"),
            Box(1, 2.2, 8, "writes stage 0", "async"),
            Box(2, 0, 2.2, "wait(full[0])", "missing"),
            Box(2, 2.2, 5.4, "wgmma reads stage 0", "bad"),
        ),
        (Arrow((1, 7.9), (2, 7.9), "full[0] completes: earliest time to read"),),
    ),
    "refill-before-empty": Scene(
        "TMA overwrites a stage that wgmma still reads",
        ("producer", "TMA", "consumers"),
        (
            Box(0, 0, 2.4, "wait(empty[0])", "missing"),
            Box(0, 2.4, 4, "load"),
            Box(1, 4, 8, "writes stage 0", "bad"),
            Box(2, 0, 6.4, "wgmma reads stage 0", "async"),
            Box(2, 6.4, 9, "arrive(empty[0])", "sync"),
        ),
        (Arrow((2, 8.8), (0, 8.8), "empty[0] completes: earliest time to refill"),),
    ),
    "parity": Scene(
        "A wait for parity 0 in the second round returns at once, because phase 0 has completed",
        ("full[0]", "consumers"),
        (
            Box(0, 0, 3, "phase 0, parity 0", "async"),
            Box(0, 3, 8, "phase 1, parity 1", "async"),
            Box(0, 8, 11.6, "phase 2, parity 0", "async"),
            Box(1, 0, 3.2, "wait(parity 0)", "idle"),
            Box(1, 3.2, 5.2, "wgmma"),
            Box(1, 5.2, 7.4, "wait(parity 0)", "bad"),
            Box(1, 7.4, 10.4, "wgmma, old data", "bad"),
        ),
        (Arrow((0, 3), (1, 3.2)), Arrow((0, 8), (1, 8), "wait(parity 1) would end here", True)),
    ),
    "arrivals": Scene(
        "An empty barrier of too small a count completes when one of two warpgroups has arrived",
        ("warpgroup 1", "warpgroup 0", "empty[0]", "producer"),
        (
            Box(0, 0, 9.4, "wgmma reads stage 0", "async"),
            Box(1, 0, 2.4, "wgmma", "async"),
            Box(1, 2.4, 4.4, "128 arrive", "sync"),
            Box(2, 4.4, 7.2, "complete: 128/128", "bad"),
            Box(3, 7.2, 11, "refills stage 0", "bad"),
        ),
        (Arrow((1, 4.3), (2, 4.5)), Arrow((2, 7.1), (3, 7.4))),
    ),
    "bytes": Scene(
        "A full barrier that expects the bytes of A only completes before B has arrived",
        ("TMA", "full[0]", "consumers"),
        (
            Box(0, 0, 3.4, "A: 16,384 bytes", "async"),
            Box(0, 3.4, 10, "B: 16,384 bytes", "async"),
            Box(1, 3.4, 6.6, "complete: 16,384 B", "bad"),
            Box(2, 6.6, 9.4, "wgmma reads B", "bad"),
        ),
        (Arrow((0, 3.3), (1, 3.5)), Arrow((1, 6.5), (2, 6.7))),
    ),
    "initialization": Scene(
        "TMA counts bytes at an mbarrier of which it may still see the memory before mbarrier.init",
        ("producer", "thread 0", "TMA"),
        (
            Box(0, 5.2, 6.8, "barrier", "sync"),
            Box(0, 6.8, 8, "load"),
            Box(1, 0, 2.2, "mbarrier.init"),
            Box(1, 2.2, 5.2, "fence.mbarrier_init", "missing"),
            Box(1, 5.2, 6.8, "barrier", "sync"),
            Box(2, 8, 11.6, "counts at full[0]", "bad"),
        ),
        (Arrow((1, 2), (2, 8), missing=True), Arrow((0, 7.8), (2, 8.4))),
    ),
    "initialized-again": Scene(
        "mbarrier.init resets an mbarrier at which TMA still counts bytes and warps wait",
        ("TMA", "thread 0", "full[0]", "consumers"),
        (
            Box(0, 0, 8, "writes stage 0, counts its bytes", "async"),
            Box(1, 2.6, 5, "init(full[0])", "bad"),
            Box(2, 0, 4.6, "phase 2", "async"),
            Box(2, 5, 11.6, "phase 0 again, bytes lost", "bad"),
            Box(3, 1, 11.6, "wait(full[0]) never ends", "idle"),
        ),
        (Arrow((1, 4.8), (2, 5.2)),),
    ),
    "source-overwritten": Scene(
        "The next tile is stored to Cs while TMA still reads the last one",
        ("thread 0", "TMA", "consumers"),
        (
            Box(0, 0, 2.2, "store, commit"),
            Box(0, 2.2, 4.6, "wait_group.read", "missing"),
            Box(0, 4.6, 6.2, "bar.sync", "sync"),
            Box(1, 2.2, 9, "reads Cs of tile 0", "async"),
            Box(2, 4.6, 6.2, "bar.sync", "sync"),
            Box(2, 6.2, 10.6, "st.shared Cs of tile 1", "bad"),
        ),
        (Arrow((0, 2), (1, 2.4)),),
    ),
    "another-thread": Scene(
        "Thread 32 waits for its own bulk groups, of which it has none; thread 0 has committed one",
        ("thread 0", "thread 32", "TMA", "consumers"),
        (
            Box(0, 0, 2.2, "store, commit"),
            Box(0, 4.8, 6.4, "bar.sync", "sync"),
            Box(1, 2.2, 4.6, "wait_group.read", "bad"),
            Box(1, 4.8, 6.4, "bar.sync", "sync"),
            Box(2, 2.2, 9, "reads Cs of tile 0", "async"),
            Box(3, 4.8, 6.4, "bar.sync", "sync"),
            Box(3, 6.4, 10.8, "st.shared Cs of tile 1", "bad"),
        ),
    ),
    "accumulators": Scene(
        "Accumulators are read while wgmma still writes them",
        ("consumer warp", "tensor cores"),
        (
            Box(0, 0, 1.8, "wgmma.fence", "sync"),
            Box(0, 1.8, 3, "wgmma"),
            Box(0, 3, 5, "commit_group", "sync"),
            Box(0, 5, 7, "wait_group 0", "missing"),
            Box(0, 7, 9, "st.shared d", "bad"),
            Box(1, 3, 11, "read A and B, write d", "async"),
        ),
        (Arrow((0, 2.8), (1, 3.2)),),
    ),
    "swizzle": Scene(
        "TMA wrote row 1 of a tile without a swizzle; wgmma reads it with 128-byte swizzle",
        ("TMA wrote", "wgmma expects"),
        (
            *(
                Box(0, i * 1.45, i * 1.45 + 1.45, f"k {8 * i}-{8 * i + 7}", "async")
                for i in range(8)
            ),
            *(
                Box(1, i * 1.45, i * 1.45 + 1.45, f"k {8 * (i ^ 1)}-{8 * (i ^ 1) + 7}", "bad")
                for i in range(8)
            ),
        ),
        axis="bytes of row 1",
    ),
    "oversize": Scene(
        "A box of 256 rows covers two stages of 128 rows",
        ("stages of B", "box=64x256"),
        (
            Box(0, 0, 4, "Bs[0]: 128 rows"),
            Box(0, 4, 8, "Bs[1]: 128 rows"),
            Box(0, 8, 11.6, "Bs[2]"),
            Box(1, 0, 4, "rows 0-127", "async"),
            Box(1, 4, 8, "rows 128-255", "bad"),
        ),
        axis="addresses",
    ),
    "exited-block": Scene(
        "Block 1 writes to the shared memory of block 0, which has exited",
        ("block 0", "block 1"),
        (
            Box(0, 0, 3, "multiplies"),
            Box(0, 3, 5.4, "barrier.cluster", "missing"),
            Box(0, 5.4, 11.6, "exited: memory may have a new owner", "idle"),
            Box(1, 0, 6, "multiplies"),
            Box(1, 6, 9, "st.shared::cluster", "bad"),
        ),
        (Arrow((1, 7.5), (0, 7.5), "", True),),
    ),
    "registers": Scene(
        "setmaxnreg asks for 520 registers in three warpgroups, where there are 504",
        ("at the launch", "asked for"),
        (
            Box(0, 0, 3.7, "producer: 168"),
            Box(0, 3.7, 7.4, "consumer: 168"),
            Box(0, 7.4, 11.1, "consumer: 168"),
            Box(1, 0, 0.9, "40", "sync"),
            Box(1, 0.9, 6.2, "consumer: 240", "sync"),
            Box(1, 6.2, 11.5, "consumer: 240, waits for ever", "bad"),
        ),
        axis="register file",
    ),
    "deadlock": Scene(
        "The producer waits for an empty stage and the consumers for a full one",
        ("producer", "consumers"),
        (
            Box(0, 0, 3, "fills 3 stages"),
            Box(0, 3, 11.6, "wait(empty[1])", "idle"),
            Box(1, 0, 4, "wgmma, 5 steps"),
            Box(1, 4, 7, "arrive(empty[1])", "missing"),
            Box(1, 7, 11.6, "wait(full[1])", "idle"),
        ),
        (Arrow((1, 6.6), (0, 6.6), "never arrives", True),),
    ),
    "dependent-launch": Scene(
        "TMA reads A while the launch before still writes it",
        ("launch before", "TMA", "producer", "consumers"),
        (
            Box(0, 0, 7, "writes A and B", "async"),
            Box(1, 2.4, 5.4, "reads A", "bad"),
            Box(2, 0, 2.4, "load(A)"),
            Box(2, 2.4, 7, "griddepcontrol.wait", "idle"),
            Box(3, 0, 5.4, "wait(full)", "idle"),
            Box(3, 5.4, 8.4, "reads B", "bad"),
        ),
        (Arrow((0, 6.9), (1, 6.9), "earliest time to load", True),),
    ),
}
