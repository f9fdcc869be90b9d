"""A rank's own products in prepared calls, made again and again with other arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.ops.matmul import matmul
from gemmkit.ops.repeated import Repeated

# What writes a product: of a, b, the array for it, whether this is memory of the call's own, bias,
# residual, c, scale_a and scale_b.
Multiply = Callable[..., None]


def with_epilogue(product: LocalProduct) -> dict[str, Any]:
    """What is given to the engine, but for arrays, for a product whose result is complete."""
    given = product.options
    if product.epilogue is not None:
        given["epilogue"] = product.epilogue
    if product.c is not None:
        given["beta"] = product.beta
    return given


def multiplying(product: LocalProduct, given: dict[str, Any]) -> Multiply:
    """A rank's own products, by an engine that is given some options."""
    if product.engine is matmul and "device" not in given:
        return Repeated(**given)
    engine = product.engine

    def multiply(
        a: Any,
        b: Any,
        out: Any,
        new: bool,  # noqa: ARG001
        bias: Any,
        residual: Any,
        c: Any,
        scale_a: Any,
        scale_b: Any,
    ) -> None:
        beside = {"bias": bias, "residual": residual, "c": c}
        engine(a, b, out=out, **beside, scale_a=scale_a, scale_b=scale_b, **given)

    return multiply


def maker(like: Any, dtype: Any) -> Callable[[Any, int, int], Any]:
    """What makes a matrix of a type on the device of one of the type of `like`: PyTorch takes half
    the time where it gets two sizes and no type."""
    if like.dtype == dtype:
        return lambda like, rows, columns: like.new_empty(rows, columns)
    return lambda like, rows, columns: like.new_empty((rows, columns), dtype=dtype)


def gathered_product(asked: SpreadProduct, total: int, *, turned: bool) -> Callable[..., Any]:
    """The product of lines of all ranks, so many: of these, a, b, bias, residual, c, `out`, scale_a
    and scale_b, of which a or, if it is `turned`, b is this rank's lines."""
    multiply = multiplying(asked.product, with_epilogue(asked.product))
    make, others = maker(asked.a, asked.dtype), asked.a.shape[0] if turned else asked.b.shape[1]

    def product(
        lines: Any,
        a: Any,
        b: Any,
        bias: Any,
        residual: Any,
        c: Any,
        out: Any,
        scale_a: Any,
        scale_b: Any,
    ) -> Any:
        if turned:
            # Columns of the result lie as they are computed by a product of the transposes.
            made = make(lines, total, others).T if out is None else out
            multiply(a, lines.T, made, out is None, bias, residual, c, scale_a, scale_b)
        else:
            made = make(lines, total, others) if out is None else out
            multiply(lines, b, made, out is None, bias, residual, c, scale_a, scale_b)
        return made

    return product
