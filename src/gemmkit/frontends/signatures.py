"""Binds the parameters of a user's kernel to gemmkit's names, by their spelling or as told."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from gemmkit.cxx.declarations import KernelDeclaration, Parameter
from gemmkit.cxx.element_types import ELEMENT_TYPES, unclear
from gemmkit.cxx.expressions import Expression, Number
from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, RESULT_TYPES, Dtype
from gemmkit.errors import UsageError, nearest
from gemmkit.frontends.struct_arguments import grouped, is_matrix, matrix_field
from gemmkit.kernels.plan import (
    ARGUMENT_NAMES,
    LEADING_DIMENSIONS,
    SCRATCH_ARGUMENTS,
    Signature,
)
from gemmkit.kernels.sizes import SIZES

MATRICES = ("A", "B", "C")
POINTERS = (*MATRICES, "bias")
# What a parameter may be, and those of it that are addresses.
_NAMES = (*ARGUMENT_NAMES, *SCRATCH_ARGUMENTS)
_ADDRESSES = (*POINTERS, *SCRATCH_ARGUMENTS)
SCALES = ("alpha", "beta")
NULL = ("0", "nullptr", "NULL")

INTEGERS = frozenset([
    "char", "short", "int", "unsigned", "unsigned int", "uint", "long", "long int", "long long",
    "unsigned long", "unsigned long long", "size_t", "std::size_t", "int8_t", "uint8_t", "int16_t",
    "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "bool",
])  # fmt: skip
FLOATS = frozenset(["float", "double"])
# What numbers of 8 bits may be declared as.
BYTES = frozenset(["unsigned char", "uchar", "uint8_t", "__nv_fp8_storage_t"])
# Element types that no problem has; a template's T may be anything.
_NOT_FLOAT = INTEGERS - {"char"} | {
    *("int2", "int4", "uint4"),
    *("signed char", "unsigned char", "uchar", "unsigned short"),
    *("short int", "long long int", "char4", "uchar4", "cuComplex", "cuFloatComplex"),
}

# A letter between prefixes and suffixes such as those of `d_A`, `ptr_a`, `A_dev` and `matC_`.
_MATRIX_NAME = (
    r"(?:(?:d|dev|device|g|gpu|gmem|p|ptr|mat|matrix|input|in|output|out|s|m)_?)*(LETTER)"
    r"(?:_?(?:d|dev|device|gpu|gmem|p|ptr|mat|matrix|global|data|in|out))*_?"
)
_EXTENT = re.compile(
    r"(?:num|n|mat|matrix)?_?(?:([abc])_?)?"
    r"(rows?|col(?:umn)?s?|h(?:eight)?|w(?:idth)?)(?:_?([abc]))?"
)
# Sizes named after a matrix's rows and columns: A is M×K, B is K×N, C is M×N.
_EXTENTS = {
    ("rows", "a"): "M", ("cols", "a"): "K", ("rows", "b"): "K", ("cols", "b"): "N",
    ("rows", "c"): "M", ("cols", "c"): "N",
}  # fmt: skip
_SQUARE = frozenset(["n", "m", "k", "width", "size", "dim", "len", "length"])
# `MM`, `M_SIZE`, `DIM_M`, `GEMM_M` and the like, for constants alone.
_SIZE_CONSTANT = re.compile(
    r"(?:(?:gemm|problem|dim|size|total|global|full|mat|matrix)_?)?([mnk])\1?"
    r"|([mnk])\2?_?(?:size|dim|dimension|total|global|full|len|length)"
)
_MATRIX_WORD = re.compile(r"^(?:matrix|mat|problem)|(?:matrix|mat)$")


def read_signature(
    kernel: KernelDeclaration, file: str, maps: Mapping[str, str] | None = None
) -> Signature:
    """The names of a kernel's parameters as gemmkit calls them.

    `maps` has the matrix of each tensor map, by the name of its parameter.

    A kernel whose only integer is called `N`, `width` or the like, or nothing that is known beside
    A, B and C, is taken to multiply square matrices. Textbooks multiply M by N and call the result
    P.

    Raises:
        UsageError: a parameter cannot be read safely, or two are read as the same.
    """
    read = _with_usual_letters(kernel)
    maps = maps or {}
    names = [
        map_name(given, maps) or _read_in(read, parameter)
        for given, parameter in zip(kernel.parameters, read.parameters, strict=True)
    ]
    integers = [each for each in kernel.parameters if _is_integer(each)]
    # Tensor maps hold the other sizes.
    if (
        len(integers) == 1
        and not maps
        and (integers[0].name.lower() in _SQUARE or _is_only_size(names, integers[0], kernel))
    ):
        names[kernel.parameters.index(integers[0])] = "N"
    by_extent = {name for name in names if _is_extent(read, names, name)}
    doubled = {name for name in names if name and names.count(name) > 1} - by_extent
    missing = [each for each in MATRICES if each not in {*names, *maps.values()}]
    if names and missing and "" not in names and not doubled:
        raise UsageError(
            f"{file}:{kernel.line}: '{kernel.name}' has no parameter for {' and '.join(missing)}: "
            f"{describe(kernel)}; a kernel that computes C from A and B takes all three. If others "
            "stand for them, give --args"
        )
    if "" in names or doubled or not set(MATRICES) <= {*names, *maps.values()}:
        shown = grouped(
            [name if name and name not in doubled else "?" for name in names], kernel
        ).replace(",", ", ")
        braces = "; a struct takes an initializer in braces" if "{" in shown else ""
        raise UsageError(
            f"{file}:{kernel.line}: cannot tell from their names what all the parameters of "
            f"'{kernel.name}' are: {describe(kernel)}; give --args with one of "
            f"{','.join(_NAMES)} (or a number, or an expression of these) for each "
            f"parameter, in order{braces}{'' if not names else ': ' + shown}"
        )
    return tuple(names)


def map_name(parameter: Parameter, maps: Collection[str]) -> str:
    """The tensor map that a parameter, or the field of a struct, is called after; or empty."""
    field = parameter.name.rpartition(".")[2]
    return next((each for each in (parameter.name, field) if each in maps), "")


def _is_only_size(names: Sequence[str], integer: Parameter, kernel: KernelDeclaration) -> bool:
    """Whether one integer beside A, B and C, of whatever name, can be nothing but their size."""
    place = kernel.parameters.index(integer)
    others = [name for number, name in enumerate(names) if number != place]
    return (names[place] == "" or names[place] in LEADING_DIMENSIONS) and (
        set(others) >= set(MATRICES) and "" not in others
    )


def told_signature(
    given: Sequence[str],
    kernel: KernelDeclaration | None,
    constants: Mapping[str, Number],
    maps: Collection[str] = (),
    names: Sequence[str] = _NAMES,
) -> Signature:
    """The signature that a user gives, checked against the parameters where those can be read.

    Constants of the source are replaced by their values; `nullptr` becomes 0. `maps` are the names
    of tensor maps, and `names` those of other arguments.

    Raises:
        UsageError: an entry is neither a name nor an expression, or does not fit its parameter.
    """
    known = (*names, *constants)
    signature = []
    for text in given:
        if text in NULL or text in maps:
            signature.append("0" if text in NULL else text)
            continue
        expression = Expression.parse(text)
        unknown = sorted(expression.names - set(known))
        if unknown:
            near = nearest(unknown[0], (*known, *maps), most=1) if len(unknown[0]) > 2 else ()
            meant = f", did you mean {near[0]}?" if near else ";"
            raise UsageError(
                f"argument '{text}' uses {', '.join(unknown)}{meant} known names: "
                f"{', '.join((*names, *maps))}"
            )
        pointers = expression.names & set(_ADDRESSES)
        if pointers and text not in _ADDRESSES:
            raise UsageError(
                f"argument '{text}' does arithmetic on a pointer, which is not supported: give "
                f"{min(pointers)} itself"
            )
        signature.append(text if text in names else expression.bound(constants))
    if kernel is not None:
        _check_fit(signature, kernel)
    return tuple(signature)


def describe(kernel: KernelDeclaration) -> str:
    """The parameters as declared."""
    return f"({', '.join(map(str, kernel.parameters))})"


def wrong_matrices(signature: Signature, kernel: KernelDeclaration) -> str | None:
    """Why no problem has matrices like a kernel's, or None if one has, or may have."""
    elements = _elements(signature, kernel)
    for name, parameter in zip(signature, kernel.parameters, strict=True):
        if name not in POINTERS:
            continue
        if parameter.stars > 1:
            return (
                f"its parameter '{parameter}' is an array of pointers, as in a batched kernel, "
                "which is not supported; take a pointer to a single matrix"
            )
        if parameter.pointer and parameter.type in BYTES and name in ("A", "B"):
            continue
        if parameter.pointer and parameter.type in _NOT_FLOAT:
            return (
                f"its parameter '{parameter}' points to {parameter.type}, which is not a supported "
                "element type; use float, double, half or __nv_bfloat16, and for A and B "
                "__nv_fp8_e4m3 or __nv_fp8_e5m2 as well"
            )
    narrow = next((each for each in ("C", "bias") if elements.get(each) in OPERAND_TYPES), None)
    if narrow is not None:
        return f"its {narrow} is {elements[narrow]}, which your own kernels have for A and B only"
    found = elements
    for one, other in (("A", "B"), ("C", "bias")):
        if found.get(one, found.get(other)) != found.get(other, found.get(one)):
            return (
                f"its {one} is {found[one]}, but its {other} is {found[other]}; A and B must have "
                "the same element type, and so must C and the bias"
            )
    return None


