"""Which tiles a launch of many products takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from gemmkit.dispatch.candidates import Candidate
from gemmkit.dispatch.choose import Source, StoreChoice, dispatcher
from gemmkit.dispatch.contender import Contender
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.grouped_problem import GroupedProblem, Sizes
from gemmkit.kernels import work
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.production import gemm_grouped
from gemmkit.problem import GemmProblem
from gemmkit.tune import changes

_KEYS = ("BM", "BN", "BK", "WM", "WN", "TM", "TN", "stages", "bursts", "order")

# Each with the share of its estimate that launches took on an H100, about: with these the choice is
# 0.9 % behind the best, in the mean of the cases of `benchmarks/grouped.py --tiles`. Where two are
# estimated alike, the earlier is taken. `bursts` and `order` are those of which ptxas makes the
# fewest issue cycles of this kernel for compute capability 9.0, aligned or not; of 48 x 64 the
# fastest of those tried.
TILES: Mapping[Candidate, float] = {
    Candidate(gemm_grouped.TILED, TileConfig(**dict(zip(_KEYS, row, strict=True)))): share
    for *row, share in (
        (128, 256, 16, 32, 128, 16, 8, 2, 4, 1, 0.90),
        (256, 128, 16, 64, 64, 16, 8, 3, 1, 6, 0.80),
        (128, 192, 16, 64, 48, 8, 12, 3, 1, 7, 1.00),
        (128, 128, 16, 32, 64, 8, 8, 3, 8, 6, 0.85),
        (128, 64, 16, 64, 32, 8, 8, 2, 1, 5, 0.75),
        (64, 128, 32, 32, 32, 8, 4, 4, 4, 2, 0.85),
        (64, 64, 16, 32, 64, 8, 8, 2, 1, 5, 0.55),
        (64, 64, 32, 32, 32, 8, 4, 2, 1, 2, 0.90),
        (64, 64, 16, 32, 32, 8, 4, 4, 4, 2, 0.90),
        (48, 64, 8, 48, 32, 12, 4, 3, 4, 5, 0.85),
        (32, 128, 32, 32, 32, 8, 4, 3, 4, 5, 0.90),
        (64, 32, 16, 32, 32, 8, 4, 2, 1, 2, 0.85),
        (32, 64, 32, 32, 16, 4, 4, 3, 4, 2, 0.80),
        (32, 32, 32, 16, 32, 4, 4, 2, 1, 2, 0.90),
        (32, 32, 16, 32, 32, 8, 4, 2, 1, 2, 0.80),
        (16, 32, 16, 16, 32, 4, 4, 2, 1, 2, 0.80),
    )
}

# Choices of dispatch that were measured for the very shape.
_MEASURED: tuple[Source, ...] = ("store", "shipped table")

MOST_REMEMBERED = 256


def choose_tiles(problem: GroupedProblem, gpu: GpuSpec) -> TileConfig:
    """The configuration for a launch of many products on a board.

    Products of one size for which a strided batch was tuned take its configuration, where that is
    of `gemm_tiled`. Else it is that of `TILES` with the shortest time: in closed form, of all tiles
    together, with the mean of their steps of k, but at least of the tile with most steps; times the
    share that launches took of it. Choices are remembered.

    Raises:
        UnsupportedProblem: no configuration runs on the board, or none takes the products.
    """
    sizes = np.stack([problem.m, problem.n, problem.k]).tobytes()
    aligned = gemm_grouped.vector_width(problem) > 1
    remembered = _contenders(gpu).remembered
    key = (sizes, problem.single.layout, problem.epilogue, aligned, changes.count)
    found = remembered.get(key)
    if found is None:
        if len(remembered) >= MOST_REMEMBERED:
            remembered.clear()
        found = remembered[key] = _decide(problem, gpu, aligned=aligned)
    return found


class _Contenders:
    """A board's candidates, and what was chosen of them."""

    def __init__(self, gpu: GpuSpec) -> None:
        self.all = tuple(
            (Contender(each, gpu), share)
            for each, share in TILES.items()
            if each.kernel.rule(each.config, gpu) is None
        )
        self.remembered: dict[object, TileConfig] = {}


@lru_cache(maxsize=64)
def _contenders(gpu: GpuSpec) -> _Contenders:
    return _Contenders(gpu)


def _decide(problem: GroupedProblem, gpu: GpuSpec, *, aligned: bool) -> TileConfig:
    own = as_a_batch(problem, gpu)
    if own is not None and gemm_grouped.supports(problem, own, gpu) is None:
        return own
    best: tuple[float, TileConfig] | None = None
    reason = f"'{gemm_grouped.NAME}' needs compute capability 8.0; {gpu.name} has {gpu.capability}"
    for each, share in _contenders(gpu).all:
        refused = gemm_grouped.supports(problem, each.config, gpu)
        if refused is not None:
            reason = refused
            continue
        microseconds = share * _estimate(problem, each, aligned=aligned)
        if best is None or microseconds < best[0]:
            best = microseconds, each.config
    if best is None:
        raise UnsupportedProblem(reason)
    return best[1]


def _estimate(problem: GroupedProblem, contender: Contender, *, aligned: bool) -> float:
    """Microseconds of one launch."""
    config = contender.config
    rows, columns = gemm_grouped.tile_counts(problem, config)
    tiles: Sizes = rows * columns
    steps = np.maximum(-(-problem.k // config["BK"]), 1)[tiles > 0]
    total = int(tiles.sum())
    if not total:
        return 0.0

    def cut(count: int, steps: int) -> work.Work:
        return work.tiles(problem.single, config, count, steps)

    mean = ceil_div(int((tiles[tiles > 0] * steps).sum()), total)
    together = contender.estimate_work(cut(total, mean), problem.minimal_bytes, aligned=aligned)
    longest = contender.estimate_work(cut(1, int(steps.max())), 0, aligned=aligned)
    return max(together.microseconds, longest.microseconds)


def as_a_batch(
    problem: GroupedProblem, gpu: GpuSpec, *, store: StoreChoice = "user"
) -> TileConfig | None:
    """What was tuned for a strided batch of such products.

    None where they are not all equal, none is tuned, or it takes another kernel.
    """
    sizes = [each for each in (problem.m, problem.n, problem.k) if each.size]
    if not sizes or any((each != each[0]).any() for each in sizes):
        return None
    m, n, k = (int(each[0]) for each in sizes)
    aligned = gemm_grouped.vector_width(problem) > 1
    batch = GemmProblem(
        *(m, n, k),
        # A pitch that no vector divides tells that they are not aligned.
        lda=0 if aligned else 4 * max(m, k) + 1,
        epilogue=problem.epilogue,
        batch=problem.count,
        transa=problem.transa,
        transb=problem.transb,
    )
    chosen = dispatcher(gpu, store).choose(batch)
    suits = chosen.kernel.name == gemm_grouped.TILED and chosen.source in _MEASURED
    return chosen.config if suits else None
