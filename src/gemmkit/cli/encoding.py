"""Output for terminals that cannot show every character: the nearest that they can."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

_HANDLER = "gemmkit.nearest"
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))

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
    "ᵀ": "^T",
    "≡": "=",
    "≠": "!=",
    "−": "-",
    "‖": "|",
    "√": "sqrt",
    "½": "1/2",
    "Σ": "sum ",
    "Π": "prod ",
    "∗": "*",
    "σ": "sigma",
    "δ": "delta",
    "Φ": "Phi",
    "ᵢ": "_i",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    **{digit: f"_{number}" for number, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
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
    previous = error.object[error.start - 1] if error.start else " "
    found = ""
    for each in refused:
        if each in _SUPERSCRIPTS:
            # One sign for all digits of an exponent.
            found += "^" * (previous not in _SUPERSCRIPTS) + _SUPERSCRIPTS[each]
        else:
            found += _NEAREST.get(each, "?")
        previous = each
    # A replacement has to fit the encoding too.
    return found.encode(error.encoding, "replace").decode(error.encoding), error.end
