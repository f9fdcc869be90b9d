"""What is asked of a ragged product: its operands and offsets, read and checked before a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import default_result_type
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.ops.arrays import Library, library_of
from gemmkit.ops.operands import Operand, check_aligned, same_memory
from gemmkit.ops.placement import Terms
from gemmkit.ops.precision import settled
from gemmkit.ops.ragged_scales import RaggedScales, in_groups, read_ragged_scales
from gemmkit.ops.request import WRITTEN, check_writable, number, read_epilogue, share_memory
from gemmkit.ops.scale_shapes import SCALES, check_scale_type
from gemmkit.units import counted

# Types of offsets in a GPU's memory, as `__cuda_array_interface__` calls them, and C++.
OFFSET_TYPES = {"<i4": "int", "<i8": "long long"}

Ends = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GpuOffsets:
    """Offsets in a GPU's memory: where, and their type in C++."""

    address: int
    element: str


@dataclass(frozen=True, slots=True)
class RaggedRequest:
    """One A and one C whose rows are divided among groups: `operands` by role (a, b, out, bias,
    residual, auxiliary, and as stacks of matrices scale_a and scale_b; those there are).

    `offsets` say where the rows of each group end: numbers, or where they lie on a GPU. `library`
    is that of a, which makes a result of its kind.
    """

    operands: Mapping[str, Operand]
    offsets: Ends | GpuOffsets
    terms: Terms
    library: Library

    @property
    def rows(self) -> int:
        """Rows of A and C."""
        return self.operands["a"].view.shape[0]

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self.operands["b"].view.shape[0]

    @property
    def k(self) -> int:
        """Columns of A."""
        return self.operands["a"].view.shape[1]

    @property
    def n(self) -> int:
        """Columns of C."""
        return self.operands["b"].view.shape[2]

    @property
    def scales(self) -> dict[str, RaggedScales]:
        """How the scales of A and B lie, by role, of those that there are."""
        kinds = zip(SCALES, (self.terms.scales.a, self.terms.scales.b), strict=True)
        return {
            role: RaggedScales.of(role, kind, self.operands[role].view)
            for role, kind in kinds
            if role in self.operands
        }

    @property
    def own_bias(self) -> bool:
        """Whether each group has a bias of its own."""
        bias = self.operands.get("bias")
        return bias is not None and len(bias.view.shape) == 2


def read_ragged(
    arrays: Mapping[str, Any],
    offsets: Any,
    *,
    alpha: float,
    beta: float,
    epilogue: Any,
    precision: object,
) -> RaggedRequest:
    """Read and check a ragged product; `arrays` has a and b, and None for what is not given.

    Raises:
        UsageError: a shape, type, place or option that is not valid; the text says which.
        UnsupportedProblem: a side is beyond the kernels' indices.
    """
    given = {role: each for role, each in arrays.items() if each is not None or role in ("a", "b")}
    libraries = {role: library_of(each, role) for role, each in given.items()}
    operands = {role: libraries[role].read(each, role) for role, each in given.items()}
    a, b = operands["a"], operands["b"]
    for role, operand, sides in (("a", a, 2), ("b", b, 3)):
        if len(operand.view.shape) != sides:
            wanted = "(rows, k)" if role == "a" else "(groups, k, n)"
            raise UsageError(
                f"{role} has {counted(len(operand.view.shape), 'dimension')}; it is {wanted}"
            )
    (rows, k), (groups, inner, n) = a.view.shape, b.view.shape
    if k != inner:
        raise UsageError(
            f"a of shape {a.view.shape} has {k} columns and the matrices of b, of shape "
            f"{b.view.shape}, have {inner} rows: a·b needs the same number of both"
        )
    dtype = a.dtype
    for role in filter(operands.__contains__, SCALES):
        check_scale_type(role, operands[role], dtype)
    terms = Terms(
        dtype=dtype,
        out_dtype=operands["out"].dtype if "out" in operands else default_result_type(dtype),
        alpha=number("alpha", alpha),
        beta=number("beta", beta),
        epilogue=read_epilogue(epilogue, given),
        precision=settled(precision, dtype),
        scales=read_ragged_scales(operands, rows, n, k, groups),
    )
    if terms.beta and "out" not in operands:
        raise UsageError(f"beta = {terms.beta} needs out, whose elements it multiplies")
    for name, extent in (("the rows of a", rows), ("n", n), ("k", k), ("groups", groups)):
        if extent > MAX_EXTENT:
            raise UnsupportedProblem(
                f"{name}: {extent:,} are beyond the kernels' 32-bit indices: {MAX_EXTENT:,} is the "
                "most"
            )
    operands |= {role: in_groups(operands[role]) for role in SCALES if role in operands}
    _check_kinds(operands, terms)
    _check_shapes(operands, terms)
    _check_written(operands)
    for role in WRITTEN:
        if role in given:
            check_writable(libraries[role], given[role], role)
    found = read_offsets(offsets, groups, rows, a)
    return RaggedRequest(operands, found, terms, libraries["a"])


