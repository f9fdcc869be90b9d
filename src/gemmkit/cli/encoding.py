"""Output for terminals that cannot show every character: the nearest that they can."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

_HANDLER = "gemmkit.nearest"

# What gemmkit prints beyond ASCII; one character for one where a column depends on it.
_NEAREST = {
    "×": "x",
    "·": "*",
    "µ": "u",
    "–": "-",
    "—": "-",
    "…": "~",
    "─": "-",
    "│": "|",
    "┼": "+",
    "≤": "<=",
    "≥": ">=",
    "±": "+-",
    "∞": "inf",
    "→": "->",
    "←": "<-",
    "•": "*",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "ε": "eps",
    "²": "^2",
    "³": "^3",
    "⁻": "^-",
    "ᵀ": "^T",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    **dict.fromkeys("▁▂▃", "."),
    **dict.fromkeys("▄▅▆", ":"),
    **dict.fromkeys("▇█━", "#"),
}


def show_any_text() -> None:
    """Let standard output and error take any character, whatever the locale's encoding."""
    codecs.register_error(_HANDLER, _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    refused = error.object[error.start : error.end]
    found = "".join(_NEAREST.get(each, "?") for each in refused)
    # A replacement has to fit the encoding too.
    return found.encode(error.encoding, "replace").decode(error.encoding), error.end
