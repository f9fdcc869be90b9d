"""`matmul` and `grouped_matmul` of tensors as PyTorch operators, with all that they take.

They serve what has no memory at hand or is being traced: `torch.compile` and `torch.export`,
FakeTensors, meta tensors, the tensors of `torch.vmap`, and subclasses with a dispatch of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from gemmkit.dtypes import Precision
from gemmkit.epilogue import Custom, Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.grouped_product import grouped_product
from gemmkit.ops.libraries.torch_checks import (
    check_device,
    check_tensors,
    check_written,
    product_shape,
    result_type,
    tangents_checked,
    tensor_of,
)
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.operands import library_name, read_dtype
from gemmkit.ops.precision import settled
from gemmkit.ops.product import product
from gemmkit.ops.request import Call
from gemmkit.ops.tracing import compiling

# For each role a tensor or None, or for many products a list of tensors or None.
Arrays = Mapping[str, Any]

# An epilogue, as operators take it: words, or "bias;activation", or "bias;custom;expression;names";
# the values of the names; the scale.
Encoded = tuple[str, list[float], float]


def multiply(call: Call, *, many: bool = False) -> Any:
    """The product of tensors, by an operator; under `torch.compile` of NumPy's arrays as well.

    With `many`, each array of the call is a list of them, as of `grouped_matmul`.

    Raises:
        UsageError: an argument that an operator does not take, and what the shapes and types of the
            tensors show.
    """
    arrays = call.arrays
    if compiling() and any(isinstance(each, np.ndarray) for _, each in _members(arrays, many)):
        return _of_numpys_arrays(call, many)
    _check(arrays, many)
    if compiling():
        # Here the error reaches the caller; from inside the operator it comes with Dynamo's log.
        _shapes(call.a, call.b)
    out, auxiliary = call.out, call.auxiliary
    if out is not None or auxiliary is not None:
        check_written(_members(arrays, many))
    encoded = encode(
        call.epilogue,
        call.residual is not None,
        auxiliary is not None,
        scale=call.scale_result is not None,
    )
    beta = as_number(call.beta)
    if beta != 0 and call.c is None:
        raise UsageError(f"beta = {beta} needs c; c=out adds to what out holds")
    # Without a c of its own, a product that overwrites adds to what its result's memory holds.
    c = None if beta == 0 or (out is not None and call.c is out) else call.c
    dtype = _dtype(call.out_dtype)
    given = [c, call.bias, call.residual]
    if many:
        given = [each or [] for each in given]
        auxiliary = auxiliary or []
    precision = _precision(call, many)
    rest = *given, as_number(call.alpha), beta, *encoded, *(() if many else (dtype,))
    place = check_device(call.stream, call.device)
    operators = torch.ops.gemmkit
    scales = () if many else (call.scale_a, call.scale_b, call.scale_result)
    with tangents_checked():
        if out is None and call.auxiliary is None:
            pure = operators.grouped_product if many else operators.product
            return pure(call.a, call.b, *rest, place, precision, *scales)
        if out is None:
            out = _like(call.a, call.b, dtype)
        into = operators.grouped_product_out if many else operators.product_out
        into(call.a, call.b, out, auxiliary, *rest, place, precision, *scales)
    return out


def _of_numpys_arrays(call: Call, many: bool) -> Any:
    """The product of the tensors for which `torch.compile` takes arrays of NumPy's."""
    tensors: dict[str, Any] = {
        role: [tensor_of(each) for each in given] if many and given else tensor_of(given)
        for role, given in call.arrays.items()
    }
    if call.c is call.out:
        tensors["c"] = tensors["out"]
    made = multiply(call._replace(**tensors), many=many)
    if call.out is not None:
        return call.out
    return [each.numpy() for each in made] if many else made.numpy()


def _members(arrays: Arrays, many: bool) -> Iterator[tuple[str, Any]]:
    """All arrays that are there, those of many products by names such as `a[0]`."""
    for role, given in arrays.items():
        if many and given is not None:
            yield from ((f"{role}[{place}]", each) for place, each in enumerate(given))
        elif given is not None:
            yield role, given


def _check(arrays: Arrays, many: bool) -> None:
    """Refuse what no operator may get.

    Raises:
        UsageError: as `check_tensors`, or of one role there are not as many arrays as products.
    """
    check_tensors(_members(arrays, many))
    for role, given in arrays.items():
        if many and given is not None and len(given) != len(arrays["a"]):
            raise UsageError(
                f"{role} has {len(given)} arrays and a has {len(arrays['a'])}: give one for each "
                "product"
            )


def encode(
    epilogue: Epilogue | str | None, residual: bool, auxiliary: bool, *, scale: bool = False
) -> Encoded:
    """An epilogue as operators take it.

    Raises:
        UsageError: it needs an array that is not there.
    """
    if epilogue is None or isinstance(epilogue, str):
        return epilogue or "none", [], 1.0
    if not isinstance(epilogue, Epilogue):
        raise UnsupportedType(
            f"epilogue = {epilogue!r}: give an Epilogue or its words, such as 'bias+relu'"
        )
    for name, wanted, there in (
        ("residual", epilogue.residual, residual),
        ("auxiliary", epilogue.auxiliary, auxiliary),
        ("scale_result", epilogue.scale_result, scale),
    ):
        if wanted and not there:
            raise UsageError(f"the epilogue needs the array {name}")
    activation = epilogue.activation
    if isinstance(activation, Custom):
        names = ",".join([name for name, _ in activation.parameters])
        values = [value for _, value in activation.parameters]
        return f"{epilogue.bias};custom;{activation.expression};{names}", values, epilogue.scale
    return f"{epilogue.bias};{activation}", [], epilogue.scale


