"""Output for terminals that cannot show every character: the nearest replacement."""

from __future__ import annotations

import codecs
import re
import sys
from dataclasses import replace
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from gemmkit.report.layout import Table

# The name of the error handler of streams that show the nearest characters.
HANDLER = "gemmkit.nearest"
# The names of the codecs below: this prefix and the name of an encoding.
_PREFIX = "gemmkit_"
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_EXPONENT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")

# Replacements for non-ASCII characters, of the same length where columns depend on it.
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
    "≈": "~",
    "±": "+-",
    "∞": "inf",
    "→": "->",
    "←": "<-",
    "•": "*",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "κ": "kappa",
    "ν": "nu",
    "⌈": "ceil(",
    "⌉": ")",
    "ε": "eps",
    "ᵀ": "^T",
    "≡": "=",
    "≠": "!=",
    "−": "-",
    "‖": "|",
    "√": "sqrt",
    "½": "1/2",
    "°": "deg ",
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
    """Make standard output and error accept any character, whatever the locale's encoding."""
    codecs.register_error(HANDLER, _nearest)
    codecs.register(_whole_exponents)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper):
            continue
        encodable = [_fits(each, stream.encoding) for each in _SUPERSCRIPTS]
        if any(encodable) and not all(encodable):
            name = codecs.lookup(stream.encoding).name
            stream.reconfigure(encoding=_PREFIX + name.replace("-", "_"), errors=HANDLER)
        else:
            stream.reconfigure(errors=HANDLER)


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _whole_exponents(name: str) -> codecs.CodecInfo | None:
    """The codec for a name that starts with `_PREFIX`, which does not mix styles in an exponent.

    Latin-1 has only ¹, ² and ³, and an error handler is too late for what is already encoded.
    """
    if not name.startswith(_PREFIX):
        return None
    base = codecs.lookup(name.removeprefix(_PREFIX))

    def plain(exponent: re.Match[str]) -> str:
        whole = exponent[0]
        return (
            whole
            if _fits(whole, base.name)
            else "^" + "".join(_SUPERSCRIPTS[each] for each in whole)
        )

    def encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
        return base.encode(_EXPONENT.sub(plain, text), errors)[0], len(text)

    class Encoder(codecs.IncrementalEncoder):
        def encode(self, text: str, final: bool = False) -> bytes:  # noqa: ARG002
            return encode(text, self.errors)[0]

    return codecs.CodecInfo(
        encode,
        base.decode,
        incrementalencoder=Encoder,
        incrementaldecoder=base.incrementaldecoder,
        name=name,
    )


def nearest(text: str, encoding: str) -> str:
    """The text as a stream of this encoding shows it, whose lines may be longer."""
    return text.encode(encoding, HANDLER).decode(encoding, "replace")


def nearest_text(text: Text, encoding: str) -> Text:
    """As `nearest`, with the text's styles."""
    if text.plain.isascii() or nearest(text.plain, encoding) == text.plain:
        return text
    found = text[:0]
    end = 0
    for each in _NOT_ASCII.finditer(text.plain):
        found.append_text(text[end : each.start()])
        styles = text[each.start() : each.end()].spans
        found.append(nearest(each[0], encoding), styles[0].style if styles else None)
        end = each.end()
    found.append_text(text[end:])
    found.end = text.end
    return found


def nearest_table(table: Table, encoding: str) -> Table:
    """As `nearest`, for all texts of a table, so that its columns are aligned."""
    from gemmkit.report.layout import TIE, Row, Table

    def said(text: str) -> str:
        return (
            text
            if text.isascii()
            else nearest(text.replace(TIE, "\0"), encoding).replace("\0", TIE)
        )

    return Table(
        said(table.caption),
        tuple(replace(each, title=said(each.title)) for each in table.columns),
        tuple(
            Row(tuple(replace(each, text=said(each.text)) for each in row.cells), said(row.note))
            for row in table.rows
        ),
        tuple(map(said, table.footnotes)),
    )


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    refused = error.object[error.start : error.end]
    previous = error.object[error.start - 1] if error.start else " "
    found = ""
    for each in refused:
        if each in _SUPERSCRIPTS:
            # One style for all digits of an exponent.
            found += "^" * (previous not in _SUPERSCRIPTS) + _SUPERSCRIPTS[each]
        else:
            # What has no nearest character, such as that of a file's name, is still told apart.
            found += _NEAREST.get(each) or ascii(each)[1:-1]
        previous = each
    # A replacement has to fit the encoding too.
    return found.encode(error.encoding, "replace").decode(error.encoding), error.end
