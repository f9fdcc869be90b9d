"""C's printf as kernels call it: formats a string and a buffer of arguments."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_SPECIFIER = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|-?\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t)?(?P<kind>[diouxXcsfFeEgGp%])"
)
_LONG = ("l", "ll", "j", "z", "t")
_SHORT = {"hh": 8, "h": 16}


def format_printf(
    template: str,
    arguments: bytes,
    string_at: Callable[[int], str],
    taken: list[tuple[int, int]] | None = None,
) -> str:
    """The text of one call in one thread.

    Args:
        template: the format string; anything that is not a conversion of C is kept.
        arguments: the call's buffer: integers of 4 or 8 bytes, doubles and pointers, each aligned
            to its size. Bytes past its end read as zero.
        string_at: reads a `%s` argument, a string at an address.
        taken: receives the first byte and the size of each argument that is read.
    """
    reader = _Arguments(arguments, taken)
    return _SPECIFIER.sub(lambda match: _conversion(match, reader, string_at), template)


class _Arguments:
    """Takes values from a buffer one after the other."""

    def __init__(self, data: bytes, taken: list[tuple[int, int]] | None) -> None:
        self._data, self._taken = data, taken
        self._position = 0

    def _take(self, size: int) -> bytes:
        start = -(-self._position // size) * size
        self._position = start + size
        if self._taken is not None:
            self._taken.append((start, size))
        return self._data[start : self._position].ljust(size, b"\0")

    def integer(self, size: int, signed: bool) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def double(self) -> float:
        (value,) = struct.unpack("<d", self._take(8))
        return float(value)


def _conversion(
    match: re.Match[str], arguments: _Arguments, string_at: Callable[[int], str]
) -> str:
    kind = match["kind"]
    if kind == "%":
        return "%"
    flags, width, precision = match["flags"], match["width"] or "", match["precision"]
    if width == "*":
        number = arguments.integer(4, signed=True)
        flags, width = flags + ("-" if number < 0 else ""), str(abs(number))
    if precision == "*":
        number = arguments.integer(4, signed=True)
        precision = str(number) if number >= 0 else None
    elif precision is not None and not precision.isdigit():
        precision = "0" if not precision else None
    layout = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
    if kind in "fFeEgG":
        return (layout + kind) % arguments.double()
    if kind == "c":
        return _padded(chr(arguments.integer(4, signed=False) & 0xFF), flags, width)
    if kind == "s":
        text = string_at(arguments.integer(8, signed=False))
        return _padded(text if precision is None else text[: int(precision)], flags, width)
    if kind == "p":
        return _padded(f"0x{arguments.integer(8, signed=False):x}", flags, width)
    size = 8 if match["length"] in _LONG else 4
    number = arguments.integer(size, signed=kind in "di")
    if match["length"] in _SHORT:
        number = _wrapped(number, _SHORT[match["length"]], signed=kind in "di")
    return _integer(number, kind, flags, width, precision)


def _wrapped(number: int, bits: int, signed: bool) -> int:
    number %= 1 << bits
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _integer(number: int, kind: str, flags: str, width: str, precision: str | None) -> str:
    """Python's % lacks C's precision on integers and its `#o`; both are added here."""
    digits = format(abs(number), {"d": "d", "i": "d", "u": "d"}.get(kind, kind))
    if precision is not None:
        digits = "" if number == 0 and precision == "0" else digits.rjust(int(precision), "0")
    prefix = ""
    if kind in "di":
        prefix = "-" if number < 0 else "+" if "+" in flags else " " if " " in flags else ""
    elif "#" in flags and number and kind in "xX":
        prefix = f"0{kind}"
    elif "#" in flags and kind == "o" and not digits.startswith("0"):
        prefix = "0"
    if "0" in flags and "-" not in flags and precision is None:
        digits = digits.rjust(int(width or 0) - len(prefix), "0")
    return _padded(prefix + digits, flags, width)


def _padded(text: str, flags: str, width: str) -> str:
    size = int(width or 0)
    return text.ljust(size) if "-" in flags else text.rjust(size)
