"""cuBLAS and cuBLASLt, with its own heuristics tried, through nvmath-python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemmkit.bench.baseline import Arguments, Way, stored_steps
from gemmkit.bench.cublas_groups import GroupRoutines
from gemmkit.bench.cublas_lt import (
    CUDA_TYPES,
    WORKSPACE_BYTES,
    ColumnMajor,
    Fused,
    LtPlan,
    compute_type,
    configuration,
    factors,
)
from gemmkit.bench.torch_peer import TorchBaseline
from gemmkit.devices.device import Buffer, TimedDevice, Work
from gemmkit.dtypes import OPERAND_TYPES, is_narrow
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import Step


class CublasBaseline:
    """cublasSgemm (of other types, and in TF32, cublasGemmEx), and the eight best of cuBLASLt's
    heuristics, through nvmath-python.

    For a batch, the strided batches of both, and for groups the routines of `GroupRoutines`. Of an
    epilogue cuBLASLt fuses what it can; the rest is left to PyTorch's kernels, where that is
    installed. Sums of 16-bit products are fp32, whatever parts k is cut into.

    Raises:
        ImportError: nvmath-python is not installed.
        Exception: cuBLAS itself is missing.
    """

    def __init__(self, device: TimedDevice) -> None:
        from nvmath.bindings import cublas, cublasLt

        self._cublas, self._lt = cublas, cublasLt
        self._handle, self._lt_handle = cublas.create(), cublasLt.create()
        cublas.set_math_mode(self._handle, cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION)
        version = cublas.get_version(self._handle)
        self.name = f"cuBLAS {version // 10000}.{version // 100 % 100}.{version % 100}"
        self._device = device
        self._workspace: Buffer = device.empty(WORKSPACE_BYTES)
        self._groups = GroupRoutines(cublas, self._handle, device, self._begin)

    def candidates(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """cuBLASLt's choices, in its own order, and the plain routine where nothing is fused.

        Raises:
            UnsupportedProblem: A and B have 8 bits, or cuBLASLt cannot fuse the epilogue, and
                PyTorch is missing or cannot compute the rest.
        """
        narrow = problem.dtype in OPERAND_TYPES
        if narrow and (problem.layout != "nt" or problem.groups is not None):
            raise UnsupportedProblem(f"cuBLAS multiplies {problem.dtype} along k alone: layout NT")
        if is_narrow(problem.result_dtype) and (not narrow or Fused.of(problem).left):
            raise UnsupportedProblem(
                f"cuBLAS has no results of {problem.result_dtype} of {problem.dtype} with the "
                f"epilogue {problem.epilogue}"
            )
        if problem.groups is not None:
            return self._of_groups(problem, arguments)
        # It may have no kernel for the matrices or the activation of an epilogue in these types.
        *more, least = dict.fromkeys(
            (
                Fused.of(problem),
                Fused.of(problem, matrices=False),
                Fused.of(problem, matrices=False, activation=False),
            )
        )
        for fused in more:
            try:
                found = self._fused(problem, fused, arguments)
            except UnsupportedProblem:
                raise
            except Exception:
                continue
            if found:
                return found
        try:
            found = self._fused(problem, least, arguments)
        except self._lt.cuBLASLtError as refused:
            # Of 8 bits, it takes only sizes and rows in multiples of 16, and not all scales.
            reason = str(refused).split(". ")[0]
            raise UnsupportedProblem(f"cuBLASLt does not take {problem.shape}: {reason}") from None
        if not found:
            raise UnsupportedProblem(f"cuBLASLt has no algorithm for {problem.shape}")
        return found

    def _fused(
        self, problem: GemmProblem, fused: Fused, arguments: Sequence[Arguments]
    ) -> dict[str, Way]:
        """The candidates where cuBLASLt is to fuse so much."""
        finish = self._rest(problem, fused.steps, arguments) if fused.left else None
        more = ", then PyTorch's kernels" if fused.left else ""
        stored = stored_steps(problem.epilogue, fused.steps) if fused.left else ()
        found: dict[str, Way] = {}
        plans = [LtPlan(self._lt, self._lt_handle, problem, fused, each) for each in arguments]
        algorithms = plans[0].algorithms
        count = len(algorithms)
        for number, algorithm in enumerate(algorithms, 1):
            how = f"heuristic {number} of {count}: {configuration(self._lt, algorithm)}"
            works = [
                self._matmul(plan, algorithm, each)
                for plan, each in zip(plans, arguments, strict=True)
            ]
            name = f"{self.name} (cublasLtMatmul, {fused.name}, {how}){more}"
            found[name] = Way(_followed(works, finish), stored)
        if fused.name == "DEFAULT" and not fused.residual and problem.dtype not in OPERAND_TYPES:
            name, gemm = self._routine(problem)
            works = [gemm(problem, each) for each in arguments]
            found[f"{self.name} ({name}){more}"] = Way(_followed(works, finish), stored)
        return found

    def _of_groups(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """Products by arrays of addresses, then the epilogue in PyTorch's kernels.

        Raises:
            UnsupportedProblem: the matrices are not float32, or PyTorch cannot compute the rest.
        """
        if {problem.dtype, problem.result_dtype} != {"float32"}:
            raise UnsupportedProblem("groups are compared with cuBLAS's routines for float32 alone")
        left = str(problem.epilogue) != "none"
        finish = self._rest(problem, ("product",), arguments) if left else None
        more = ", then PyTorch's kernels" if left else ""
        stored = stored_steps(problem.epilogue) if left else ()
        return {
            f"{self.name} ({name}){more}": Way(
                _followed([make(each) for each in arguments], finish), stored, choice
            )
            for choice, name, make in self._groups.ways(problem)
        }

    def _rest(
        self, problem: GemmProblem, done: Sequence[Step], arguments: Sequence[Arguments]
    ) -> list[Work]:
        """What computes the rest of the epilogue on each set of buffers.

        Raises:
            UnsupportedProblem: PyTorch is missing, or cannot compute it.
        """
        try:
            return TorchBaseline(self._device).rest(problem, arguments, done)
        except (ImportError, RuntimeError) as error:
            raise UnsupportedProblem(
                f"cuBLASLt cannot fuse {problem.epilogue}, and PyTorch is not there to compute the "
                "rest of it"
            ) from error

    def _routine(
        self, problem: GemmProblem
    ) -> tuple[str, Callable[[GemmProblem, Arguments], Work]]:
        batched = problem.batch != 1
        if {problem.dtype, problem.result_dtype} == {"float32"} and problem.precision != "tf32":
            return "cublasSgemmStridedBatched" if batched else "cublasSgemm", self._sgemm
        return "cublasGemmStridedBatchedEx" if batched else "cublasGemmEx", self._gemm_ex

    def _sgemm(self, problem: GemmProblem, bound: Arguments) -> Work:
        form = ColumnMajor.of(problem)
        (x, ldx, stride_x, turned_x), (y, ldy, stride_y, turned_y) = form.first, form.second
        shape = (*self._operations(turned_x, turned_y), form.rows, form.columns, problem.k)
        alpha, beta = (np.array([bound[name]], np.float32) for name in ("alpha", "beta"))
        ldc, stride_c = problem.ldc, problem.strides[2]

        def enqueue(stream: Any) -> None:
            self._begin(stream)
            if problem.batch == 1:
                self._cublas.sgemm(
                    *(self._handle, *shape, alpha.ctypes.data, bound[x], ldx, bound[y], ldy),
                    *(beta.ctypes.data, bound["C"], ldc),
                )
            else:
                self._cublas.sgemm_strided_batched(
                    *(self._handle, *shape, alpha.ctypes.data, bound[x], ldx, stride_x),
                    *(bound[y], ldy, stride_y, beta.ctypes.data, bound["C"], ldc, stride_c),
                    problem.batch,
                )

        return enqueue

    def _gemm_ex(self, problem: GemmProblem, bound: Arguments) -> Work:
        form, cublas = ColumnMajor.of(problem), self._cublas
        (x, ldx, stride_x, turned_x), (y, ldy, stride_y, turned_y) = form.first, form.second
        shape = (*self._operations(turned_x, turned_y), form.rows, form.columns, problem.k)
        alpha, beta = factors(problem, bound)
        operand, result = CUDA_TYPES[problem.dtype], CUDA_TYPES[problem.result_dtype]
        ldc, stride_c = problem.ldc, problem.strides[2]
        rest = compute_type(cublas, problem), cublas.GemmAlgo.DEFAULT

        def enqueue(stream: Any) -> None:
            self._begin(stream)
            if problem.batch == 1:
                cublas.gemm_ex(
                    *(self._handle, *shape, alpha.ctypes.data, bound[x], operand, ldx),
                    *(bound[y], operand, ldy, beta.ctypes.data, bound["C"], result, ldc, *rest),
                )
            else:
                cublas.gemm_strided_batched_ex(
                    *(self._handle, *shape, alpha.ctypes.data, bound[x], operand, ldx, stride_x),
                    *(bound[y], operand, ldy, stride_y, beta.ctypes.data, bound["C"], result, ldc),
                    *(stride_c, problem.batch, *rest),
                )

        return enqueue

    def _operations(self, *transposed: bool) -> tuple[Any, ...]:
        kinds = self._cublas.Operation
        return tuple(kinds.T if each else kinds.N for each in transposed)

    def _begin(self, stream: Any) -> None:
        self._cublas.set_stream(self._handle, int(stream.handle))
        # After each set_stream, else it takes memory of its own in the middle of a recording.
        self._cublas.set_workspace(self._handle, self._workspace.address, WORKSPACE_BYTES)

    def _matmul(self, plan: LtPlan, algorithm: int, bound: Arguments) -> Work:
        x, y = plan.letters
        c, addend = bound["C"], bound[plan.addend] if plan.addend else 0

        def enqueue(stream: Any) -> None:
            self._lt.matmul(
                *(self._lt_handle, plan.operation, plan.alpha.ctypes.data),
                *(bound[x], plan.layout_x, bound[y], plan.layout_y, plan.beta.ctypes.data),
                *(addend, plan.layout_addend, c, plan.layout_c, algorithm),
                *(self._workspace.address, WORKSPACE_BYTES, int(stream.handle)),
            )

        return enqueue


def _followed(works: Sequence[Work], rest: Sequence[Work] | None) -> list[Work]:
    """Each work with what follows it, if anything does."""
    if rest is None:
        return list(works)

    def both(first: Work, second: Work) -> Work:
        def enqueue(stream: Any) -> None:
            first(stream)
            second(stream)

        return enqueue

    return list(map(both, works, rest))
