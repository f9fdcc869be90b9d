"""cuBLASLt's description of a problem: its layouts, what it fuses, and its heuristics' choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gemmkit.bench.baseline import Arguments, steps_of
from gemmkit.dtypes import OPERAND_TYPES, Dtype, is_narrow
from gemmkit.problem import GemmProblem
from gemmkit.scales import NONE
from gemmkit.storage import further_layouts
from gemmkit.verify.arithmetic import Step

# What cuBLAS recommends for Hopper; more than other GPUs need.
WORKSPACE_BYTES = 32 * 2**20
HEURISTICS = 8

# cudaDataType_t of each type.
CUDA_TYPES: Mapping[Dtype, int] = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 14,
    "float8_e4m3": 28,
    "float8_e5m2": 29,
}
# cublasLtMatmulMatrixScale_t of the scales of an operand.
SCALE_MODES: Mapping[str, int] = {
    "tensor": 0,  # SCALAR_32F
    "rows": 3,  # OUTER_VEC_32F
    "columns": 3,
    "1x128": 4,  # VEC128_32F
    "128x128": 5,  # BLK128x128_32F
}


@dataclass(frozen=True, slots=True)
class ColumnMajor:
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
    def of(cls, problem: GemmProblem) -> ColumnMajor:
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


@dataclass(frozen=True, slots=True)
class Fused:
    """What cuBLASLt computes of an epilogue together with the product.

    `name` is the epilogue as it calls it, such as `RELU_BIAS`, and `steps` are those that it has. A
    `residual` is its C, with β = 1, and D another matrix. `left` says whether anything is left to
    do.
    """

    name: str
    steps: tuple[Step, ...]
    residual: bool
    auxiliary: bool
    left: bool

    @classmethod
    def of(cls, problem: GemmProblem, *, matrices: bool = True, activation: bool = True) -> Fused:
        """As much as there is a name for: its bias has a value for each row of the column-major
        result, and its auxiliary output is that of GELU's approximation by tanh. Without
        `matrices`, residual and auxiliary output are left, without `activation` that and what
        follows it."""
        epilogue = problem.epilogue
        known = not epilogue.bias or (epilogue.bias == "row") == problem.transc
        # Beside results of 8 bits its bias has 16.
        known &= not (epilogue.bias and is_narrow(problem.result_dtype))
        bias = bool(epilogue.bias) and known
        part = replace(
            epilogue, bias=bias, residual=False, scale=1.0, auxiliary=False, scale_result=False
        )
        matrices = matrices and not problem.transc
        auxiliary = epilogue.auxiliary and part.activation == "gelu_tanh" and matrices
        # Of cuBLAS 13.1's GELU in fp64 the constants have the precision of fp32.
        coarse = part.activation == "gelu_tanh" and problem.dtype == "float64"
        named = part.cublaslt_name is not None and activation and not coarse
        if not named or not known or epilogue.auxiliary != auxiliary:
            part, auxiliary = replace(part, activation="none"), False
        name = (part.cublaslt_name or "").removeprefix("CUBLASLT_EPILOGUE_")
        steps = tuple(steps_of(part))
        only_residual = epilogue == replace(part, bias=epilogue.bias, residual=True)
        residual = only_residual and known and problem.beta == 0 and matrices
        residual = residual and part.activation == "none"
        left = len(steps) < len(steps_of(epilogue)) or epilogue.residual != residual
        if auxiliary:
            name = name.replace("GELU", "GELU_AUX")
        return cls(name, steps, residual, auxiliary, left)


def factors(problem: GemmProblem, bound: Arguments) -> tuple[Any, Any]:
    """α and β in the type of the sums."""
    kind = np.float64 if problem.sum_dtype == "float64" else np.float32
    return np.array([bound["alpha"]], kind), np.array([bound["beta"]], kind)


def compute_type(cublas: Any, problem: GemmProblem) -> Any:
    """cublasComputeType_t of the type of the sums and of the precision."""
    types = cublas.ComputeType
    if problem.precision == "tf32":
        return types.COMPUTE_32F_FAST_TF32
    return types.COMPUTE_64F if problem.sum_dtype == "float64" else types.COMPUTE_32F


class LtPlan:
    """cuBLASLt's description of one problem, and the algorithms that it proposes for it.

    A descriptor holds addresses of an epilogue's operands, so that each set of buffers has its own.
    They live as long as the process: recordings may use them.
    """

    def __init__(
        self, lt: Any, handle: int, problem: GemmProblem, fused: Fused, bound: Arguments
    ) -> None:
        from nvmath.bindings import cublas

        form, k = ColumnMajor.of(problem), problem.k
        operand, result = CUDA_TYPES[problem.dtype], CUDA_TYPES[problem.result_dtype]
        self.alpha, self.beta = factors(problem, bound)
        self.letters = form.first[0], form.second[0]
        if fused.residual:
            self.beta[0] = 1
        self.operation = lt.matmul_desc_create(
            compute_type(cublas, problem), CUDA_TYPES[problem.sum_dtype]
        )
        x, y = form.stored(k, second=False), form.stored(k, second=True)
        self.layout_x = lt.matrix_layout_create(operand, *x, form.first[1])
        self.layout_y = lt.matrix_layout_create(operand, *y, form.second[1])
        self.layout_c = lt.matrix_layout_create(result, form.rows, form.columns, problem.ldc)
        of_residual, of_auxiliary = further_layouts(problem)
        strides = {
            self.layout_x: form.first[2],
            self.layout_y: form.second[2],
            self.layout_c: problem.strides[2],
        }
        # What is added, which is C itself unless there is a residual to add.
        self.addend, self.layout_addend = "C", self.layout_c
        if fused.residual:
            self.addend, size = "residual", (form.rows, form.columns)
            self.layout_addend = lt.matrix_layout_create(result, *size, of_residual.ld)
            strides[self.layout_addend] = of_residual.stride
        if is_narrow(problem.result_dtype):
            # A C that is not read has 16 bits beside a D of 8, and no address.
            self.addend, wider = "", CUDA_TYPES["bfloat16"]
            size = form.rows, form.columns
            self.layout_addend = lt.matrix_layout_create(wider, *size, problem.ldc)
            strides[self.layout_addend] = problem.strides[2]
        if problem.batch != 1:
            for layout, stride in strides.items():
                describe_batch(lt, layout, problem.batch, stride)
        attributes = lt.MatmulDescAttribute
        for attribute, turned in (
            (attributes.TRANSA, form.first[3]),
            (attributes.TRANSB, form.second[3]),
        ):
            if turned:
                self._describe(lt, attribute, np.array([cublas.Operation.T], np.int32))
        epilogue = np.array([lt.Epilogue[fused.name]], np.uint32)
        self._describe(lt, attributes.EPILOGUE, epilogue)
        if "bias" in fused.steps:
            bias = np.array([bound["bias"]], np.uint64)
            self._describe(lt, attributes.BIAS_POINTER, bias)
        if fused.auxiliary:
            for attribute, number in (
                (attributes.EPILOGUE_AUX_POINTER, bound["auxiliary"]),
                (attributes.EPILOGUE_AUX_LD, of_auxiliary.ld),
                (attributes.EPILOGUE_AUX_BATCH_STRIDE, of_auxiliary.stride),
            ):
                self._describe(lt, attribute, np.array([number], np.int64))
        if problem.epilogue.scale_result:
            scale = np.array([bound["scale_result"]], np.uint64)
            self._describe(lt, attributes.D_SCALE_POINTER, scale)
        if problem.dtype in OPERAND_TYPES:
            self._describe_narrow(lt, problem, bound, attributes)
        self._lt, self._handle, self._narrow = lt, handle, problem.out_item_bytes == 2

    def _describe_narrow(
        self, lt: Any, problem: GemmProblem, bound: Arguments, attributes: Any
    ) -> None:
        """How products of 8 bits are added up, and the scales of X and Y, its A and B."""
        fast = np.array([problem.precision == "fast"], np.int8)
        self._describe(lt, attributes.FAST_ACCUM, fast)
        kinds = {"A": problem.scales.a, "B": problem.scales.b}
        for letter, mode, pointer in (
            (self.letters[0], attributes.A_SCALE_MODE, attributes.A_SCALE_POINTER),
            (self.letters[1], attributes.B_SCALE_MODE, attributes.B_SCALE_POINTER),
        ):
            kind = kinds[letter]
            if kind != NONE:
                address = bound[f"scale_{letter.lower()}"]
                self._describe(lt, mode, np.array([SCALE_MODES[kind.name]], np.int32))
                self._describe(lt, pointer, np.array([address], np.uint64))

    def _describe(self, lt: Any, attribute: int, value: np.ndarray[Any, Any]) -> None:
        lt.matmul_desc_set_attribute(self.operation, attribute, value.ctypes.data, value.nbytes)

    @cached_property
    def algorithms(self) -> list[int]:
        """Addresses of the algorithms that are proposed, each the first field of its result."""
        lt, handle = self._lt, self._handle
        self._results = lt.MatmulHeuristicResult(HEURISTICS)
        preference = lt.matmul_preference_create()
        attributes = lt.MatmulPreferenceAttribute
        wanted: dict[Any, Any] = {
            attributes.MAX_WORKSPACE_BYTES: np.array([WORKSPACE_BYTES], np.uint64)
        }
        if self._narrow:
            # Parts of k are added up in fp32, not in the type of C.
            scheme = np.array([lt.ReductionScheme.COMPUTE_TYPE], np.uint32)
            wanted[attributes.REDUCTION_SCHEME_MASK] = scheme
        for attribute, value in wanted.items():
            lt.matmul_preference_set_attribute(
                preference, attribute, value.ctypes.data, value.nbytes
            )
        count = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                *(handle, self.operation, self.layout_x, self.layout_y),
                *(self.layout_addend, self.layout_c, preference, HEURISTICS),
                *(self._results.ptr, count.ctypes.data),
            )
        finally:
            lt.matmul_preference_destroy(preference)
        results = (self._results[index] for index in range(int(count[0])))
        return [int(each.ptr) for each in results if int(each.state) == 0]


def configuration(lt: Any, algorithm: int) -> str:
    """Tile, stages, cluster and parts of k of an algorithm, in words, as far as it tells."""
    attributes, words = lt.MatmulAlgoConfigAttribute, []
    kinds: tuple[tuple[str, Any, Any, str], ...] = (
        ("tile", attributes.TILE_ID, lt.MatmulTile, "TILE_"),
        ("stages", attributes.STAGES_ID, lt.MatmulStages, "STAGES_"),
        ("cluster", attributes.CLUSTER_SHAPE_ID, lt.ClusterShape, "SHAPE_"),
        ("split-K", attributes.SPLITK_NUM, None, ""),
    )
    for word, attribute, kind, prefix in kinds:
        value = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, np.uint64)
        try:
            lt.matmul_algo_config_get_attribute(
                *(algorithm, attribute, value.ctypes.data, value.nbytes, written.ctypes.data)
            )
        except Exception:
            # Not every release has all of them; what its kernels are called decides nothing.
            continue
        number = int(value[0])
        known = kind is not None and number in {int(each) for each in kind}
        text = str(kind(number).name).removeprefix(prefix) if known else str(number)
        words.append(f"{word} {text}")
    return ", ".join(words)


def describe_batch(lt: Any, layout: Any, batch: int, stride: int) -> None:
    """Say that a layout is that of the first of several matrices; a stride of 0 repeats it."""
    attributes = lt.MatrixLayoutAttribute
    for attribute, value in (
        (attributes.BATCH_COUNT, np.array([batch], np.int32)),
        (attributes.STRIDED_BATCH_OFFSET, np.array([stride], np.int64)),
    ):
        lt.matrix_layout_set_attribute(layout, attribute, value.ctypes.data, value.nbytes)
