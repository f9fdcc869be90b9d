"""Matrices of a problem as tensors of PyTorch, over device memory that PyTorch does not own."""

from __future__ import annotations

from typing import Any

from gemmkit.bench.baseline import Arguments
from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, Dtype
from gemmkit.problem import GemmProblem
from gemmkit.storage import Layout, further_layouts, layouts


def further_tensors(
    torch: Any, ordinal: int, problem: GemmProblem, bound: Arguments
) -> dict[str, Any]:
    """Bias, residual and auxiliary output by name, of those that the epilogue has."""
    epilogue = problem.epilogue
    names = "residual", "auxiliary"
    found = {
        name: matrix_tensor(torch, ordinal, problem, layout, bound[name])
        for name, layout in zip(names, further_layouts(problem), strict=True)
        if getattr(epilogue, name)
    }
    if epilogue.bias:
        rows, columns = (problem.m, 1) if epilogue.bias == "row" else (1, problem.n)
        layout = Layout(1, rows, columns, columns, 0)
        found["bias"] = matrix_tensor(torch, ordinal, problem.single, layout, bound["bias"])
    return found


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
    if dtype in OPERAND_TYPES:
        return tensor.view(torch.float8_e5m2 if dtype == "float8_e5m2" else torch.float8_e4m3fn)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


class _DeviceArray:
    """Device memory as the CUDA array interface describes it, which knows no bfloat16, and no types
    of 8 bits."""

    def __init__(
        self, address: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: Dtype
    ) -> None:
        item = ITEM_BYTES[dtype]
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": tuple(item * step for step in steps),
            "typestr": {"bfloat16": "<i2"}.get(dtype, "|u1" if item == 1 else f"<f{item}"),
            "data": (address, False),
            "version": 3,
        }