def matrix_types(
    signature: Signature, kernel: KernelDeclaration | None
) -> tuple[tuple[Dtype, ...], tuple[Dtype, ...]]:
    """The types of A and B that a kernel may take and those of C, the likeliest first.

    They are one where the parameters show it. Without any of C, it follows that of A and B.
    """
    found = _elements(signature, kernel) if kernel is not None else {}
    results = found.get("C", found.get("bias"))
    operands = found.get("A", found.get("B"))
    if operands is None and kernel is not None and _of_bytes(signature, kernel):
        return OPERAND_TYPES, (results,) if results is not None else RESULT_TYPES
    if operands is not None:
        narrow = operands in OPERAND_TYPES
        others = RESULT_TYPES if narrow else _any_type(operands)
        return (operands,), (results,) if results is not None else others
    return _any_type(results or "float32"), () if results is None else (results,)


def _of_bytes(signature: Signature, kernel: KernelDeclaration) -> bool:
    """Whether A or B is declared as bytes, which may be numbers of either type of 8 bits."""
    return any(
        name in ("A", "B") and parameter.type in BYTES
        for name, parameter in zip(signature, kernel.parameters, strict=True)
    )


def _any_type(first: Dtype) -> tuple[Dtype, ...]:
    """All types, this one first."""
    return tuple(dict.fromkeys((first, *get_args(Dtype))))


