"""cuBLAS's routines for groups, which take the address of each matrix from arrays on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.bench.baseline import Arguments
from gemmkit.bench.cublas_lt import ColumnMajor
from gemmkit.bench.groups import BATCHED, GROUPED
from gemmkit.devices.device import TimedDevice, Work
from gemmkit.kernels.group_table import product_addresses
from gemmkit.problem import GemmProblem


@dataclass(frozen=True)
class EqualProducts:
    """The products of groups with those of equal sizes side by side; empty ones are left out.

    `kinds` has one of each size, `counts` how many there are of it, and `order` their numbers in
    the problem.
    """

    kinds: tuple[GemmProblem, ...]
    counts: NDArray[np.int32]
    order: NDArray[np.intp]

    @classmethod
    def of(cls, problem: GemmProblem) -> EqualProducts:
        """Those of a problem with groups."""
        assert problem.groups is not None
        table = problem.groups.table.T
        some = np.flatnonzero((table[:, :2] > 0).all(axis=1))
        _, first, belongs, counts = np.unique(
            table[some], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        return cls(
            tuple(problem.product(int(number)) for number in some[first]),
            counts.astype(np.int32),
            some[np.argsort(belongs.reshape(-1), kind="stable")],
        )


class GroupRoutines:
    """cublasSgemmGroupedBatched, and for equal products cublasSgemmBatched.

    Args:
        cublas: nvmath's module.
        handle: cuBLAS's own.
        device: where arrays of addresses go.
        begin: puts cuBLAS's work on a stream.
    """

    def __init__(
        self, cublas: Any, handle: int, device: TimedDevice, begin: Callable[[Any], None]
    ) -> None:
        self._cublas, self._handle, self._device, self._begin = cublas, handle, device, begin
        # What launches read of the last problem, which must outlive them.
        self._problem: GemmProblem | None = None
        self._kept: list[object] = []

    def ways(self, problem: GemmProblem) -> Iterator[tuple[str, str, Callable[[Arguments], Work]]]:
        """The choice that a record names, the routine, and what makes its launch."""
        if problem != self._problem:
            self._problem, self._kept = problem, []
        products = EqualProducts.of(problem)
        yield (
            GROUPED,
            "cublasSgemmGroupedBatched",
            lambda bound: self._grouped(problem, products, bound),
        )
        if len(products.kinds) == 1:
            yield (
                BATCHED,
                "cublasSgemmBatched",
                lambda bound: self._batched(problem, products, bound),
            )

    def _grouped(self, problem: GemmProblem, products: EqualProducts, bound: Arguments) -> Work:
        forms = [ColumnMajor.of(kind) for kind in products.kinds]
        count = len(forms)
        kinds = self._cublas.Operation
        # Of these the host's memory is read.
        arrays = [
            *(
                np.array([int(kinds.T if each else kinds.N) for each in turned], np.int32)
                for turned in ([x.first[3] for x in forms], [x.second[3] for x in forms])
            ),
            np.array([form.rows for form in forms], np.int32),
            np.array([form.columns for form in forms], np.int32),
            np.array([kind.k for kind in products.kinds], np.int32),
            np.full(count, bound["alpha"], np.float32),
            np.array([form.first[1] for form in forms], np.int32),
            np.array([form.second[1] for form in forms], np.int32),
            np.full(count, bound["beta"], np.float32),
            np.array([kind.ldc for kind in products.kinds], np.int32),
            products.counts,
        ]
        x, y, c = self._addresses(problem, products, bound)
        # Graphs may read them at each replay.
        self._kept.append(arrays)

        def enqueue(stream: Any) -> None:
            at = [each.ctypes.data for each in arrays]
            self._begin(stream)
            with self._in_precision_of(problem):
                self._cublas.sgemm_grouped_batched(
                    *(self._handle, *at[:6], x, at[6], y, at[7], at[8], c, at[9], count, at[10])
                )

        return enqueue

    def _batched(self, problem: GemmProblem, products: EqualProducts, bound: Arguments) -> Work:
        (kind,) = products.kinds
        form, kinds = ColumnMajor.of(kind), self._cublas.Operation
        turned = (kinds.T if each[3] else kinds.N for each in (form.first, form.second))
        shape = (*turned, form.rows, form.columns, kind.k)
        alpha, beta = (np.array([bound[name]], np.float32) for name in ("alpha", "beta"))
        x, y, c = self._addresses(problem, products, bound)
        count = int(products.counts[0])

        def enqueue(stream: Any) -> None:
            self._begin(stream)
            with self._in_precision_of(problem):
                self._cublas.sgemm_batched(
                    *(self._handle, *shape, alpha.ctypes.data, x, form.first[1], y, form.second[1]),
                    *(beta.ctypes.data, c, kind.ldc, count),
                )

        return enqueue

    @contextmanager
    def _in_precision_of(self, problem: GemmProblem) -> Iterator[None]:
        """Let cuBLAS multiply in TF32 where the problem allows it."""
        if problem.precision != "tf32":
            yield
            return
        modes = self._cublas.Math
        self._cublas.set_math_mode(self._handle, modes.TF32_TENSOR_OP_MATH)
        try:
            yield
        finally:
            self._cublas.set_math_mode(self._handle, modes.DISALLOW_REDUCED_PRECISION_REDUCTION)

    def _addresses(
        self, problem: GemmProblem, products: EqualProducts, bound: Arguments
    ) -> tuple[int, int, int]:
        """Where on the device the addresses of cuBLAS's first and second operand, and of C, are."""
        at = product_addresses(problem, bound)
        form = ColumnMajor.of(problem.single)
        buffers = [
            self._device.upload(at[letter][products.order])
            for letter in (form.first[0], form.second[0], "C")
        ]
        self._kept += buffers
        x, y, c = (each.address for each in buffers)
        return x, y, c
