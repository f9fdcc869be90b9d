"""What is asked of many products at once: operands read, and checked before a launch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import OPERAND_TYPES, default_result_type
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.groups import Sizes
from gemmkit.ops.arrays import Library, WarmLibrary, library_of
from gemmkit.ops.group_scales import scales_of_groups
from gemmkit.ops.operands import WIDEST_ACCESS, Operand, View, check_aligned
from gemmkit.ops.overlaps import Extents, first_overlap
from gemmkit.ops.placement import Terms
from gemmkit.ops.precision import settled
from gemmkit.ops.request import WRITTEN, check_writable, number, read_epilogue
from gemmkit.ops.scale_shapes import SCALES, check_scale_type
from gemmkit.scales import UNSCALED, Scales
from gemmkit.units import counted

# What arrays look like that were read before, apart from their addresses.
_seen: dict[Hashable, Operand] = {}
_MOST_SEEN = 4096


def low_bits(addresses: Iterable[NDArray[Any]]) -> int:
    """What some addresses have beyond multiples of the widest access, or'd together."""
    found = 0
    for each in addresses:
        found |= int(np.bitwise_or.reduce(each, initial=0))
    return found % WIDEST_ACCESS


# What the result of a product may be, element by element.
_IN_PLACE = ("c", "residual")

Operands = Mapping[str, list[Operand]]


@dataclass(frozen=True, slots=True)
class GroupsRequest:
    """Products: `operands` by role (a, b, c, out, bias, residual, auxiliary, scale_a, scale_b;
    those there are).

    Each has one for every product, in order, `libraries` has what they are of and `extents` where
    they lie; `m`, `n` and `k` are the products' sizes.
    """

    operands: Operands
    libraries: Mapping[str, list[Library]]
    extents: Mapping[str, Extents]
    m: Sizes
    n: Sizes
    k: Sizes
    terms: Terms

    @property
    def count(self) -> int:
        """The number of products."""
        return int(self.m.size)

    def new_results(self, stream: int | None) -> list[Operand]:
        """Results in new arrays of the library of each `a`; `stream` is where they are used."""
        return [
            _new_result(library, a, (m, n), stream)
            for library, a, m, n in zip(
                self.libraries["a"],
                self.operands["a"],
                self.m.tolist(),
                self.n.tolist(),
                strict=True,
            )
        ]


def _new_result(
    library: Library, like: Operand, shape: tuple[int, int], stream: int | None
) -> Operand:
    """A result of the type that goes with that of its `a`, by the fast path of a GPU's library if
    it has one: there may be thousands."""
    dtype = default_result_type(like.dtype)
    if stream is None or not hasattr(library, "new"):
        return library.empty(like, shape, dtype, stream)
    other = None if dtype == like.dtype else dtype
    array, address = cast(WarmLibrary, library).new(like.array, shape, other)
    return Operand(array, address, View.tight(shape), dtype, like.device, writable=True)


def read_groups(
    arrays: Mapping[str, Any],
    *,
    alpha: float,
    beta: float,
    epilogue: Epilogue | str | None,
    precision: object,
    prepared: bool = False,
) -> GroupsRequest:
    """Read and check many products; `arrays` has sequences a and b, and None for what is not given.
    `prepared` says whether b are prepared operands.

    Raises:
        UsageError: a shape, type, place or option that is not valid; the text says which.
    """
    given = {role: list(each) for role, each in arrays.items() if each is not None}
    for role, members in given.items():
        if len(members) != len(given["a"]):
            raise UsageError(
                f"{argument(role)} has {counted(len(members), 'array')} and as_ has "
                f"{len(given['a'])}: give one for each product"
            )
    terms = Terms(
        alpha=number("alpha", alpha),
        beta=number("beta", beta),
        epilogue=read_epilogue(epilogue, given),
    )
    if terms.beta == 0:
        given.pop("c", None)
    elif "c" not in given:
        raise UsageError(f"beta = {terms.beta} needs c; c=out adds to what out holds")
    libraries = {
        role: [library_of(each, f"{argument(role)}[{place}]") for place, each in enumerate(members)]
        for role, members in given.items()
    }
    operands = {
        role: [
            _operand(library, each, role, place)
            for place, (library, each) in enumerate(zip(libraries[role], members, strict=True))
        ]
        for role, members in given.items()
    }
    terms = _with_types(terms, operands, precision)
    # Arrays in host memory are brought to a device anew; where α = 0, neither operand is read.
    if prepared and terms.alpha and operands["a"] and operands["a"][0].device is not None:
        terms = replace(terms, prepared="b")
    _check_kinds(operands, terms)
    _check_shapes(operands, terms.epilogue)
    terms = replace(terms, scales=_scales(operands))
    extents = {role: Extents.of(members) for role, members in operands.items()}
    _check_written(operands, extents)
    for role in WRITTEN:
        for place, array in enumerate(given.get(role, ())):
            check_writable(libraries[role][place], array, f"{argument(role)}[{place}]")
    m, k = extents["a"].places.T[2:4]
    n = extents["b"].places.T[3]
    return GroupsRequest(operands, libraries, extents, m, n, k, terms)


