"""The peer: cuBLAS in fp32, through nvmath-python (with its own heuristics tried) or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from gemmkit.devices.device import Buffer, TimedDevice, Work
from gemmkit.problem import GemmProblem
from gemmkit.storage import layouts

Arguments = Mapping[str, int | float]

HOW_TO_GET = (
    "no cuBLAS to compare with: `pip install 'gemmkit[baseline]'` brings it (about 450 MB), "
    "and PyTorch does too"
)

# What cuBLAS recommends for Hopper; more than other GPUs need.
WORKSPACE_BYTES = 32 * 2**20
HEURISTICS = 8

_CUDA_R_32F = 0


class Baseline(Protocol):
    """A library that computes the same product from the same buffers."""

    name: str

    def candidates(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, list[Work]]:
        """Ways to compute the problem, by name: for each the launch on every set of buffers.

        At least one; each does what the kernel does, epilogue and all. Where the library chooses
        for itself, its choice is the first.
        """


def find_baseline(device: TimedDevice) -> Baseline | None:
    """The best baseline that is installed and works, or None: see `HOW_TO_GET`."""
    kinds: tuple[Callable[[TimedDevice], Baseline], ...] = (CublasBaseline, TorchBaseline)
    for kind in kinds:
        try:
            return kind(device)
        except Exception:
            # Absent, or without its CUDA library, or for another CUDA: all the same to a user.
            continue
    return None


class CublasBaseline:
    """cublasSgemm, and the eight best of cuBLASLt's heuristics, through nvmath-python.

    For a batch, cublasSgemmStridedBatched and cuBLASLt's layouts of batches. Row-major C = A·B is
    column-major Cᵀ = Bᵀ·Aᵀ, so all take B as their first operand.

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
        self._workspace: Buffer = device.empty(WORKSPACE_BYTES)

    def candidates(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, list[Work]]:
        """cuBLASLt's choices, in its own order, and cublasSgemm where there is no epilogue."""
        found: dict[str, list[Work]] = {}
        plan = _LtPlan(self._lt, self._lt_handle, problem, arguments[0])
        for number, algorithm in enumerate(plan.algorithms, 1):
            name = f"{self.name} (cublasLtMatmul, heuristic {number} of {len(plan.algorithms)})"
            found[name] = [self._matmul(plan, algorithm, each) for each in arguments]
        if str(problem.epilogue) == "none":
            routine = "cublasSgemm" if problem.batch == 1 else "cublasSgemmStridedBatched"
            found[f"{self.name} ({routine})"] = [self._sgemm(each) for each in arguments]
        return found

    def _sgemm(self, bound: Arguments) -> Work:
        m, n, k, lda, ldb, ldc, a, b, c = (
            bound[name] for name in ("M", "N", "K", "lda", "ldb", "ldc", "A", "B", "C")
        )
        alpha, beta = (np.array([bound[name]], np.float32) for name in ("alpha", "beta"))
        batch, stride_a, stride_b, stride_c = (
            bound[name] for name in ("batch", "stride_a", "stride_b", "stride_c")
        )
        plain = self._cublas.Operation.N

        def enqueue(stream: Any) -> None:
            self._cublas.set_stream(self._handle, int(stream.handle))
            # After each set_stream, else it takes memory of its own in the middle of a recording.
            self._cublas.set_workspace(self._handle, self._workspace.address, WORKSPACE_BYTES)
            if batch == 1:
                self._cublas.sgemm(
                    *(self._handle, plain, plain, n, m, k),
                    *(alpha.ctypes.data, b, ldb, a, lda, beta.ctypes.data, c, ldc),
                )
            else:
                self._cublas.sgemm_strided_batched(
                    *(self._handle, plain, plain, n, m, k),
                    *(alpha.ctypes.data, b, ldb, stride_b, a, lda, stride_a),
                    *(beta.ctypes.data, c, ldc, stride_c, batch),
                )

        return enqueue

    def _matmul(self, plan: _LtPlan, algorithm: int, bound: Arguments) -> Work:
        a, b, c = (bound[name] for name in ("A", "B", "C"))

        def enqueue(stream: Any) -> None:
            self._lt.matmul(
                *(self._lt_handle, plan.operation, plan.alpha.ctypes.data),
                *(b, plan.layout_b, a, plan.layout_a, plan.beta.ctypes.data),
                *(c, plan.layout_c, c, plan.layout_c, algorithm),
                *(self._workspace.address, WORKSPACE_BYTES, int(stream.handle)),
            )

        return enqueue


