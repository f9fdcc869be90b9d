"""cuBLAS through PyTorch, with an epilogue in kernels of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gemmkit.bench.baseline import Arguments
from gemmkit.devices.device import TimedDevice, Work
from gemmkit.epilogue import Custom
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import ITEM_BYTES, Dtype, GemmProblem
from gemmkit.storage import Layout, further_layouts, layouts


class TorchBaseline:
    """torch.addmm, or torch.baddbmm for batches, fp32 in IEEE arithmetic; both call cuBLAS.

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
        """One way: the product, then the epilogue's parts if it has any.

        Raises:
            UnsupportedProblem: A and C have different types, or the activation is the user's own.
        """
        if problem.dtype != problem.result_dtype:
            raise UnsupportedProblem(
                f"PyTorch multiplies {problem.dtype} to {problem.dtype}, not {problem.result_dtype}"
            )
        if isinstance(problem.epilogue.activation, Custom):
            raise UnsupportedProblem("PyTorch has no such activation")
        separate = "" if str(problem.epilogue) == "none" else ", epilogue in kernels of its own"
        return {self.name + separate: [self._addmm(problem, each) for each in arguments]}

    def _addmm(self, problem: GemmProblem, bound: Arguments) -> Work:
        torch = self._torch
        a, b, c = operand_tensors(torch, self._ordinal, problem, bound)
        finish = self._epilogue(problem, bound, c)
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
                finish()

        return enqueue

    def _epilogue(self, problem: GemmProblem, bound: Arguments, c: Any) -> Callable[[], None]:
        """What is done to C, in place, after the product."""
        torch, epilogue = self._torch, problem.epilogue
        further = {
            name: matrix_tensor(torch, self._ordinal, problem, layout, bound[name])
            for name, layout in zip(
                ("residual", "auxiliary"), further_layouts(problem), strict=True
            )
            if getattr(epilogue, name)
        }
        bias = None
        if epilogue.bias:
            rows, columns = (problem.m, 1) if epilogue.bias == "row" else (1, problem.n)
            layout = Layout(1, rows, columns, columns, 0)
            bias = matrix_tensor(torch, self._ordinal, problem.single, layout, bound["bias"])
        functions = torch.nn.functional
        activations: dict[str, Callable[[], object]] = {
            "relu": c.relu_,
            "gelu": lambda: c.copy_(functions.gelu(c)),
            "gelu_tanh": lambda: c.copy_(functions.gelu(c, approximate="tanh")),
            "silu": lambda: functions.silu(c, inplace=True),
        }

        def finish() -> None:
            if bias is not None:
                c.add_(bias)
            if epilogue.auxiliary:
                further["auxiliary"].copy_(c)
            if epilogue.activation != "none":
                activations[str(epilogue.activation)]()
            if epilogue.scale != 1:
                c.mul_(epilogue.scale)
            if epilogue.residual:
                c.add_(further["residual"])

        return finish


def operand_tensors(
    torch: Any, ordinal: int, problem: GemmProblem, bound: Arguments
) -> tuple[Any, Any, Any]:
    """A, B and C as PyTorch has them, with the products of a batch along a dimension before."""
    dtypes = problem.dtype, problem.dtype, problem.result_dtype
    a, b, c = (
        matrix_tensor(torch, ordinal, problem, layout, bound[name], dtype)
        for name, layout, dtype in zip("ABC", layouts(problem), dtypes, strict=True)
    )
    return a, b, c


def matrix_tensor(
    torch: Any,
    ordinal: int,
    problem: GemmProblem,
    layout: Layout,
    address: int | float,
    dtype: Dtype | None = None,
) -> Any:
    """Matrices of a problem, of C's type unless told, as a tensor over memory that PyTorch does not
    own; of a batch with a dimension for the products before."""
    shape: tuple[int, ...] = (layout.rows, layout.columns)
    steps: tuple[int, ...] = (1, layout.ld) if layout.transposed else (layout.ld, 1)
    several = problem.batch != 1 and layout.count > 1
    if several:
        shape, steps = (layout.count, *shape), (layout.stride, *steps)
    tensor = device_tensor(torch, ordinal, address, shape, steps, dtype or problem.result_dtype)
    if problem.batch != 1 and not several:
        tensor = tensor.expand(problem.batch, layout.rows, layout.columns)
    return tensor


def device_tensor(
    torch: Any,
    ordinal: int,
    address: int | float,
    shape: tuple[int, ...],
    steps: tuple[int, ...],
    dtype: Dtype = "float32",
) -> Any:
    """A tensor of PyTorch's over device memory that PyTorch does not own; steps are in elements."""
    array = _DeviceArray(int(address), shape, steps, dtype)
    tensor = torch.as_tensor(array, device=f"cuda:{ordinal}")
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


class _DeviceArray:
    """Device memory as the CUDA array interface describes it, which knows no bfloat16."""

    def __init__(
        self, address: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: Dtype
    ) -> None:
        item = ITEM_BYTES[dtype]
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": tuple(item * step for step in steps),
            "typestr": "<i2" if dtype == "bfloat16" else f"<f{item}",
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
