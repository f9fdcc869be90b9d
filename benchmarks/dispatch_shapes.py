"""Problems that `dispatch_regret.py` times: random ones of a fixed seed, by kind, or those of
suites and of a file."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Literal

import numpy as np

from gemmkit.bench.suites import find_suite, variants
from gemmkit.dtypes import Dtype
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.limits import SHORT_K
from gemmkit.problem import GemmProblem, read_problem

SEED, SHAPES = 0, 200
SMALLEST, LARGEST, SKINNY = 16, 8192, 16
THIN, LONGEST, WIDEST = 128, 50_000, 16_384
SKINNY_SHARE, ALIGNED_SHARE = 0.15, 0.5
# Of `wide` problems: batches, and other types than float32.
BATCH_SHARE, TYPED_SHARE, LARGEST_BATCH = 0.2, 0.25, 256
LAYOUTS = ("nn", "nt", "tn", "tt")
TYPES: tuple[Dtype, ...] = ("float16", "bfloat16", "float64")
# At 50 TFLOP/s 0.34 ms a launch; and 64 MiB a matrix, since each result is compared on the host.
# The other kinds of problems may take some times as much.
MOST_MULTIPLY_ADDS, MOST_ELEMENTS = 2**33, 2**24
MOST_OF_OTHERS, MOST_ELEMENTS_OF_OTHERS = 2**36, 2**25

Kind = Literal["random", "thin", "wide", "short", "given"]
KINDS: tuple[Kind, ...] = ("random", "thin", "wide", "short")


def random_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Shapes with sizes uniform in their logarithms, half of them aligned, some of them skinny."""
    rng = random.Random(seed)
    low, high = np.log2(SMALLEST), np.log2(LARGEST)
    found: list[GemmProblem] = []
    while len(found) < count:
        m, n, k = (round(2 ** rng.uniform(low, high)) for _ in range(3))
        if rng.random() < SKINNY_SHARE:
            short = rng.randint(1, SKINNY)
            m, n = (short, n) if rng.random() < 0.5 else (m, short)
        if rng.random() < ALIGNED_SHARE:
            n, k = (max(4, each // 4 * 4) for each in (n, k))
        if m * n * k <= MOST_MULTIPLY_ADDS and max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            found.append(GemmProblem(m, n, k))
    return found


def thin_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts with one of m, n and k at most 128, half of them aligned; logarithms
    of sizes are uniform."""
    rng = random.Random(f"thin {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        sizes = [round(2 ** rng.uniform(np.log2(THIN), np.log2(LONGEST))) for _ in range(3)]
        sizes[len(found) % 3] = round(2 ** rng.uniform(0, np.log2(THIN)))
        if rng.random() < ALIGNED_SHARE:
            sizes = [max(4, each // 4 * 4) for each in sizes]
        layout = LAYOUTS[len(found) // 3 % len(LAYOUTS)]
        problem = GemmProblem(*sizes).laid_out(layout)
        if _affordable(problem):
            found.append(problem)
    return found


def short_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts with a k of at most `SHORT_K`, some of whose C is thin, half of them
    aligned; logarithms of sizes are uniform."""
    rng = random.Random(f"short {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        m, n = (round(2 ** rng.uniform(np.log2(THIN) - 2, np.log2(WIDEST))) for _ in range(2))
        sizes = [m, n, round(2 ** rng.uniform(0, np.log2(SHORT_K)))]
        if rng.random() < ALIGNED_SHARE:
            sizes = [max(4, each // 4 * 4) for each in sizes]
        problem = GemmProblem(*sizes).laid_out(LAYOUTS[len(found) % len(LAYOUTS)])
        if _affordable(problem):
            found.append(problem)
    return found


def wide_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Problems of all layouts, sizes uniform in their logarithms; half are aligned, some batches,
    some of other types than float32."""
    rng = random.Random(f"wide {seed}")
    found: list[GemmProblem] = []
    while len(found) < count:
        sizes = [round(2 ** rng.uniform(np.log2(SMALLEST), np.log2(WIDEST))) for _ in range(3)]
        if rng.random() < ALIGNED_SHARE:
            sizes = [each // 8 * 8 for each in sizes]
        layout = LAYOUTS[len(found) % len(LAYOUTS)]
        batch = rng.randint(2, LARGEST_BATCH) if rng.random() < BATCH_SHARE else 1
        dtype: Dtype = rng.choice(TYPES) if rng.random() < TYPED_SHARE else "float32"
        problem = GemmProblem(*sizes, batch=batch, dtype=dtype).laid_out(layout)
        if _affordable(problem):
            found.append(problem)
    return found


def _affordable(problem: GemmProblem) -> bool:
    m, n, k = problem.m, problem.n, problem.k
    elements = problem.batch * max(m * n, m * k, n * k)
    return m * n * k * problem.batch <= MOST_OF_OTHERS and elements <= MOST_ELEMENTS_OF_OTHERS


SHAPES_OF = {
    "random": random_shapes,
    "thin": thin_shapes,
    "wide": wide_shapes,
    "short": short_shapes,
}


def given_problems(arguments: argparse.Namespace) -> list[tuple[Kind, GemmProblem]]:
    """Those of suites or of a file, each in every type and layout that is asked for."""
    found = [problem for name in arguments.suites for problem in find_suite(name)]
    if arguments.shapes_file is not None:
        found += [read_problem(each) for each in arguments.shapes_file.read_text().split()]
    layouts = [read_layout(each) for each in arguments.layouts or ["nn"]]
    asked = variants(
        found,
        arguments.dtype,
        arguments.out_dtype,
        layouts=layouts,
        precision=arguments.precision,
        scales=arguments.scales,
    )
    return [("given", each) for each in asked]


def asked_problems(kinds: Sequence[Kind], count: int, seed: int) -> list[tuple[Kind, GemmProblem]]:
    """The problems of these kinds, which take turns."""
    each_kind = [[(kind, each) for each in SHAPES_OF[kind](count, seed)] for kind in kinds]
    return [each for turn in zip(*each_kind, strict=True) for each in turn]
