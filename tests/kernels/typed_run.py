"""Runs `typed` and `typed_mma` on matrices laid out as told, with NaN wherever nothing belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gemmkit.verify.typed import TypedExpected, decoded, encoded, typed_reference
from numpy.typing import NDArray

from gemmkit.devices.device import Device, Further, bind_arguments
from gemmkit.epilogue import Custom
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.ladder import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import BROADCAST, Dtype, GemmProblem

# Small tiles of each kernel, quick to compile for the emulator.
SMALL = {
    "typed": {"BM": 32, "BN": 32, "BK": 8, "WM": 16, "WN": 32, "TM": 4, "TN": 4},
    "typed_mma": {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 16},
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

# Elements by which the rows of a residual and an auxiliary output are longer than C's.
MORE = 3


@dataclass
class Outcome:
    """Results and auxiliary output of each product of a batch, what they must be, and findings."""

    results: NDArray[np.float64]
    auxiliary: NDArray[np.float64]
    expected: list[TypedExpected]
    untouched: bool
    findings: tuple[Any, ...]


class Storage:
    """`count` matrices in memory: element (row, col) of number i at i * stride + row * ld + col."""

    def __init__(self, count: int, rows: int, columns: int, ld: int, stride: int, dtype: Dtype):
        last = (count - 1) * stride + (rows - 1) * ld + columns
        self.stored = encoded(np.full(last if count and rows and columns else 0, np.nan), dtype)
        self.dtype = dtype
        size = self.stored.itemsize
        self.view = np.lib.stride_tricks.as_strided(
            self.stored,
            (count, rows, columns),
            (size * stride, size * ld, size),
        )

    def fill(self, values: NDArray[np.float64]) -> Storage:
        self.view[:] = encoded(values.reshape(self.view.shape), self.dtype)
        return self

    def numbers(self) -> NDArray[np.float64]:
        return decoded(self.view, self.dtype)


def run_typed(
    problem: GemmProblem,
    device: Device,
    *,
    kernel: str = "typed",
    config: TileConfig | None = None,
    integers: bool = True,
    seed: int = 0,
    given: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> Outcome:
    """One launch. `integers` of up to 4 make all sums exact, else numbers are normal.

    `given` are the numbers of A and B instead of random ones. Of a custom activation what is
    expected is its argument.
    """
    p, rng = problem, np.random.default_rng(seed)
    out: Dtype = p.out_dtype or p.dtype

    def draw(shape: tuple[int, ...]) -> NDArray[np.float64]:
        if integers:
            return rng.integers(-4, 5, shape).astype(float)
        return rng.standard_normal(shape)

    def matrices(rows: int, columns: int, ld: int, stride: int, dtype: Dtype) -> Storage:
        once = p.batch > 1 and stride == BROADCAST
        made = Storage(1 if once else p.batch, rows, columns, ld, max(stride, 0), dtype)
        return made.fill(draw(made.view.shape))

    def transposed(flag: bool, rows: int, columns: int) -> tuple[int, int]:
        return (columns, rows) if flag else (rows, columns)

    a = matrices(*transposed(p.transa, p.m, p.k), p.lda, p.stride_a, p.dtype)
    b = matrices(*transposed(p.transb, p.k, p.n), p.ldb, p.stride_b, p.dtype)
    if given is not None:
        a.fill(given[0]), b.fill(given[1])
    c = Storage(p.batch, p.m, p.n, p.ldc, p.strides[2], out)
    if p.beta:
        c.fill(draw(c.view.shape))
    ld, stride = p.n + MORE, p.m * (p.n + MORE) + 5
    residual = matrices(p.m, p.n, ld, stride, out)
    auxiliary = Storage(p.batch, p.m, p.n, ld, stride, out)
    bias = encoded(draw((p.m if p.epilogue.bias == "row" else p.n,)), out)

    found = find_kernel(kernel)
    config = config or found.configure(SMALL[kernel])
    plan = found.plan(problem, config, device.spec)
    binary = compile_plan(plan, device.spec.arch)
    buffers = [device.upload(each.stored) for each in (a, b, c, residual, auxiliary)]
    bias_buffer = device.upload(bias)
    launch = device.launch(
        binary,
        plan,
        bind_arguments(
            problem,
            *buffers[:3],
            bias_buffer,
            residual=Further(buffers[3], ld, stride),
            auxiliary=Further(buffers[4], ld, stride),
        ),
    )
    before = c.numbers()
    outside = [np.ones(each.stored.size, bool) for each in (c, auxiliary)]
    for each, mask in zip((c, auxiliary), outside, strict=True):
        np.lib.stride_tricks.as_strided(
            mask, each.view.shape, [step // each.stored.itemsize for step in each.view.strides]
        )[:] = False
    for each, buffer in zip((c, auxiliary), (buffers[2], buffers[4]), strict=True):
        if each.stored.size:
            device.download(buffer, each.stored)
    untouched = all(
        bool(np.isnan(decoded(each.stored[mask], out)).all())
        for each, mask in zip((c, auxiliary), outside, strict=True)
    )
    known = problem
    if isinstance(p.epilogue.activation, Custom):
        known = replace(problem, epilogue=replace(p.epilogue, activation="none"))
    expected = [
        typed_reference(
            known,
            _of(a, number, p.transa),
            _of(b, number, p.transb),
            before[number] if p.beta else None,
            decoded(bias, out) if p.epilogue.bias else None,
            residual.numbers()[number] if p.epilogue.residual else None,
        )
        for number in range(p.batch)
    ]
    return Outcome(c.numbers(), auxiliary.numbers(), expected, untouched, launch.findings)


def _of(operand: Storage, number: int, transposed: bool) -> NDArray[np.float64]:
    stored = operand.numbers()[min(number, len(operand.view) - 1)]
    return stored.T if transposed else stored


def check(outcome: Outcome) -> None:
    """Within the bounds everywhere, nothing else written, no rule broken."""
    assert not outcome.findings
    assert outcome.untouched
    for result, expected in zip(outcome.results, outcome.expected, strict=True):
        assert np.all(abs(result - expected.values) <= expected.bounds)


def check_exact(problem: GemmProblem, outcome: Outcome) -> None:
    """Where sums are exact, results are those that a single rounding gives."""
    check(outcome)
    for result, expected in zip(outcome.results, outcome.expected, strict=True):
        once = encoded(expected.values.astype(float), problem.out_dtype)
        assert np.array_equal(result, decoded(once, problem.out_dtype))


def check_shapes(
    kernel: str, device: Device, dtype: Dtype, out: Dtype, layout: str, shapes: Mapping[str, Any]
) -> None:
    """A family of shapes, all exact."""
    transa, transb = (letter == "t" for letter in layout)
    for name, sizes in shapes.items():
        problem = GemmProblem(**sizes, dtype=dtype, out_dtype=out, transa=transa, transb=transb)
        try:
            check_exact(problem, run_typed(problem, device, kernel=kernel))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
