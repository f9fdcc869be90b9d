"""Names of variables as the source has them, out of the symbols that the compiler makes."""

from __future__ import annotations

import re

_LAST_PART = re.compile(r"E(\d+)(?=[A-Za-z_])")


def source_name(symbol: str) -> str:
    """`As` for `_ZZ6kernelPfE2As`, the symbol of a variable local to a function.

    Follows the Itanium C++ ABI (local names: encoding, `E`, length and identifier, and `_n` where
    several have the same name). Any other symbol stays as it is.
    """
    if not symbol.startswith("_ZZ"):
        return symbol
    for found in reversed(list(_LAST_PART.finditer(symbol))):
        length = int(found[1])
        name, rest = symbol[found.end() :][:length], symbol[found.end() + length :]
        if len(name) == length and re.fullmatch(r"(_\d+|__\d+_)?", rest):
            return name
    return symbol
