"""cuBLAS and cuBLASLt, with its own heuristics tried, through nvmath-python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmkit.bench.baseline import Arguments
from gemmkit.bench.torch_peer import TorchBaseline
from gemmkit.devices.device import Buffer, TimedDevice, Work
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import Dtype, GemmProblem

# What cuBLAS recommends for Hopper; more than other GPUs need.
WORKSPACE_BYTES = 32 * 2**20
HEURISTICS = 8

# cudaDataType_t of each type.
CUDA_TYPES: Mapping[Dtype, int] = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}


@dataclass(frozen=True, slots=True)
class _ColumnMajor:
    """A problem as column-major cuBLAS is given it: D (rows × columns) = op(X)·op(Y).

    `first` and `second` are the letters of X and Y, each with its leading dimension, its stride in
    a batch, and whether op transposes it. Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ, and a
    row-major matrix is the transpose of the column-major one in the same memory.
    """

    rows: int
    columns: int
    first: tuple[str, int, int, bool]
    second: tuple[str, int, int, bool]

    @classmethod
    def of(cls, problem: GemmProblem) -> _ColumnMajor:
        """A problem of any layout."""
        stride_a, stride_b, _ = problem.strides
        a = ("A", problem.lda, stride_a, problem.transa == problem.transc)
        b = ("B", problem.ldb, stride_b, problem.transb == problem.transc)
        if problem.transc:
            return cls(problem.m, problem.n, _turned(a), _turned(b))
        return cls(problem.n, problem.m, _turned(b), _turned(a))

    def stored(self, k: int, *, second: bool) -> tuple[int, int]:
        """Rows and columns of X or Y as column-major memory holds them."""
        if second:
            return (self.columns, k) if self.second[3] else (k, self.columns)
        return (k, self.rows) if self.first[3] else (self.rows, k)


def _turned(operand: tuple[str, int, int, bool]) -> tuple[str, int, int, bool]:
    letter, ld, stride, plain = operand
    return letter, ld, stride, not plain


class CublasBaseline:
    """cublasSgemm (of other types cublasGemmEx), and the eight best of cuBLASLt's heuristics,
    through nvmath-python.

    For a batch, the strided batches of both. An epilogue that cuBLASLt cannot fuse is left to
    PyTorch's kernels, where that is installed.

    Raises:
        ImportError: nvmath-python is not installed.
        Exception: cuBLAS itself is missing.
    """

    def __init__(self, device: TimedDevice) -> None:
        from nvmath.bindings import cublas, cublasLt

        self._cublas, self._lt = cublas, cublasLt
        self._handle, self._lt_handle = cublas.create(), cublasLt.create()
        version = cublas.get_version(self._handle)
        self.name = f"cuBLAS {version // 10000}.{version // 100 % 100}.{version % 100}"
        self._device = device
        self._workspace: Buffer = device.empty(WORKSPACE_BYTES)

    def candidates(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, list[Work]]:
        """cuBLASLt's choices, in its own order, and the plain routine where there is no epilogue.

        Raises:
            UnsupportedProblem: cuBLASLt cannot fuse the epilogue, and PyTorch is missing or
                cannot compute the problem.
        """
        if _fused_name(problem) is None:
            try:
                return TorchBaseline(self._device).candidates(problem, arguments)
            except (ImportError, RuntimeError) as error:
                raise UnsupportedProblem(
                    f"cuBLASLt cannot fuse {problem.epilogue}, and PyTorch is not there to compute "
                    "it after cuBLAS"
                ) from error
        found: dict[str, list[Work]] = {}
        plan = _LtPlan(self._lt, self._lt_handle, problem, arguments[0])
        for number, algorithm in enumerate(plan.algorithms, 1):
            name = f"{self.name} (cublasLtMatmul, heuristic {number} of {len(plan.algorithms)})"
            found[name] = [self._matmul(plan, algorithm, each) for each in arguments]
        if str(problem.epilogue) == "none":
            name, gemm = self._routine(problem)
            found[f"{self.name} ({name})"] = [gemm(problem, each) for each in arguments]
        return found

    def _routine(
        self, problem: GemmProblem
    ) -> tuple[str, Callable[[GemmProblem, Arguments], Work]]:
        batched = problem.batch != 1
        if {problem.dtype, problem.result_dtype} == {"float32"}:
            return "cublasSgemmStridedBatched" if batched else "cublasSgemm", self._sgemm
        return "cublasGemmStridedBatchedEx" if batched else "cublasGemmEx", self._gemm_ex

    def _sgemm(self, problem: GemmProblem, bound: Arguments) -> Work:
        form = _ColumnMajor.of(problem)
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
        form, cublas = _ColumnMajor.of(problem), self._cublas
        (x, ldx, stride_x, turned_x), (y, ldy, stride_y, turned_y) = form.first, form.second
        shape = (*self._operations(turned_x, turned_y), form.rows, form.columns, problem.k)
        alpha, beta = _factors(problem, bound)
        operand, result = CUDA_TYPES[problem.dtype], CUDA_TYPES[problem.result_dtype]
        ldc, stride_c = problem.ldc, problem.strides[2]
        rest = _compute_type(cublas, problem), cublas.GemmAlgo.DEFAULT

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

    def _matmul(self, plan: _LtPlan, algorithm: int, bound: Arguments) -> Work:
        x, y = plan.letters
        c = bound["C"]

        def enqueue(stream: Any) -> None:
            self._lt.matmul(
                *(self._lt_handle, plan.operation, plan.alpha.ctypes.data),
                *(bound[x], plan.layout_x, bound[y], plan.layout_y, plan.beta.ctypes.data),
                *(c, plan.layout_c, c, plan.layout_c, algorithm),
                *(self._workspace.address, WORKSPACE_BYTES, int(stream.handle)),
            )

        return enqueue


def _fused_name(problem: GemmProblem) -> str | None:
    """The epilogue as cuBLASLt fuses it, such as `RELU_BIAS`, or None where it cannot: its bias has
    a value for each row of the column-major result."""
    epilogue = problem.epilogue
    if epilogue.bias:
        if (epilogue.bias == "row") != problem.transc:
            return None
        epilogue = replace(epilogue, bias="column")
    name = epilogue.cublaslt_name
    return None if name is None else name.removeprefix("CUBLASLT_EPILOGUE_")


def _factors(problem: GemmProblem, bound: Arguments) -> tuple[Any, Any]:
    """α and β in the type of the sums."""
    kind = np.float64 if problem.sum_dtype == "float64" else np.float32
    return np.array([bound["alpha"]], kind), np.array([bound["beta"]], kind)


def _compute_type(cublas: Any, problem: GemmProblem) -> Any:
    double = problem.sum_dtype == "float64"
    return cublas.ComputeType.COMPUTE_64F if double else cublas.ComputeType.COMPUTE_32F


class _LtPlan:
    """cuBLASLt's description of one problem, and the algorithms that it proposes for it.

    The descriptors live as long as the process: there are few, and recordings may use them.
    """

    def __init__(self, lt: Any, handle: int, problem: GemmProblem, bound: Arguments) -> None:
        from nvmath.bindings import cublas

        form, k = _ColumnMajor.of(problem), problem.k
        operand, result = CUDA_TYPES[problem.dtype], CUDA_TYPES[problem.result_dtype]
        self.alpha, self.beta = _factors(problem, bound)
        self.letters = form.first[0], form.second[0]
        self.operation = lt.matmul_desc_create(
            _compute_type(cublas, problem), CUDA_TYPES[problem.sum_dtype]
        )
        x, y = form.stored(k, second=False), form.stored(k, second=True)
        self.layout_x = lt.matrix_layout_create(operand, *x, form.first[1])
        self.layout_y = lt.matrix_layout_create(operand, *y, form.second[1])
        self.layout_c = lt.matrix_layout_create(result, form.rows, form.columns, problem.ldc)
        if problem.batch != 1:
            strides = form.first[2], form.second[2], problem.strides[2]
            operands = (self.layout_x, self.layout_y, self.layout_c)
            for layout, stride in zip(operands, strides, strict=True):
                _describe_batch(lt, layout, problem.batch, stride)
        attributes = lt.MatmulDescAttribute
        for attribute, turned in (
            (attributes.TRANSA, form.first[3]),
            (attributes.TRANSB, form.second[3]),
        ):
            if turned:
                self._describe(lt, attribute, np.array([cublas.Operation.T], np.int32))
        epilogue = np.array([lt.Epilogue[_fused_name(problem)]], np.uint32)
        self._describe(lt, attributes.EPILOGUE, epilogue)
        if problem.epilogue.bias:
            bias = np.array([bound["bias"]], np.uint64)
            self._describe(lt, attributes.BIAS_POINTER, bias)
        self._results = lt.MatmulHeuristicResult(HEURISTICS)
        self.algorithms = self._ask(lt, handle)

    def _describe(self, lt: Any, attribute: int, value: np.ndarray[Any, Any]) -> None:
        lt.matmul_desc_set_attribute(self.operation, attribute, value.ctypes.data, value.nbytes)

    def _ask(self, lt: Any, handle: int) -> list[int]:
        """Addresses of the algorithms in `_results`, each the first field of its result."""
        preference = lt.matmul_preference_create()
        workspace = np.array([WORKSPACE_BYTES], np.uint64)
        limit = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        lt.matmul_preference_set_attribute(
            preference, limit, workspace.ctypes.data, workspace.nbytes
        )
        count = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                *(handle, self.operation, self.layout_x, self.layout_y),
                *(self.layout_c, self.layout_c, preference, HEURISTICS),
                *(self._results.ptr, count.ctypes.data),
            )
        finally:
            lt.matmul_preference_destroy(preference)
        results = (self._results[index] for index in range(int(count[0])))
        return [int(each.ptr) for each in results if int(each.state) == 0]


def _describe_batch(lt: Any, layout: Any, batch: int, stride: int) -> None:
    """Say that a layout is that of the first of several matrices; a stride of 0 repeats it."""
    attributes = lt.MatrixLayoutAttribute
    for attribute, value in (
        (attributes.BATCH_COUNT, np.array([batch], np.int32)),
        (attributes.STRIDED_BATCH_OFFSET, np.array([stride], np.int64)),
    ):
        lt.matrix_layout_set_attribute(layout, attribute, value.ctypes.data, value.nbytes)
