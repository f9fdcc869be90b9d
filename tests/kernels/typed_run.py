"""Runs `typed` on matrices laid out as a problem has them, with NaN wherever nothing belongs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.device import Device, Further, bind_arguments
from gemmkit.epilogue import Custom
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.ladder import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import BROADCAST, Dtype, GemmProblem
from gemmkit.verify.typed import TypedExpected, decoded, encoded, typed_reference

KERNEL = find_kernel("typed")
SMALL = KERNEL.configure({"BM": 32, "BN": 32, "BK": 8, "WM": 16, "WN": 32, "TM": 4, "TN": 4})

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
    config: TileConfig = SMALL,
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

    plan = KERNEL.plan(problem, config, device.spec)
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
