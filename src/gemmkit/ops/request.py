"""What is asked of a product: the call, and its operands as they are read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemmkit.dtypes import Dtype, default_result_type, is_narrow
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.ops.arrays import Library, bits, library_of
from gemmkit.ops.narrow_results import SCALE_RESULT, check_bias_type, check_scale
from gemmkit.ops.operands import Operand, check_aligned, read_dtype, same_memory
from gemmkit.ops.placement import Terms
from gemmkit.ops.precision import settled
from gemmkit.ops.scale_shapes import SCALES, check_scale_type, read_scales
from gemmkit.ops.shapes import Shape
from gemmkit.problem_fields import check_narrow_result

if TYPE_CHECKING:
    from gemmkit.devices.device import Device
    from gemmkit.ops.prepared_operands import Held

ARRAYS = ("a", "b", "out", "c", "bias", "residual", "auxiliary")

# Operands that are written.
WRITTEN = ("out", "auxiliary")

# Steps of the search for an element that two views share, after which they count as sharing one.
_PATIENCE = 100_000


class HostOptions(NamedTuple):
    """What a call of `matmul` says of how products of host arrays are streamed, as it gives it."""

    device_memory: Any = None
    devices: Any = None
    progress: Any = None


class Call(NamedTuple):
    """The arguments of `matmul`, or of `grouped_matmul` with a list for each array.

    `held` are the prepared operands of which a or b is the array, `host` are options for arrays in
    host memory, where there are any.
    """

    a: Any
    b: Any
    out: Any
    c: Any
    bias: Any
    residual: Any
    auxiliary: Any
    alpha: float
    beta: float
    epilogue: Epilogue | str | None
    out_dtype: Any = None
    stream: Any = None
    device: Device | str | None = None
    precision: str | None = None
    scale_a: Any = None
    scale_b: Any = None
    scale_result: Any = None
    held: Held | None = None
    host: HostOptions | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by role; None where there is none, but scales where there are any."""
        found = dict(zip(ARRAYS, self, strict=False))
        for role in (*SCALES, SCALE_RESULT):
            if (given := getattr(self, role)) is not None:
                found[role] = given
        return found

    def read(self) -> Request:
        """Read its arrays and check what can be checked before anything is launched.

        Raises:
            UsageError: as `read_request`.
        """
        return read_request(
            self.arrays,
            alpha=self.alpha,
            beta=self.beta,
            epilogue=self.epilogue,
            out_dtype=self.out_dtype,
            precision=self.precision,
            prepared="" if self.held is None else self.held.sides,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A product: `operands` by role (a, b, c, out, bias, residual, auxiliary, scale_a, scale_b,
    scale_result; those there are).

    `maker` is the library of a and b, which makes a result of their kind.
    """

    operands: Mapping[str, Operand]
    shape: Shape
    terms: Terms
    maker: Library


def read_request(
    arrays: Mapping[str, Any],
    *,
    alpha: float,
    beta: float,
    epilogue: Epilogue | str | None,
    out_dtype: object,
    precision: object,
    prepared: str = "",
) -> Request:
    """Read and check a product; `arrays` has a and b, and None for what is not given. `prepared`
    are the roles of prepared operands.

    Raises:
        UsageError: a shape, type, place or option that is not valid; the text says which.
    """
    given = {
        role: array for role, array in arrays.items() if array is not None or role in ("a", "b")
    }
    # What `gemm` overwrites is called c there.
    result = "c" if "out" in given and given["out"] is given.get("c") else "out"
    names = {"out": result}
    libraries = {role: library_of(each, names.get(role, role)) for role, each in given.items()}
    operands = {
        role: libraries[role].read(each, names.get(role, role)) for role, each in given.items()
    }
    shape = Shape.of(operands["a"].view.shape, operands["b"].view.shape)
    _check_type("b", operands["b"], operands["a"].dtype)
    wanted = read_epilogue(epilogue, operands)
    terms = Terms(
        dtype=operands["a"].dtype,
        out_dtype=default_result_type(operands["a"].dtype),
        alpha=number("alpha", alpha),
        beta=number("beta", beta),
        epilogue=wanted,
        precision=settled(precision, operands["a"].dtype),
        scales=read_scales({role: each.view.shape for role, each in operands.items()}, shape),
    )
    # Arrays in host memory are brought to a device anew; where α = 0, neither operand is read.
    if operands["a"].device is not None and terms.alpha:
        terms = replace(terms, prepared=prepared)
    if out_dtype is not None:
        terms = replace(terms, out_dtype=read_dtype(out_dtype, narrow=True))
    elif "out" in operands:
        terms = replace(terms, out_dtype=operands["out"].dtype)
    if is_narrow(terms.out_dtype) or terms.epilogue.scale_result:
        check_narrow_result(terms.dtype, terms.beta, terms.epilogue, terms.out_dtype)
    _check_types(operands, terms)
    _check_places(operands)
    _check_extents(shape)
    _check_shapes(operands, shape, terms, result)
    if terms.beta == 0:
        operands.pop("c", None)
    _check_written(operands, result)
    for role in WRITTEN:
        if role in given:
            check_writable(libraries[role], given[role], names.get(role, role))
    return Request(operands, shape, terms, libraries["a"])


def parsed_epilogue(given: object) -> Epilogue:
    """The epilogue that is given, or meant by its words.

    Raises:
        UsageError: unknown words.
        UnsupportedType: it is neither.
    """
    epilogue = Epilogue.parse(given) if isinstance(given, str) else given
    if not isinstance(epilogue, Epilogue):
        raise UnsupportedType(
            f"epilogue = {given!r}: give an Epilogue or its words, such as 'bias+relu'"
        )
    return epilogue


def read_epilogue(given: Epilogue | str | None, arrays: Mapping[str, Any]) -> Epilogue:
    """The epilogue that is meant by its words and by the arrays that are there.

    Raises:
        UsageError: unknown words, or an array that the words want is missing.
    """
    epilogue = Epilogue() if given is None else parsed_epilogue(given)
    for role, wanted in (
        ("bias", bool(epilogue.bias)),
        ("residual", epilogue.residual),
        ("auxiliary", epilogue.auxiliary),
        (SCALE_RESULT, epilogue.scale_result),
    ):
        if wanted and role not in arrays:
            raise UsageError(f"the epilogue '{epilogue}' needs the array {role}")
    return replace(
        epilogue,
        bias=epilogue.bias or ("column" if "bias" in arrays else ""),
        residual="residual" in arrays,
        auxiliary="auxiliary" in arrays,
        scale_result=SCALE_RESULT in arrays,
    )


def number(name: str, value: Any) -> float:
    """What a user gives as a number.

    Raises:
        UsageError: it is too large, or not a number.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = None
    except OverflowError:
        raise UsageError(f"{name} is larger than any float") from None
    if found is None or isinstance(value, str):
        raise UnsupportedType(f"{name} = {value!r} is not a number")
    return found + 0.0  # -0.0 becomes 0.0, to which it is equal where calls are kept


def flag(name: str, value: object) -> bool:
    """What a user gives as True or False; BLAS's letters would both be true.

    Raises:
        UnsupportedType: it is neither.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise UnsupportedType(f"{name} = {value!r}: use True or False")


def _check_types(operands: Mapping[str, Operand], terms: Terms) -> None:
    for role, operand in operands.items():
        if role in SCALES:
            check_scale_type(role, operand, terms.dtype)
            continue
        if role == SCALE_RESULT:
            check_scale(operand)
        elif role == "bias" and is_narrow(terms.out_dtype):
            check_bias_type(operand, terms.out_dtype)
        elif role not in ("a", "b"):
            _check_type(role, operand, terms.out_dtype)


def _check_type(role: str, operand: Operand, wanted: Dtype) -> None:
    if operand.dtype != wanted:
        other = "a has type" if role == "b" else "the result has type"
        raise UnsupportedType(
            f"{role} has type {operand.dtype} and {other} {wanted}: gemmkit does not convert "
            "types implicitly, so convert one of them"
        )


def _check_places(operands: Mapping[str, Operand]) -> None:
    first = operands["a"]
    for role, operand in operands.items():
        check_aligned(operand, role)
        if operand.device != first.device:
            raise UsageError(
                f"a is in {first.where} and {role} in {operand.where}: bring them to one device"
            )


def _check_extents(shape: Shape) -> None:
    """See that the kernels' indices reach every element: they are 32-bit.

    Raises:
        UnsupportedProblem: a side is longer.
    """
    if 0 in shape.result:
        return
    for name in ("m", "n", "k"):
        if (extent := getattr(shape, name)) > MAX_EXTENT:
            raise UnsupportedProblem(
                f"{name} = {extent:,}: the kernels' indices are 32-bit, {MAX_EXTENT:,} is the most"
            )


def _check_shapes(operands: Mapping[str, Operand], shape: Shape, terms: Terms, result: str) -> None:
    if "out" in operands:
        shape.whole(operands["out"].view, result)
    shape.stacks({role: operand.view for role, operand in operands.items()})
    if "c" in operands:
        shape.spread(operands["c"].view, "c")
    elif terms.beta != 0:
        raise UsageError(f"beta = {terms.beta} needs c, which is added to")
    if "bias" in operands:
        side, length = ("m", shape.m) if terms.epilogue.bias == "row" else ("n", shape.n)
        if operands["bias"].view.shape != (length,):
            raise UsageError(
                f"bias has the shape {operands['bias'].view.shape}; a {terms.epilogue.bias} bias "
                f"has {side} = {length} elements"
            )


def _check_written(operands: Mapping[str, Operand], result: str) -> None:
    for role, name in zip(WRITTEN, (result, "auxiliary"), strict=True):
        written = operands.get(role)
        if written is None:
            continue
        if not written.writable:
            raise UsageError(f"{name} cannot be written: it is read-only")
        if written.overlaps_itself:
            raise UsageError(f"{name} has elements that share memory: give an array of its own")
        for other, operand in operands.items():
            if other == role or (role == "auxiliary" and other == "out"):
                continue
            if other in ("c", "residual") and same_memory(written, operand) and role == "out":
                continue
            if not share_memory(written, operand):
                continue
            if other in WRITTEN:
                raise UsageError(
                    f"{name} and {other} overlap in memory, and both are written: give another "
                    "array for one of them"
                )
            raise UsageError(
                f"{name} overlaps {other} in memory, which is still read when {name} is "
                "written: give another array"
            )


def check_writable(library: Library, array: Any, name: str) -> None:
    """Have a library look whether one of its arrays may be overwritten now, if it has such rules.

    Raises:
        UsageError: it may not.
    """
    reason = getattr(library, "unwritable", _always_writable)(array)
    if reason is not None:
        raise UsageError(f"{name} cannot be written: {reason}")


def _always_writable(_: Any) -> None:
    """What stands for the rules of a library that has none."""


def share_memory(one: Operand, other: Operand) -> bool:
    """Whether two operands have an element in common, or may have one."""
    (low, high), (start, end) = one.extent, other.extent
    if low >= end or start >= high:
        return False
    try:
        patience: Any = _PATIENCE  # NumPy's type hints know two numbers alone
        return bool(np.shares_memory(bits(one), bits(other), max_work=patience))
    except np.exceptions.TooHardError:
        return True
