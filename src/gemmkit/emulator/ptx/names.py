"""Names of variables and kernels as in the source, from the compiler's symbols."""

from __future__ import annotations

import re

_PART = re.compile(r"L?(\d+)")
# The compilers' names of anonymous namespaces.
_UNNAMED = re.compile(r"_GLOBAL__N_|_INTERNAL_|\d*_GLOBAL__N")
_LAST_PART = re.compile(r"E(\d+)(?=[A-Za-z_])")


def source_name(symbol: str) -> str:
    """`As` for `_ZZ6kernelPfE2As`, the symbol of a variable local to a function.

    Follows the Itanium C++ ABI (local names: encoding, `E`, length and identifier, and `_n` if
    several have the same name; `_ZN` and the namespaces, without anonymous ones). Any other symbol
    is returned unchanged.
    """
    if symbol.startswith(("_ZN", "_ZL")):
        return _nested(symbol) or symbol
    if not symbol.startswith("_ZZ"):
        return symbol
    for found in reversed(list(_LAST_PART.finditer(symbol))):
        length = int(found[1])
        name, rest = symbol[found.end() :][:length], symbol[found.end() + length :]
        if len(name) == length and re.fullmatch(r"(_\d+|__\d+_)?", rest):
            return name
    return symbol


def kernel_name(symbol: str) -> str:
    """`gemm` for `_Z4gemmILi128EEvPKf`, the symbol of a kernel: no arguments, no types.

    Namespaces stay, but for those without a name. A symbol that is not mangled, or not in this way,
    is returned unchanged.
    """
    found = re.match(r"_Z(N?)", symbol)
    if found is None:
        return symbol
    parts, end = _parts(symbol, found.end(), most=None if found[1] else 1)
    return symbol if end > len(symbol) else _joined(parts) or symbol


def _nested(symbol: str) -> str:
    """The parts of a name in namespaces, joined by `::`; empty if it is something else."""
    nested = symbol.startswith("_ZN")
    parts, end = _parts(symbol, 3 if nested else 2)
    return _joined(parts) if symbol[end:] == ("E" if nested else "") else ""


def _parts(symbol: str, start: int, most: int | None = None) -> tuple[list[str], int]:
    """Identifiers that follow each other, each after its length, and where they end."""
    position = start
    parts: list[str] = []
    while len(parts) != most and (part := _PART.match(symbol, position)) is not None:
        position = part.end() + int(part[1])
        parts.append(symbol[part.end() : position])
    return parts, position


def _joined(parts: list[str]) -> str:
    return "::".join(each for each in parts if not _UNNAMED.match(each))