class _LtPlan:
    """cuBLASLt's description of one problem, and the algorithms that it proposes for it.

    The descriptors live as long as the process: there are few, and recordings may use them.
    """

    def __init__(self, lt: Any, handle: int, problem: GemmProblem, bound: Arguments) -> None:
        from nvmath.bindings import cublas

        m, n, k = problem.m, problem.n, problem.k
        self.alpha, self.beta = (np.array([bound[x]], np.float32) for x in ("alpha", "beta"))
        self.operation = lt.matmul_desc_create(cublas.ComputeType.COMPUTE_32F, _CUDA_R_32F)
        self.layout_b = lt.matrix_layout_create(_CUDA_R_32F, n, k, problem.ldb)
        self.layout_a = lt.matrix_layout_create(_CUDA_R_32F, k, m, problem.lda)
        self.layout_c = lt.matrix_layout_create(_CUDA_R_32F, n, m, problem.ldc)
        if problem.batch != 1:
            operands = (self.layout_a, self.layout_b, self.layout_c)
            for layout, stride in zip(operands, problem.strides, strict=True):
                _describe_batch(lt, layout, problem.batch, stride)
        name = (problem.epilogue.cublaslt_name or "").removeprefix("CUBLASLT_EPILOGUE_")
        epilogue = np.array([lt.Epilogue[name]], np.uint32)
        self._describe(lt, lt.MatmulDescAttribute.EPILOGUE, epilogue)
        if problem.epilogue.bias:
            bias = np.array([bound["bias"]], np.uint64)
            self._describe(lt, lt.MatmulDescAttribute.BIAS_POINTER, bias)
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
                *(handle, self.operation, self.layout_b, self.layout_a),
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


class TorchBaseline:
    """torch.addmm, or torch.baddbmm for batches, in IEEE fp32; both call cuBLAS.

    An epilogue takes kernels of its own.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it is, but without CUDA.
    """

    def __init__(self, device: TimedDevice) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("this PyTorch has no CUDA")
        self._torch, self._ordinal = torch, device.stream.device.device_id
        self.name = f"cuBLAS through PyTorch {torch.__version__}"

    def candidates(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, list[Work]]:
        """One way: the product, then the epilogue's parts if it has any."""
        separate = "" if str(problem.epilogue) == "none" else ", epilogue in kernels of its own"
        return {self.name + separate: [self._addmm(problem, each) for each in arguments]}

    def _addmm(self, problem: GemmProblem, bound: Arguments) -> Work:
        torch, n = self._torch, problem.n
        a, b, c = operand_tensors(torch, self._ordinal, problem, bound)
        bias = None
        if problem.epilogue.bias:
            bias = device_tensor(torch, self._ordinal, bound["bias"], 1, n, n)
        multiply, add = torch.mm, torch.addmm
        if problem.batch != 1:
            multiply, add = torch.bmm, torch.baddbmm

        def enqueue(stream: Any) -> None:
            outer = torch.cuda.ExternalStream(int(stream.handle), device=self._ordinal)
            with _without_tf32(torch.backends.cuda.matmul), torch.cuda.stream(outer):
                if problem.beta == 0 and problem.alpha == 1:
                    multiply(a, b, out=c)
                else:
                    add(c, a, b, beta=problem.beta, alpha=problem.alpha, out=c)
                if bias is not None:
                    c.add_(bias)
                if problem.epilogue.activation == "relu":
                    c.relu_()

        return enqueue


def operand_tensors(
    torch: Any, ordinal: int, problem: GemmProblem, bound: Arguments
) -> tuple[Any, Any, Any]:
    """A, B and C as PyTorch has them, with the products of a batch along a dimension before."""
    found = []
    for name, layout in zip("ABC", layouts(problem), strict=True):
        rows, columns, ld = layout.rows, layout.columns, layout.ld
        several = problem.batch != 1 and layout.count > 1
        batch = (layout.count, layout.stride) if several else None
        tensor = device_tensor(torch, ordinal, bound[name], rows, columns, ld, batch)
        if problem.batch != 1 and not several:
            tensor = tensor.expand(problem.batch, rows, columns)
        found.append(tensor)
    a, b, c = found
    return a, b, c


def device_tensor(
    torch: Any,
    ordinal: int,
    address: int | float,
    rows: int,
    columns: int,
    ld: int,
    batch: tuple[int, int] | None = None,
) -> Any:
    """A row-major fp32 tensor of PyTorch's over device memory that PyTorch does not own.

    `batch` is a number of matrices, and the elements from one to the next.
    """
    shape: tuple[int, ...] = (rows, columns)
    steps: tuple[int, ...] = (ld, 1)
    if batch is not None:
        shape, steps = (batch[0], *shape), (batch[1], *steps)
    return torch.as_tensor(_DeviceArray(int(address), shape, steps), device=f"cuda:{ordinal}")


class _DeviceArray:
    """Fp32 device memory as the CUDA array interface describes it; steps are in elements."""

    def __init__(self, address: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": tuple(4 * step for step in steps),
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


@contextmanager
def _without_tf32(settings: Any) -> Iterator[None]:
    """Multiply in IEEE fp32 whatever the program has set; newer releases renamed the setting."""
    renamed = hasattr(settings, "fp32_precision")
    name, exact = ("fp32_precision", "ieee") if renamed else ("allow_tf32", False)
    previous = getattr(settings, name)
    setattr(settings, name, exact)
    try:
        yield
    finally:
        setattr(settings, name, previous)