def _operand(library: Library, array: Any, role: str, place: int) -> Operand:
    """The array as an operand; one that looks like an array before is not read again."""
    glance = getattr(library, "glance", None)
    if glance is None:
        return library.read(array, f"{argument(role)}[{place}]")
    try:
        address, seen = glance(array)
        known = _seen.get((library.NAME, seen))
    except (AttributeError, TypeError, RuntimeError):
        # Reading it tells what is wrong.
        return library.read(array, f"{argument(role)}[{place}]")
    # Host memory is looked at each time: it may be unaligned, or freed since.
    if known is None or known.device is None:
        known = library.read(array, f"{argument(role)}[{place}]")
        if known.device is None:
            return known
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        # Without the array, whose memory it would keep.
        _seen[library.NAME, seen] = replace(known, array=None)
        return known
    return Operand(array, address, known.view, known.dtype, known.device, known.writable)


def argument(role: str) -> str:
    """What `grouped_matmul` calls the arrays of a role."""
    return {"a": "as_", "b": "bs"}.get(role, role)


def listed(role: str, given: Any) -> list[Any]:
    """The arrays of one role, one for each product.

    Raises:
        UnsupportedType: they are no sequence.
    """
    try:
        return list(given)
    except TypeError:
        raise UnsupportedType(
            f"{argument(role)} has type {type(given).__name__}: give a list of arrays, one for "
            "each product"
        ) from None


def _with_types(terms: Terms, operands: Operands, precision: object) -> Terms:
    """The terms with the types of the products, those of the first a and of the first out, and
    their precision."""
    if not operands["a"]:
        # No array tells the type: it is one that has this precision.
        dtype = OPERAND_TYPES[0] if precision == "fast" else terms.dtype
        return replace(terms, dtype=dtype, precision=settled(precision, dtype))
    dtype = operands["a"][0].dtype
    return replace(
        terms,
        dtype=dtype,
        out_dtype=operands["out"][0].dtype if "out" in operands else default_result_type(dtype),
        precision=settled(precision, dtype),
    )


def _check_kinds(operands: Operands, terms: Terms) -> None:
    for role, members in operands.items():
        wanted = terms.dtype if role in ("a", "b") else terms.out_dtype
        if role in SCALES:
            wanted = "float32"
        other = "as_[0] has" if role in ("a", "b") else "the results have"
        for place, operand in enumerate(members):
            if role in SCALES:
                check_scale_type(f"{role}[{place}]", operand, terms.dtype)
            if operand.dtype != wanted:
                raise UnsupportedType(
                    f"{argument(role)}[{place}] has type {operand.dtype} and {other} {wanted}: "
                    "the products of a launch are of one type, so convert one of them"
                )
            check_aligned(operand, f"{argument(role)}[{place}]")
            first = operands["a"][0]
            if operand.device != first.device:
                raise UsageError(
                    f"as_[0] is in {first.where} and {argument(role)}[{place}] in "
                    f"{operand.where}: bring them "
                    "to one device"
                )


def _check_shapes(operands: Operands, epilogue: Epilogue) -> None:
    for place, (a, b) in enumerate(zip(operands["a"], operands["b"], strict=True)):
        for role, operand in (("a", a), ("b", b)):
            if len(operand.view.shape) != 2:
                raise UsageError(
                    f"{argument(role)}[{place}] has "
                    f"{counted(len(operand.view.shape), 'dimension')}; each product is of two "
                    "matrices"
                )
        (m, k), (inner, n) = a.view.shape, b.view.shape
        if k != inner:
            raise UsageError(
                f"as_[{place}] of shape {a.view.shape} has {k} columns and bs[{place}] of shape "
                f"{b.view.shape} has {inner} rows: a·b needs the same number of both"
            )
        for role in ("out", "c", "residual", "auxiliary"):
            if role in operands and operands[role][place].view.shape != (m, n):
                raise UsageError(
                    f"{argument(role)}[{place}] has the shape "
                    f"{operands[role][place].view.shape}; the "
                    f"product has {(m, n)}"
                )
        if "bias" in operands:
            side, length = ("m", m) if epilogue.bias == "row" else ("n", n)
            shape = operands["bias"][place].view.shape
            if shape != (length,):
                raise UsageError(
                    f"bias[{place}] has the shape {shape}; a {epilogue.bias} bias has {side} = "
                    f"{length} elements"
                )


def _scales(operands: Operands) -> Scales:
    """How A and B are scaled."""
    given = [role for role in SCALES if role in operands]
    if not given:
        return UNSCALED
    shapes = {role: [each.view.shape for each in operands[role]] for role in given}
    sizes = [
        (*a.view.shape, b.view.shape[1]) for a, b in zip(operands["a"], operands["b"], strict=True)
    ]
    return scales_of_groups(shapes, [(m, n, k) for m, k, n in sizes])


def _check_written(operands: Operands, extents: Mapping[str, Extents]) -> None:
    """No written element is written twice, nor read by another product or at another index.

    Raises:
        UsageError: one is, or an array cannot be written.
    """
    written = {role: operands[role] for role in ("out", "auxiliary") if role in operands}
    for role, members in written.items():
        for place, operand in enumerate(members):
            if not operand.writable:
                raise UsageError(f"{argument(role)}[{place}] cannot be written: it is read-only")
            if operand.overlaps_itself:
                raise UsageError(
                    f"{argument(role)}[{place}] has elements that share memory: give an array "
                    "of its own"
                )
    for role in written:
        for other, theirs in extents.items():
            if (role, other) == ("auxiliary", "out"):
                continue
            mine = extents[role]
            in_place = mine.same_as(theirs) if role == "out" and other in _IN_PLACE else None
            found = first_overlap(mine, theirs, in_place)
            if found is not None:
                raise UsageError(
                    f"{argument(role)}[{found[0]}] overlaps {argument(other)}[{found[1]}] in "
                    "memory: give another array"
                )
