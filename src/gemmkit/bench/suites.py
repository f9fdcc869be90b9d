"""`SUITES`: named sets of problems and layers to measure, in any types and layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gemmkit.bench import sweep
from gemmkit.bench.layer import Layer
from gemmkit.bench.layers import LAYERS as MEASURED_LAYERS
from gemmkit.dtypes import Dtype
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError, unknown_name
from gemmkit.groups import Groups
from gemmkit.kernels.fitting import in_types
from gemmkit.problem import GemmProblem, read_problem
from gemmkit.scales import Scales

SQUARES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
OFF_TILE = (1000, 1023, 1025, 2047, 2049, 3001, 4095, 4097)
# Multiples of the largest tiles' edges above those sizes, as far as the squares have none.
NEXT_TILE = (1152, 2176, 4224)
# One past a multiple of 128, where tiles of that size would have a row and a column all but empty.
ONE_PAST = tuple(
    128 * tiles + 1 for tiles in (4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 24, 30)
)

SKINNY_M = (1, 2, 4, 8, 16)
SKINNY_N = (4096, 8192)

# Tokens in flight: one sequence that is decoded, batches of them, prompts.
TOKENS = (1, 16, 128, 512, 2048)
# Products of decoder layers as (N, K), outputs and inputs a token: hidden size 4096, as in Llama 2
# 7B (feed-forward 11008, vocabulary 32000) and Llama 3 8B and Mistral 7B (feed-forward 14336).
LAYERS = (
    (4096, 4096),  # attention's output
    (12288, 4096),  # queries, keys and values, fused
    (11008, 4096),  # feed-forward, up and gate
    (4096, 11008),  # feed-forward, down
    (14336, 4096),
    (4096, 14336),
    (32000, 4096),  # logits
)

FUSED = (512, 1024, 2048, 4096, 8192)
# What else is fused, at the edges of these cubes.
FURTHER_FUSED = (1024, 4096)
FURTHER_EPILOGUES = (
    Epilogue("column"),
    Epilogue("column", "gelu"),
    Epilogue("column", "gelu_tanh"),
    Epilogue("column", "silu"),
    Epilogue("column", residual=True),
    Epilogue("column", "relu", residual=True),
    Epilogue("column", "gelu_tanh", auxiliary=True),
    Epilogue(scale=0.5),
)

# Types that have kernels of their own, in the layouts of a layer's forward and backward passes:
# large and small cubes, and products with few tiles.
TYPES: tuple[Dtype, ...] = ("float64", "float16", "bfloat16")
TYPED_LAYOUTS = ("nn", "nt", "tn")
TYPED = (
    *((size, size, size) for size in (256, 512, 1024, 2048, 4096)),
    (64, 64, 4096),
    (512, 4096, 4096),
)

# Between one block's tile and several waves of large tiles, in steps smaller than those.
WAVES = range(1024, 3072 + 1, 64)
WAVES_K = 1024


# Batches as M, N, K and the number of products. Cubes, from those that memory limits to those that
# arithmetic does; and the two products of attention, for 8 sequences of 512 tokens and 16 heads of
# 64: queries with keys, and the weights with values.
BATCHES = (
    (32, 32, 32, 4096),
    (64, 64, 64, 2048),
    (128, 128, 128, 1024),
    (256, 256, 256, 256),
    (512, 512, 512, 64),
    (512, 512, 64, 128),
    (512, 64, 512, 128),
)


@cache
def grouped() -> Mapping[str, GemmProblem]:
    """The problems of the suite `grouped`, by what they stand for.

    They are equal products, the experts of a mixture, and products of any sizes. Experts have a row
    for each token that a router sends them, of a batch of 4096 or 16384 tokens, or of the few that
    are decoded at once.
    """
    rng = np.random.default_rng(0)
    few = rng.multinomial(4096, rng.dirichlet(np.full(8, 4.0)))
    many = rng.multinomial(16384, rng.dirichlet(np.full(64, 2.0)))
    sizes = rng.integers(16, 129, (1000, 3))
    decoded = rng.integers(0, 9, 64)
    cubes = {
        f"{count} × {side}³": f"{side}*{count}"
        for side, counts in (
            *((32, (1000, 4000, 16000)), (64, (1000, 4000)), (128, (1000, 4000))),
            *((256, (250, 1000)), (48, (2000,)), (33, (4000,)), (100, (1000,))),
        )
        for count in counts
    }

    def experts(rows: NDArray[np.int64], n: int, k: int) -> Groups:
        return Groups.of(rows, np.full(rows.size, n), np.full(rows.size, k))

    found = {
        "8 experts, 4096 tokens, 2048 → 4096": experts(few, 4096, 2048),
        "64 experts, 16384 tokens, 2048 → 1408": experts(many, 1408, 2048),
        "64 experts, 0 to 8 tokens each": experts(decoded, 1408, 2048),
        "1000 sizes, 16 to 128, multiples of 4": Groups.of(*(sizes // 4 * 4).T),
        "1000 sizes, 16 to 128": Groups.of(*sizes.T),
    }
    return {name: GemmProblem.of_groups(each) for name, each in (cubes | found).items()}


# Tokens, experts that they are sorted by, and the sizes that these map from and to: prompts and
# decoding of mixtures of many small experts and of few large ones.
ROUTED = (
    (4096, 64, 2048, 1408),
    (32768, 64, 2048, 1408),
    (4096, 8, 4096, 14336),
    (4096, 8, 14336, 4096),
    (1108, 128, 2048, 768),
    (128, 64, 2048, 1408),
)


@cache
def ragged() -> Mapping[str, GemmProblem]:
    """The problems of the suite `ragged`, by what they stand for: tokens in one matrix, sorted by
    the expert that a router sends them to, which prefers some."""
    rng = np.random.default_rng(0)
    found = {}
    for tokens, experts, k, n in ROUTED:
        rows = rng.multinomial(tokens, rng.dirichlet(np.full(experts, 4.0)))
        groups = Groups.of(rows, n, k, ragged=True)
        found[f"{tokens} tokens to {experts} experts, {k} → {n}"] = GemmProblem.of_groups(groups)
    return found


def _cubes(sizes: Iterable[int], epilogue: str = "none") -> tuple[GemmProblem, ...]:
    fused = Epilogue.parse(epilogue)
    return tuple(GemmProblem(size, size, size, epilogue=fused) for size in sizes)


def _slabs(sizes: Iterable[int], k: int) -> tuple[GemmProblem, ...]:
    return tuple(GemmProblem(size, size, k) for size in sizes)


def _fused() -> tuple[GemmProblem, ...]:
    further = (
        replace(problem, epilogue=epilogue)
        for epilogue in FURTHER_EPILOGUES
        for problem in _cubes(FURTHER_FUSED)
    )
    return (*_cubes(FUSED, "bias+relu"), *further)


def _typed() -> tuple[GemmProblem, ...]:
    return tuple(
        GemmProblem(m, n, k, dtype=dtype).laid_out(layout)
        for dtype in TYPES
        for layout in TYPED_LAYOUTS
        for m, n, k in TYPED
    )


# What makes each suite, called at its first use: together they take longer than the import.
SUITES: Mapping[str, Callable[[], tuple[GemmProblem, ...]]] = {
    "square": lambda: _cubes(SQUARES),
    "k1024": lambda: _slabs(sweep.SIZES, sweep.K),
    "off-tile": lambda: _cubes(OFF_TILE),
    "next-tile": lambda: _cubes(NEXT_TILE),
    "one-past": lambda: _cubes(ONE_PAST),
    "skinny": lambda: tuple(GemmProblem(m, n, n) for n in SKINNY_N for m in SKINNY_M),
    "llm": lambda: tuple(GemmProblem(tokens, n, k) for n, k in LAYERS for tokens in TOKENS),
    "fused": _fused,
    "waves": lambda: _slabs(WAVES, WAVES_K),
    "batched": lambda: tuple(map(read_problem, BATCHES)),
    "grouped": lambda: tuple(grouped().values()),
    "ragged": lambda: tuple(ragged().values()),
    "typed": _typed,
}

# Suites of what is more than a product: PyTorch's functions are the only peers.
LAYER_SUITES: dict[str, tuple[Layer, ...]] = {"layers": MEASURED_LAYERS}

# What each suite is for, in a few words.
TOPICS = {
    "square": "M = N = K from 256 to 16384",
    "k1024": "M = N from 128 to 16384, K = 1024",
    "off-tile": "M = N = K that no tile divides",
    "next-tile": "multiples of 128 just above those",
    "one-past": "M = N = K one past a multiple of 128",
    "skinny": "M of 1 to 16 rows, N = K",
    "llm": "layers of transformers, 1 to 2048 tokens",
    "fused": "bias, activations, residual and scale fused, M = N = K",
    "waves": "M = N in steps of 64, K = 1024: quantization by tiles and waves",
    "batched": "batches of small products, and those of attention",
    "grouped": "groups in one launch: equal products, experts of a mixture, any sizes",
    "ragged": "groups of the rows of one matrix: tokens sorted by expert",
    "typed": "float64, float16 and bfloat16 in three layouts",
    "layers": "layers of gemmkit.nn beside PyTorch's",
}


def find_suite(name: str) -> tuple[GemmProblem, ...]:
    """The problems of that suite: row-major and of float32, unless it is of types and layouts.

    Raises:
        UsageError: there is none; the text lists the nearest names, or all. Or it is of layers.
    """
    if name in LAYER_SUITES:
        raise UsageError(f"'{name}' is a suite of layers: only `gemmkit bench` takes it")
    try:
        build = SUITES[name]
    except KeyError:
        raise UsageError(unknown_name("suite", name, [*SUITES, *LAYER_SUITES])) from None
    return build()


def variants(
    problems: Iterable[GemmProblem],
    dtypes: Sequence[str] = (),
    out_dtype: str | None = None,
    layouts: Sequence[str] = (),
    precision: str | None = None,
    scales: Scales | str | None = None,
    prepared: str | None = None,
) -> list[GemmProblem]:
    """The problems in each of these types and layouts, by type first, each once.

    Args:
        problems: in their own types and layouts, which stay where none are given.
        dtypes: of A and B.
        out_dtype: of C, by default that of A and B.
        layouts: in the form of `GemmProblem.layout`.
        precision: of those that are of float32 then, of which there must be some.
        scales: of all, whose A and B must have 8 bits.
        prepared: their operands that are prepared; of groups B alone can be.

    Raises:
        UnsupportedType: there is no such type.
        UsageError: there is no such precision, or no problem of float32.
    """
    given = list(problems)
    found: dict[GemmProblem, None] = {}
    for dtype, layout in product(dtypes or (None,), layouts or (None,)):
        for each in given:
            problem = in_types(each, dtype, out_dtype)
            if prepared is not None and (problem.groups is None or prepared == "b"):
                problem = replace(problem, prepared=prepared)
            if scales is not None:
                problem = replace(problem, scales=Scales.parse(scales))
            found[problem if layout is None else problem.laid_out(layout)] = None
    if precision is None:
        return list(found)
    fp32 = any(each.dtype == "float32" for each in found)
    return [
        in_types(each, precision=precision) if each.dtype == "float32" or not fp32 else each
        for each in found
    ]
