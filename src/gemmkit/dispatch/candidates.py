"""The only list of what is dispatched: kernels and configurations that are worth choosing from.

Each is checked on the emulator with its sanitizers (`tests/dispatch/test_candidates.py`). What a
configuration costs on a board follows from its sizes, or was fitted where somebody has measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.fma_candidates import FALLBACK, SHORT_K, SMALL_TILES, TILED, WITHOUT_ASYNC
from gemmkit.dispatch.tensor_candidates import (
    FP8,
    FP8_MMA,
    FP16X3,
    FP16X3_FUSED,
    MMA,
    SKINNY_MMA,
    STREAM_K_MMA,
    TF32,
    TF32_MMA,
    TF32_RS,
    TF32X3,
    WGMMA,
)
from gemmkit.dispatch.typed_candidates import (
    GROUPED,
    GROUPED_FP8,
    GROUPED_FP16X3,
    GROUPED_TYPED,
    GROUPED_WGMMA,
    RAGGED_FP8,
    RAGGED_WGMMA,
    TYPED,
    TYPED_MMA,
)
from gemmkit.dtypes import Dtype
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.production.tf32_mma import is_faster_than_ffma
from gemmkit.problem import GemmProblem
from gemmkit.split_products import PRODUCTS

# Below and above which side of C the seven-level guide calls a problem small or large.
SMALL, LARGE = 512, 2048
SizeClass = Literal["small", "medium", "large"]

# Of so many boards it is kept which candidates they can run: to ask each of them takes longer than
# all of the first choice besides.
_MOST_BOARDS = 64

# Tiles that the guide has for each, BM × BN.
GUIDE_TILES: Mapping[SizeClass, tuple[int, int]] = {
    "small": (64, 64),
    "medium": (128, 128),
    "large": (128, 256),
}


CANDIDATES: tuple[Candidate, ...] = (
    *TILED,
    *SMALL_TILES,
    *SHORT_K,
    *GROUPED,
    *WITHOUT_ASYNC,
    *WGMMA,
    *FP16X3,
    *FP16X3_FUSED,
    *TF32,
    *TF32_RS,
    *FP8,
    *MMA,
    *STREAM_K_MMA,
    *SKINNY_MMA,
    *FP8_MMA,
    *TF32_MMA,
    *TF32X3,
    *TYPED,
    *GROUPED_FP16X3,
    *GROUPED_WGMMA,
    *RAGGED_WGMMA,
    *GROUPED_FP8,
    *RAGGED_FP8,
    *GROUPED_TYPED,
    *FALLBACK,
)


@lru_cache(maxsize=_MOST_BOARDS)
def candidates_for(gpu: GpuSpec) -> tuple[Candidate, ...]:
    """Those that the board can run and that are worth it there; each says what problems it takes.

    Where there is cp.async, tiles that come through registers are left out: the same come faster.
    Products of TF32 by mma.sync are left out where FFMA is as fast as these, or wgmma multiplies,
    and those of 8 bits where wgmma does.
    """
    staged = _allowed((*TILED, *SMALL_TILES), gpu) or _allowed(WITHOUT_ASYNC, gpu)
    wgmma = _allowed(
        (
            *(*WGMMA, *FP16X3, *FP16X3_FUSED, *TF32, *TF32_RS, *FP8),
            *(*GROUPED_FP16X3, *RAGGED_WGMMA, *GROUPED_WGMMA, *RAGGED_FP8, *GROUPED_FP8),
        ),
        gpu,
    )
    tf32 = (
        *(TF32_MMA if is_faster_than_ffma(gpu, products=1) else ()),
        *(TF32X3 if is_faster_than_ffma(gpu, PRODUCTS) else ()),
    )
    mma = (*MMA, *STREAM_K_MMA, *SKINNY_MMA, *(() if wgmma else (*FP8_MMA, *tf32)))
    others = (*mma, *TYPED, *GROUPED_TYPED, *FALLBACK)
    return (*staged, *_allowed(SHORT_K, gpu), *wgmma, *_allowed((*GROUPED, *others), gpu))


def is_overtaken(candidate: Candidate, gpu: GpuSpec, dtype: Dtype = "float32") -> bool:
    """Whether products of a type with k above `SHORT_K` have faster candidates on the board, where
    rows are aligned; and groups of float32.

    Those for every type stage tiles through registers, which wins where k has a step or two; else
    cp.async brings the same tiles sooner: to tensor cores in 0.4 to 0.8 of the time on an H100.
    """
    if candidate in GROUPED_TYPED:
        return dtype == "float32" and bool(_allowed(GROUPED, gpu))
    if dtype == "float32":
        return candidate in TYPED and bool(_allowed(TILED, gpu))
    return candidate in TYPED_MMA and bool(_allowed(MMA, gpu))


@lru_cache(maxsize=8 * _MOST_BOARDS)
def _allowed(candidates: tuple[Candidate, ...], gpu: GpuSpec) -> tuple[Candidate, ...]:
    return tuple(each for each in candidates if each.kernel.rule(each.config, gpu) is None)


def size_class(problem: GemmProblem) -> SizeClass:
    """What the seven-level guide calls the problem, by the shorter side of C."""
    side = min(problem.m, problem.n)
    return "small" if side < SMALL else "large" if side > LARGE else "medium"
