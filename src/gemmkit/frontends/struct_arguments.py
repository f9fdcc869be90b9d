"""What the fields of a struct are given: by their names, or by an initializer in `--args`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmkit.cxx.declarations import KernelDeclaration, Parameter
from gemmkit.cxx.expressions import split_list
from gemmkit.errors import UsageError
from gemmkit.kernels.plan import StructPlace

# Rows and columns of each matrix, and the name of its leading dimension.
_MATRICES = {"A": ("M", "K", "lda"), "B": ("K", "N", "ldb"), "C": ("M", "N", "ldc")}

_MARKS = re.compile(r"^m_|_$|^_")
_EXTENT = r"(?:shape|dims?|extents?|sizes?)"
_ROWS = re.compile(rf"(?:num|n)?_?rows?|h|height|{_EXTENT}\[0\]")
_COLUMNS = re.compile(rf"(?:num|n)?_?col(?:umn)?s?|w|width|{_EXTENT}\[1\]")
_LEADING = re.compile(r"ld[abc]?|stride|row_?stride|leading_?dim(?:ension)?|strides?\[0\]")
_UNIT = re.compile(r"col(?:umn)?_?stride|strides?\[1\]")
_COUNT = re.compile(r"size|count|numel|length|num_?elements")
_DESIGNATED = re.compile(r"\.?\s*([A-Za-z_][\w.\[\]]*)\s*[=:]\s*(.+)", re.DOTALL)


def matrix_field(field: Parameter, matrix: str) -> str:
    """The argument for a field of a struct that stands for matrix A, B or C; empty if unknown."""
    if field.pointer:
        return matrix
    rows, columns, leading = _MATRICES[matrix]
    plain = _MARKS.sub("", field.name.rpartition(".")[2].lower())
    for pattern, argument in (
        (_ROWS, rows),
        (_COLUMNS, columns),
        (_LEADING, leading),
        (_UNIT, "1"),
        (_COUNT, f"{rows}*{columns}"),
    ):
        if pattern.fullmatch(plain):
            return argument
    return ""


def is_matrix(owner: str, kernel: KernelDeclaration) -> bool:
    """Whether a struct has one pointer, as that of a single matrix does."""
    inside = (each for each in kernel.parameters if each.name.startswith(f"{owner}."))
    return sum(each.pointer for each in inside) == 1


def grouped(arguments: Sequence[str], kernel: KernelDeclaration) -> str:
    """Arguments as `--args` takes them: those of a struct's fields in braces."""
    shown: list[str] = []
    last = ""
    for argument, parameter in zip(arguments, kernel.parameters, strict=True):
        owner = parameter.name.partition(".")[0] if "." in parameter.name else ""
        if owner and owner == last:
            shown[-1] = f"{shown[-1][:-1]},{argument}}}"
        else:
            shown.append(f"{{{argument}}}" if owner else argument)
        last = owner
    return ",".join(shown)


def expanded(
    given: Sequence[str], kernel: KernelDeclaration, structs: Sequence[StructPlace | None]
) -> list[str]:
    """Arguments with one for each field in place of a struct's.

    A struct takes an initializer, `{K,M,A}` or `{.width=K,.height=M,.elements=A}`, or the name of
    the matrix that it stands for. `kernel` has a parameter for each field.

    Raises:
        UsageError: there is not one argument for each parameter, or one does not fit its struct.
    """
    if len(given) != len(structs):
        raise UsageError(
            f"'{kernel.name}' takes {len(structs)} arguments, but --args gives {len(given)}: "
            f"{','.join(given)}; a struct takes one initializer in braces"
        )
    found: list[str] = []
    for text, struct in zip(given, structs, strict=True):
        if struct is None:
            found.append(text)
            continue
        fields = kernel.parameters[len(found) : len(found) + len(struct.fields)]
        found += _of_struct(text.strip(), struct, fields)
    return found


def _of_struct(text: str, struct: StructPlace, fields: Sequence[Parameter]) -> list[str]:
    names = [each.name.partition(".")[2] for each in fields]
    if text in _MATRICES:
        read = [matrix_field(each, text) for each in fields]
        if all(read) and sum(each.pointer for each in fields) == 1:
            return read
        raise UsageError(
            f"cannot tell from their names what all the fields of '{struct.declared}' "
            f"({', '.join(names)}) are for matrix {text}: give an initializer with one argument "
            f"for each, in order, such as '{{{','.join(each or '?' for each in read)}}}'"
        )
    if not (text.startswith("{") and text.endswith("}")):
        raise UsageError(
            f"argument '{text}' is for the struct '{struct.declared}': give A, B or C, or an "
            f"initializer of its fields, '{{{','.join(names)}}}'"
        )
    parts = split_list(text[1:-1]) if text[1:-1].strip() else []
    designated = [_DESIGNATED.fullmatch(part) for part in parts]
    if parts and all(designated):
        values = {each[1]: each[2].strip() for each in designated if each}
        unknown = [each for each in values if each not in names]
        if unknown:
            raise UsageError(
                f"'{struct.declared}' has no field '{unknown[0]}'; it has {', '.join(names)}"
            )
        return [values.get(name, "0") for name in names]
    flat = _flat(parts)
    if len(flat) != len(names):
        raise UsageError(
            f"'{struct.declared}' has {len(names)} fields ({', '.join(names)}), but '{text}' gives "
            f"{len(flat)}: give one argument for each field"
        )
    return flat


def _flat(parts: Sequence[str]) -> list[str]:
    """The scalars of an initializer; braces within it may be left out, as in C."""
    found: list[str] = []
    for part in parts:
        inner = part.startswith("{") and part.endswith("}")
        found += _flat(split_list(part[1:-1])) if inner else [part]
    return found