def read_offsets(offsets: Any, groups: int, rows: int, a: Operand) -> Ends | GpuOffsets:
    """Where the rows of each group end.

    Raises:
        UsageError: there are not as many as groups, or they are not in order or past the end.
        UnsupportedType: they are no integers.
    """
    there = getattr(offsets, "__cuda_array_interface__", None)
    if there is None:
        return host_offsets(offsets, groups, rows)
    _check_count(tuple(there["shape"]), groups)
    element = OFFSET_TYPES.get(there["typestr"])
    if element is None:
        raise UnsupportedType(
            f"offsets are of type {there['typestr']}: on a GPU they are int32 or int64"
        )
    if a.device is None:
        raise UsageError("offsets are on a GPU and a is in host memory: bring them to one place")
    place = getattr(offsets, "device", None)
    ordinal = getattr(place, "index", getattr(place, "id", None))
    if isinstance(ordinal, int) and ordinal != a.device:
        raise UsageError(
            f"offsets are on GPU {ordinal} and a on {a.where}: bring them to one device"
        )
    strides = there.get("strides")
    if strides is not None and groups > 1 and strides[0] != int(there["typestr"][2:]):
        raise UsageError("offsets on a GPU must be contiguous: copy them first")
    return GpuOffsets(int(there["data"][0]), element)


NOT_INTEGERS = "offsets are not integers: give where the rows of each group end"


def host_offsets(offsets: Any, groups: int, rows: int) -> Ends:
    """Those that are numbers in host memory.

    Raises:
        UsageError, UnsupportedType: as `read_offsets`.
    """
    try:
        found = np.asarray(offsets)
    except (TypeError, ValueError, RuntimeError):
        found = np.asarray(None)
    if found.dtype == object and found.size and all(type(each) is int for each in found.flat):
        # Integers that no type of NumPy holds are out of range in any case.
        found = np.clip(found, -1, rows + 1).astype(np.int64)
    if found.dtype.kind not in "iu" and found.size:
        raise UnsupportedType(NOT_INTEGERS)
    _check_count(found.shape, groups)
    ends: Ends = found.astype(np.int64, copy=False)
    wrong = np.concatenate([ends[:1] < 0, ends[1:] < ends[:-1]]) | (ends > rows)
    if wrong.any():
        raise UsageError(
            f"offsets must be in order, from 0 to the {counted(rows, 'row')} of a, since each is "
            f"where the rows of a group end: offset {int(wrong.argmax())} is not"
        )
    return ends


def _check_count(shape: tuple[int, ...], groups: int) -> None:
    if shape != (groups,):
        raise UsageError(
            f"offsets have the shape {shape}; b has {counted(groups, 'group')}, each of which has "
            "an end"
        )


def _check_kinds(operands: Mapping[str, Operand], terms: Terms) -> None:
    first = operands["a"]
    for role, operand in operands.items():
        wanted = terms.dtype if role in ("a", "b") else terms.out_dtype
        if role not in SCALES and operand.dtype != wanted:
            raise UnsupportedType(
                f"{role} has type {operand.dtype} and {'a' if role == 'b' else 'the result'} "
                f"{wanted}: convert one of them"
            )
        check_aligned(operand, role)
        if operand.device != first.device:
            raise UsageError(
                f"a is in {first.where} and {role} in {operand.where}: bring them to one device"
            )


def _check_shapes(operands: Mapping[str, Operand], terms: Terms) -> None:
    rows, n = operands["a"].view.shape[0], operands["b"].view.shape[2]
    groups = operands["b"].view.shape[0]
    allowed = dict.fromkeys(("out", "residual", "auxiliary"), ((rows, n),))
    of_bias: tuple[tuple[int, ...], ...] = ((n,), (groups, n))
    allowed["bias"] = ((rows,),) if terms.epilogue.bias == "row" else of_bias  # type: ignore[assignment]
    for role, shapes in allowed.items():
        if role in operands and operands[role].view.shape not in shapes:
            told = " or ".join(map(str, shapes))
            raise UsageError(f"{role} has the shape {operands[role].view.shape}; it is {told}")


def _check_written(operands: Mapping[str, Operand]) -> None:
    for role in WRITTEN:
        written = operands.get(role)
        if written is None:
            continue
        if not written.writable:
            raise UsageError(f"{role} cannot be written: it is read-only")
        if written.overlaps_itself:
            raise UsageError(f"{role} has elements that share memory: give an array of its own")
        for other in _others(role, operands):
            in_place = role == "out" and other == "residual"
            if in_place and same_memory(written, operands[other]):
                continue
            if share_memory(written, operands[other]):
                raise UsageError(f"{role} overlaps {other} in memory: give another array")


def _others(role: str, operands: Mapping[str, Operand]) -> Iterator[str]:
    for other in operands:
        if other != role and (role, other) != ("auxiliary", "out"):
            yield other
