"""Runs kernels on problems of any type, with poison wherever nothing belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.bench.workload import Case
from gemmkit.devices.device import Device
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dtypes import Dtype
from gemmkit.epilogue import Custom
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.storage import layouts
from gemmkit.verify import Reference, Verdict, make_inputs
from gemmkit.verify.arithmetic import named_arithmetic
from gemmkit.verify.encoding import decode, encode
from gemmkit.verify.reference import Expected
from rung_boards import BY_TMA, SMALL_HOPPER, STORED_BY_TMA

TENSOR = {"BM": 32, "BN": 32, "BK": 16, "WM": 32, "WN": 16}
# Small tiles of each kernel, quick to compile for the emulator.
SMALL = {
    "typed": {"BM": 32, "BN": 32, "BK": 8, "WM": 16, "WN": 32, "TM": 4, "TN": 4},
    "typed_mma": {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 16},
    **dict.fromkeys(("wmma", "mma_sync", "mma_pipelined"), TENSOR),
    **SMALL_HOPPER,
    "gemm_small_k": {"BM": 32, "BN": 64, "BK": 16, "WM": 16, "WN": 32, "TM": 2},
}

# All sizes and pitches even, or all odd: each family is one kernel, compiled once.
ALIGNED = {
    "more than one tile": {"m": 72, "n": 40, "k": 56},
    "padded rows": {"m": 40, "n": 72, "k": 24, "lda": 80, "ldb": 88, "ldc": 96},
    "k below the tile": {"m": 8, "n": 104, "k": 8, "alpha": 0.5, "beta": -2.0},
    "no products": {"m": 16, "n": 40, "k": 0, "beta": 0.5},
    "no rows": {"m": 0, "n": 40, "k": 8},
    "alpha 0": {"m": 16, "n": 8, "k": 16, "alpha": 0.0},
}
ODD = {
    "one more": {"m": 65, "n": 33, "k": 49},
    "padded rows": {"m": 35, "n": 67, "k": 15, "lda": 81, "ldb": 91, "ldc": 73, "beta": 1.0},
    "one element": {"m": 1, "n": 1, "k": 1, "alpha": -1.5},
    "row": {"m": 1, "n": 77, "k": 5},
    "column": {"m": 77, "n": 1, "k": 17},
    "alpha 0": {"m": 5, "n": 3, "k": 7, "alpha": 0.0, "beta": 0.5},
}


@dataclass
class Outcome:
    """What a launch made of a problem: numbers of C, m × n each, and whether they are right."""

    results: NDArray[np.float64]
    expected: list[Expected]
    verdict: Verdict
    findings: tuple[Any, ...]


def run_typed(
    problem: GemmProblem,
    device: Device,
    *,
    kernel: str = "typed",
    config: TileConfig | None = None,
    integers: bool = True,
    seed: int = 0,
    given: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> Outcome:
    """One launch. Integers make all sums exact, else numbers are normal.

    `given` are the numbers of A and B instead of random ones, or bytes as they are stored. Of a
    custom activation what is expected is its argument.
    """
    known = problem
    if isinstance(problem.epilogue.activation, Custom):
        known = replace(problem, epilogue=replace(problem.epilogue, activation="none"))
    inputs = make_inputs(known, seed, "integer" if integers else "normal")
    if given is not None:
        # Conversions would make signaling NaN quiet.
        stored = (np.uint8, np.float32) if problem.dtype == "float32" else (np.uint8,)
        a, b = (
            each.ravel() if each.dtype in stored else encode(each, problem.dtype).ravel()
            for each in given
        )
        inputs = replace(inputs, a=a, b=b)
    case = Case.of(known, inputs, device)
    found = find_kernel(kernel)
    config = config or found.configure(SMALL[kernel])
    plan = found.plan(problem, config, device.spec)
    emulated = isinstance(device, EmulatedDevice)
    binary = compile_plan(plan, device.spec.arch, assemble=not emulated)
    named = named_arithmetic(plan.compute_dtype, plan.tolerance)
    if named is not None:
        case = case.under(named)
    launch, results = case.result(problem, device, binary, plan)
    return Outcome(
        decode(layouts(problem)[2].view(results[0]), problem.result_dtype).astype(float),
        [product.blocks[0][2] for product in Reference(known, inputs, "full").products],
        case.reference.check(*results),
        launch.findings,
    )


def check(outcome: Outcome) -> None:
    """Within the bounds everywhere, nothing else written, no rule broken."""
    assert not outcome.findings
    assert outcome.verdict.correct, outcome.verdict.detail


def check_exact(problem: GemmProblem, outcome: Outcome) -> None:
    """Where sums are exact, results are those that a single rounding gives."""
    check(outcome)
    assert outcome.verdict.ratio_bound == 0
    for result, expected in zip(outcome.results, outcome.expected, strict=True):
        once = encode(expected.values, problem.result_dtype)
        assert np.array_equal(result, decode(once, problem.result_dtype))


def for_tma(problem: GemmProblem, *, stored: bool) -> GemmProblem:
    """The problem with rows of A and B that lie a multiple of 16 bytes apart, and if TMA stores C,
    such rows of C."""
    k, n, ldc = (-(-each // 8) * 8 for each in (problem.k, problem.n, problem.ldc))
    lda, ldb = max(problem.lda // 8 * 8, k, 8), max(problem.ldb // 8 * 8, n, 8)
    if stored:
        return replace(problem, n=n, lda=lda, ldb=ldb, ldc=ldc)
    return replace(problem, lda=lda, ldb=ldb)


def check_shapes(
    kernel: str, device: Device, dtype: Dtype, out: Dtype, layout: str, shapes: Mapping[str, Any]
) -> None:
    """A family of shapes, all exact."""
    transa, transb = (letter == "t" for letter in layout)
    for name, sizes in shapes.items():
        problem = GemmProblem(**sizes, dtype=dtype, out_dtype=out, transa=transa, transb=transb)
        if kernel in BY_TMA:
            problem = for_tma(problem, stored=kernel in STORED_BY_TMA)
        try:
            check_exact(problem, run_typed(problem, device, kernel=kernel))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