def decode(text: str, values: Sequence[float], scale: float) -> Epilogue:
    """The way back."""
    if ";" not in text:
        return Epilogue.parse(text)
    bias, activation, *custom = text.split(";")
    chosen: Any = activation
    if custom:
        names = custom[1].split(",") if custom[1] else []
        chosen = Custom(custom[0], tuple(zip(names, values, strict=True)))
    return Epilogue(bias, chosen, scale=scale)  # type: ignore[arg-type]


def as_number(value: Any) -> float:
    """A number as the operators' schemas take it; symbolic ones stay."""
    return value if isinstance(value, float) else float(value)


def _precision(call: Call, many: bool) -> Precision:
    """That of the call, or the setting now: the operator may run in another thread, and later.

    Raises:
        UsageError: it is none, or not of the operands' type.
    """
    first = call.a[0] if many and call.a else call.a
    dtype = first.dtype if isinstance(first, torch.Tensor) else torch.float32
    return settled(call.precision, str(dtype).removeprefix("torch."))


def _dtype(given: Any) -> torch.dtype | None:
    if given is None or isinstance(given, torch.dtype):
        return given
    found: torch.dtype = getattr(torch, library_name(read_dtype(given, narrow=True)))
    return found


# --- the operators ------------------------------------------------------------------------------

_SCALES = ", Tensor? scale_a=None, Tensor? scale_b=None, Tensor? scale_result=None"

# The place of the result's type among the arguments of one product after its matrices.
_OUT_DTYPE = 8


def _shapes(a: Any, b: Any) -> Any:
    """The shape of the product, or those of many."""
    if isinstance(a, list):
        return [product_shape(x, y) for x, y in zip(a, b, strict=True)]
    return product_shape(a, b)


def _like(a: Any, b: Any, dtype: torch.dtype | None = None) -> Any:
    """New memory for the result, or for those of many products."""
    if isinstance(a, list):
        return [
            x.new_empty(shape, dtype=result_type(x))
            for x, shape in zip(a, _shapes(a, b), strict=True)
        ]
    return a.new_empty(_shapes(a, b), dtype=dtype or result_type(a))


def _read(many: bool, a: Any, b: Any, out: Any, auxiliary: Any, *rest: Any) -> Call:
    """The call that an operator's arguments stand for."""
    c, bias, residual, alpha, beta, epilogue, values, scale, *how = rest
    dtype = None if many else how.pop(0)
    # PyTorch leaves out arguments that are the schema's default.
    device, precision, *scales = how if len(how) > 1 else (how[0], "ieee")
    if many:
        # Lists have no None.
        c, bias, residual, auxiliary = (each or None for each in (c, bias, residual, auxiliary))
    c = out if c is None and beta != 0 else c
    chosen = decode(epilogue, values, scale)
    return Call(
        *(a, b, out, c, bias, residual, auxiliary),
        *(alpha, beta, chosen, dtype, None, device, precision, *scales),
    )


def _compute(call: Call, many: bool) -> Any:
    return grouped_product(call) if many else product(*call)


def _pure(many: bool, a: Any, b: Any, *rest: Any) -> Any:
    return _compute(_read(many, a, b, None, None, *rest), many)


def _into(many: bool, *arguments: Any) -> None:
    _compute(_read(many, *arguments), many)


def _pure_like(many: bool, a: Any, b: Any, *rest: Any) -> Any:
    return _like(a, b, None if many else rest[_OUT_DTYPE])


def _into_like(many: bool, a: Any, b: Any, out: Any, *_: Any) -> None:
    outs, wanted = (out, _shapes(a, b)) if many else ([out], [_shapes(a, b)])
    for place, (each, shape) in enumerate(zip(outs, wanted, strict=True)):
        if tuple(each.shape) != tuple(shape):
            name = f"out[{place}]" if many else "out"
            raise UsageError(
                f"{name} has the shape {tuple(each.shape)}; the result has {tuple(shape)}"
            )


def _register(name: str, many: bool) -> None:
    """Make the operators of one product, or of many, known."""
    tensor, optional = ("Tensor[]", "Tensor[]") if many else ("Tensor", "Tensor?")
    rest = (
        f"{optional} c, {optional} bias, {optional} residual, float alpha, float beta, "
        f"str epilogue, float[] values, float scale, {'' if many else 'ScalarType? out_dtype, '}"
        'str? device, str precision="ieee"'
        f"{'' if many else _SCALES}"
    )
    written, kept = ("Tensor(a!)[]", "Tensor(b!)[]") if many else ("Tensor(a!)", "Tensor(b!)?")

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(function, many)

    register(
        name,
        f"({tensor} a, {tensor} b, {rest}) -> {tensor}",
        of(_pure),
        of(_pure_like),
    )
    register(
        f"{name}_out",
        f"({tensor} a, {tensor} b, {written} out, {kept} auxiliary, {rest}) -> ()",
        of(_into),
        of(_into_like),
        writes=("out", "auxiliary"),
    )


_register("product", many=False)
_register("grouped_product", many=True)
