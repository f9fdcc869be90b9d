"""`Prices`: what a launch costs where it runs: on a board, or on the emulator's CPU.

`choose` takes what costs least, whatever the costs are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from gemmkit.analysis.closed_form.form import Estimate
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.candidates import candidates_for, is_overtaken
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.dtypes import Dtype
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.limits import SHORT_K
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.tensor_cores import SINCE
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate that takes a problem, with its estimate."""

    costed: CostedCandidate
    estimate: Estimate


class Prices(Protocol):
    """Candidates and their estimates where launches run.

    `measured` says whether stores and tables of tuned shapes hold times of it.
    """

    measured: bool

    def costed(self, kernel: str, config: TileConfig) -> CostedCandidate:
        """Any configuration."""

    def candidates(self, problem: GemmProblem) -> tuple[CostedCandidate, ...]:
        """What there is to choose from for a problem; not all of it takes the problem."""

    def priced(self, costed: CostedCandidate, problem: GemmProblem) -> Iterator[Ranked]:
        """Estimates of a candidate, and of variants of it that suit the problem."""


class BoardPrices:
    """Times on a board, in closed form."""

    measured = True

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self._others: dict[Candidate, CostedCandidate] = {}

    @cached_property
    def _all(self) -> tuple[CostedCandidate, ...]:
        return tuple(CostedCandidate(each, self._gpu) for each in candidates_for(self._gpu))

    @cached_property
    def _for_ragged(self) -> tuple[CostedCandidate, ...]:
        return tuple(each for each in self._all if each.kernel.is_for_groups)

    @cached_property
    def _for_groups(self) -> tuple[CostedCandidate, ...]:
        return tuple(each for each in self._all if each.kernel.takes_groups)

    @cached_property
    def _for_fp32_groups(self) -> tuple[CostedCandidate, ...]:
        return self._not_overtaken(self._for_groups)

    @cached_property
    def _for_one_shape(self) -> tuple[CostedCandidate, ...]:
        return tuple(each for each in self._all if not each.kernel.is_for_groups)

    @cached_property
    def _for_fp32(self) -> tuple[CostedCandidate, ...]:
        return self._not_overtaken(self._for_one_shape)

    def _not_overtaken(
        self, costed: Iterable[CostedCandidate], dtype: Dtype = "float32"
    ) -> tuple[CostedCandidate, ...]:
        return tuple(each for each in costed if not is_overtaken(each.candidate, self._gpu, dtype))

    @cached_property
    def _for_tensor_cores(self) -> tuple[CostedCandidate, ...]:
        return self._not_overtaken(self._for_one_shape, "float64")

    def candidates(self, problem: GemmProblem) -> tuple[CostedCandidate, ...]:
        """As `Prices.candidates`: kernels that read a table of products are for groups only."""
        fp32 = problem.dtype == problem.result_dtype == "float32"
        if problem.groups is not None:
            if fp32:
                return self._for_fp32_groups
            return self._for_ragged if problem.ragged else self._for_groups
        if problem.k > SHORT_K:
            if fp32:
                return self._for_fp32
            if problem.dtype in SINCE and problem.is_aligned(VECTOR_BYTES):
                return self._for_tensor_cores
        return self._for_one_shape

    def costed(self, kernel: str, config: TileConfig) -> CostedCandidate:
        """As `Prices.costed`."""
        candidate = Candidate(kernel, config)
        if candidate not in self._others:
            self._others[candidate] = CostedCandidate(candidate, self._gpu)
        return self._others[candidate]

    def priced(self, costed: CostedCandidate, problem: GemmProblem) -> Iterator[Ranked]:
        """As `Prices.priced`."""
        for variant in costed.variants(problem):
            yield Ranked(variant, variant.estimate(problem))


# Microseconds of the emulator, on one core of a 2024 server. A thread that computes many results
# takes fewer instructions for each multiply-add: with 16 of them, twice as long as with 64 (2 to 4
# times were measured). Compiling takes a second for some hundred multiply-adds of an unrolled step,
# once a machine: each launch bears a small part of it, so that small products share one kernel of
# small tiles, and large ones have another of large tiles.
MULTIPLY_ADD_US, OF_RESULTS = 4.5e-4, 64
COMPILED_MULTIPLY_ADD_US = 39.0

_COPIES = {"stages": 2, "interleave": 1, "order": 2}
_SMALL = {"BM": 16, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
_LARGE = {"BM": 128, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8}

# Of fp32, and of other types. All take every layout, batch and epilogue.
# `python benchmarks/emulator.py --only products` measures them.
EMULATED = (
    Candidate("gemm_tiled", TileConfig(**_SMALL, **_COPIES)),
    Candidate("gemm_tiled", TileConfig(**_LARGE, **_COPIES)),
)
EMULATED_TYPED = (
    Candidate("typed", TileConfig(**_SMALL)),
    # As fast as with 128 rows, and compiled sooner.
    Candidate("typed", TileConfig(**{**_LARGE, "BM": 64, "BK": 8})),
)
EMULATED_GROUPS = (Candidate("gemm_grouped", TileConfig(**_SMALL, **_COPIES)),)
EMULATED_TYPED_GROUPS = (Candidate("grouped_typed", TileConfig(**_SMALL)),)


class EmulatorPrices(BoardPrices):
    """Times on the emulator: of instructions, and of compiling them. The board does not count."""

    measured = False

    def candidates(self, problem: GemmProblem) -> tuple[CostedCandidate, ...]:
        """As `Prices.candidates`."""
        plain = problem.dtype == problem.result_dtype == "float32"
        listed: tuple[Candidate, ...] = EMULATED if plain else EMULATED_TYPED
        if problem.groups is not None:
            listed = EMULATED_GROUPS if plain else EMULATED_TYPED_GROUPS
        return tuple(self.costed(each.name, each.config) for each in listed)

    def priced(self, costed: CostedCandidate, problem: GemmProblem) -> Iterator[Ranked]:
        """As `Prices.priced`."""
        config = costed.config
        tiles = ceil_div(problem.m, config["BM"]) * ceil_div(problem.n, config["BN"])
        padded = tiles * problem.batch * config["BM"] * config["BN"] * problem.k
        work = costed.kernel.work(problem, config, self._gpu)
        if problem.groups is not None:
            padded = work.tiles * work.steps * config["BM"] * config["BN"] * config["BK"]
        results = config["TM"] * config["TN"]
        executed = padded * MULTIPLY_ADD_US * (OF_RESULTS / results) ** 0.5
        compiled = results * config["BK"] * COMPILED_MULTIPLY_ADD_US
        yield Ranked(costed, Estimate(executed + compiled, work, 1, 1.0, 1.0, 0.0))
