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


def _nested(symbol: str) -> str:
    """The parts of a name in namespaces, joined by `::`; empty if it is something else."""
    nested = symbol.startswith("_ZN")
    place, parts = 3 if nested else 2, []
    while (part := _PART.match(symbol, place)) is not None:
        place = part.end() + int(part[1])
        parts.append(symbol[part.end() : place])
    if not parts or symbol[place:] != ("E" if nested else ""):
        return ""
    return "::".join(each for each in parts if not _UNNAMED.match(each))