def _elements(signature: Signature, kernel: KernelDeclaration) -> dict[str, Dtype]:
    """The type of each matrix and of the bias, of those whose parameters show it."""
    found: dict[str, Dtype] = {}
    for name, parameter in zip(signature, kernel.parameters, strict=True):
        known = ELEMENT_TYPES.get(parameter.type.removeprefix("::"))
        if name in POINTERS and known is not None:
            found.setdefault(name, known)
    return found


def narrow_scalars(
    signature: Signature, kernel: KernelDeclaration
) -> tuple[tuple[str, Dtype | None], ...]:
    """Those of α and β that 16-bit parameters take, with the type of each."""
    return tuple(
        (name, dtype)
        for name, parameter in zip(signature, kernel.parameters, strict=True)
        if name in SCALES and not parameter.pointer
        and (dtype := ELEMENT_TYPES.get(parameter.type.removeprefix("::"))) is not None
        and ITEM_BYTES[dtype] == 2
    )  # fmt: skip


def hidden_elements(signature: Signature, kernel: KernelDeclaration | None) -> list[int]:
    """The numbers of the parameters that get matrices whose elements the text does not show."""
    numbers = range(len(signature))
    unknown = numbers if kernel is None else unclear(kernel.parameters, _NOT_FLOAT | BYTES)
    return [number for number in unknown if signature[number] in POINTERS]


def named_size(name: str) -> str:
    """Which of M, N and K a constant of a source is by its name; N for `WIDTH` or `MATRIX_SIZE`.

    Empty for any other name.
    """
    plain = name.lower()
    if plain in ("m", "n", "k"):
        return plain.upper()
    single = _SIZE_CONSTANT.fullmatch(plain)
    if single is not None:
        return (single[1] or single[2]).upper()
    bare = _MATRIX_WORD.sub("", plain.replace("_", ""))
    return _extent(plain) or ("N" if bare in _SQUARE else "")


