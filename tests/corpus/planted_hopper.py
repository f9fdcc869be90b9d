"""Bugs planted in the rungs for Hopper: proxies, mbarriers, clusters, tensor stores."""

from __future__ import annotations

from mutation import Mutation

from gemmkit.problem import GemmProblem

# Several steps more than stages; two blocks along M, which a cluster has.
_STEPS = GemmProblem(256, 128, 320, dtype="bfloat16")
_NO_PRODUCTS = GemmProblem(128, 64, 64, alpha=0.0, dtype="bfloat16")
# More tiles than two clusters have at once.
_TILES = GemmProblem(512, 384, 128, dtype="bfloat16")

_EMPTY = "shared.empty[at.stage].wait(at.parity ^ 1);"


def _bug(
    name: str,
    kernel: str,
    old: str,
    new: str,
    *expects: str,
    problem: GemmProblem = _STEPS,
    hangs: bool = False,
) -> Mutation:
    return Mutation(name, kernel, problem, old, new, expects, hangs=hangs)


PLANTED = (
    # --- wgmma --------------------------------------------------------------------------------
    _bug("no proxy fence", "wgmma", "fence_for_tma();", "", "racecheck"),
    _bug("no barrier before products", "wgmma", "__syncthreads();", "", "racecheck"),
    _bug(
        "copies into the stage under way",
        "wgmma",
        "copy_next(stages[next]);",
        "copy_next(stages[stage]);",
        "racecheck",
    ),
    _bug("sums read under way", "wgmma", "wgmma_wait<0>(sums);", "", "synccheck"),
    _bug("zeros added to nothing", "wgmma", "step > 0 || k > 0", "true", "initcheck"),
    # --- tma ----------------------------------------------------------------------------------
    _bug(
        "no wait for the copies", "tma", "shared.full[now.stage].wait(now.parity);", "", "racecheck"
    ),
    _bug(
        "wrong parity of the full barrier",
        "tma",
        "shared.full[now.stage].wait(now.parity);",
        "shared.full[now.stage].wait(now.parity ^ 1);",
        "synccheck",
        hangs=True,
    ),
    _bug(
        "refilled before all warps have read",
        "tma",
        "shared.empty[before.stage].wait(before.parity);",
        "",
        "synccheck",
        hangs=True,
    ),
    _bug("stage released too early", "tma", "wgmma_wait<1>();", "", "racecheck"),
    _bug(
        "bytes of B forgotten",
        "tma",
        "arrive_expecting(sizeof(Stage))",
        "arrive_expecting(sizeof(to.As))",
        "racecheck",
    ),
    _bug("barriers not fenced", "tma", "make_barriers_visible();", "", "racecheck"),
    # --- warp_specialized ---------------------------------------------------------------------
    _bug(
        "empty stages not waited for",
        "warp_specialized",
        _EMPTY,
        "",
        "synccheck",
        hangs=True,
    ),
    _bug(
        "wrong parity of the empty barrier",
        "warp_specialized",
        "wait(at.parity ^ 1)",
        "wait(at.parity)",
        "synccheck",
        hangs=True,
    ),
    _bug(
        "stage released under its products",
        "warp_specialized",
        "shared.empty[held].arrive();",
        "shared.empty[at.stage].arrive();",
        "synccheck",
        hangs=True,
    ),
    _bug(
        "every lane arrives",
        "warp_specialized",
        "if (step > 0 && threadIdx.x % 32 == 0)",
        "if (step > 0)",
        "synccheck",
    ),
    _bug(
        "registers not reserved",
        "warp_specialized",
        "* 128 + 128, 1)",
        "* 128 + 128)",
        "synccheck",
        hangs=True,
    ),
    _bug(
        "sums without a product not zero",
        "warp_specialized",
        "if (steps == 0) {",
        "if (steps < 0) {",
        "initcheck",
        problem=_NO_PRODUCTS,
    ),
    # --- cluster_multicast --------------------------------------------------------------------
    _bug(
        "peer's consumers not counted",
        "cluster_multicast",
        "init(CLUSTER * CONSUMERS * 4)",
        "init(CONSUMERS * 4)",
        "racecheck",
    ),
    _bug(
        "peer not waited for at the start",
        "cluster_multicast",
        "cluster_sync();",
        "__syncthreads();",
        "synccheck",
    ),
    _bug(
        "a block ends before its peer's arrivals",
        "cluster_multicast",
        "for (int stage = 0; stage < STAGES; ++stage, at.advance()) {",
        "for (int stage = 0; stage < 0; ++stage, at.advance()) {",
        "synccheck",
    ),
    _bug(
        "both load the same half",
        "cluster_multicast",
        "i * CLUSTER + rank",
        "i * CLUSTER",
        "initcheck",
    ),
    _bug(
        "peer not told",
        "cluster_multicast",
        "arrive_at(threadIdx.x % 32)",
        "arrive()",
        "racecheck",
        hangs=True,
    ),
    # --- persistent ---------------------------------------------------------------------------
    _bug(
        "no proxy fence before the store",
        "persistent",
        "fence_for_tma();",
        "",
        "racecheck",
        problem=_TILES,
    ),
    _bug(
        "buffer overwritten while TMA reads it",
        "persistent",
        "if (thread == 0) tma_wait_read<0>();  // the other buffer, which is next",
        "",
        "racecheck",
        problem=_TILES,
    ),
    _bug(
        "no barrier before the store",
        "persistent",
        "named_barrier_sync<128>(1 + consumer);",
        "",
        "racecheck",
        problem=_TILES,
    ),
    _bug(
        "both consumers at one barrier",
        "persistent",
        "named_barrier_sync<128>(1 + consumer);",
        "named_barrier_sync<128>(1);",
        "racecheck",
        problem=_TILES,
    ),
    _bug(
        "a block ends before its stores have read",
        "persistent",
        "if (thread == 0) tma_wait_read<0>();  // a block",
        "// a block",
        "synccheck",
        problem=_TILES,
    ),
    _bug(
        "last stage of a tile not released",
        "persistent",
        "if (steps > 0) release(held);",
        "",
        "synccheck",
        problem=_TILES,
        hangs=True,
    ),
)