def _read_in(kernel: KernelDeclaration, parameter: Parameter) -> str:
    """The same for a field of a struct: one of a matrix, or read as a parameter of its own."""
    owner, _, field = parameter.name.rpartition(".")
    matrix = _matrix(owner.rpartition(".")[2].lower())
    if matrix and is_matrix(owner, kernel):
        return matrix_field(parameter, matrix)
    return _read(replace(parameter, name=field))


def _matrix(plain: str, letters: str = "abc") -> str:
    """A, B or C where a name says that it is one of them, by the letters that stand for them."""
    found = re.fullmatch(_MATRIX_NAME.replace("LETTER", f"[{letters}]"), plain)
    return MATRICES[letters.index(found[1])] if found else ""


def _with_usual_letters(kernel: KernelDeclaration) -> KernelDeclaration:
    """The kernel with its matrices called A, B and C, if it calls them M, N and P."""
    named = [
        _matrix(owner.lower(), "mnp") if "." in each.name or each.pointer else ""
        for each in kernel.parameters
        if (owner := each.name.partition(".")[0])
    ]
    if len(named) < len(kernel.parameters) or {*filter(None, named)} != {*MATRICES}:
        return kernel
    parameters = tuple(
        replace(each, name=letter + each.name[len(each.name.partition(".")[0]) :])
        if letter
        else each
        for letter, each in zip(named, kernel.parameters, strict=True)
    )
    return replace(kernel, parameters=parameters)


def _read(parameter: Parameter) -> str:
    plain = parameter.name.lower()
    if parameter.pointer and plain in SCRATCH_ARGUMENTS:
        return plain
    if parameter.pointer:
        return "bias" if plain in ("bias", "d_bias") else _matrix(plain)
    if _is_integer(parameter):
        if plain in LEADING_DIMENSIONS:
            return plain
        return plain.upper() if plain in ("m", "n", "k") else _extent(plain)
    if parameter.type in FLOATS or parameter.type not in INTEGERS:
        return plain if plain in SCALES else ""
    return ""


def _is_integer(parameter: Parameter) -> bool:
    return not parameter.pointer and parameter.type in INTEGERS


def _extent(plain: str) -> str:
    """The size that `num_rows_a`, `numARows`, `a_cols`, `wA` and the like name."""
    words = _EXTENT.fullmatch(plain)
    if words is None or (words[1] is None) == (words[3] is None):
        return ""
    axis = "rows" if words[2].startswith(("r", "h")) else "cols"
    return _EXTENTS[axis, words[1] or words[3]]


def _is_extent(kernel: KernelDeclaration, names: Sequence[str], name: str) -> bool:
    """Whether all parameters that read so are extents of matrices, or fields of their structs."""
    if name in MATRICES:
        return False
    return all(
        "." in parameter.name or (name in SIZES and _extent(parameter.name.lower()))
        for parameter, read in zip(kernel.parameters, names, strict=True)
        if read == name
    )


def _check_fit(signature: Sequence[str], kernel: KernelDeclaration) -> None:
    if len(signature) != len(kernel.parameters):
        raise UsageError(
            f"'{kernel.name}' takes {len(kernel.parameters)} arguments, {describe(kernel)}, but "
            f"--args gives {len(signature)}: {','.join(signature)}"
        )
    for text, parameter in zip(signature, kernel.parameters, strict=True):
        if parameter.pointer and text not in (*_ADDRESSES, "0"):
            raise UsageError(
                f"argument '{text}' is for '{parameter}' of '{kernel.name}', which is a pointer: "
                f"give one of {', '.join(_ADDRESSES)}, or 0"
            )
        plain = parameter.type in INTEGERS or parameter.type in FLOATS
        if not parameter.pointer and plain and text in _ADDRESSES:
            raise UsageError(
                f"argument '{text}' is a pointer, but '{parameter}' of '{kernel.name}' is not: "
                "give --args in the order of the parameters"
            )
        if parameter.type in INTEGERS and not parameter.pointer and text in SCALES:
            raise UsageError(
                f"argument '{text}' is a floating-point number, but '{parameter}' of "
                f"'{kernel.name}' is an integer: give --args in the order of the parameters"
            )
