"""Times as text, in a suitable unit; counts; shapes as text and read from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmkit.errors import UsageError

# The longest text of groups that fits in a table.
LONGEST_SHAPE = 48


def microseconds_text(microseconds: float) -> str:
    """A measured or predicted time: `46.3 µs`, `12.9 ms`, `247.3 s`."""
    if microseconds < 1e4:
        return f"{microseconds:,.1f} µs"
    if microseconds < 1e7:
        return f"{microseconds / 1e3:,.1f} ms"
    return f"{microseconds / 1e6:,.1f} s"


def readable(
    unit: str, values: Sequence[float | str | None]
) -> tuple[str, list[float | str | None]]:
    """Times of `unit` µs in ms or s if all are long; anything else unchanged."""
    numbers = [each for each in values if isinstance(each, (int, float))]
    if unit != "µs" or not numbers or min(numbers) < 1e4:
        return unit, list(values)
    unit, scale = ("ms", 1e3) if min(numbers) < 1e7 else ("s", 1e6)
    return unit, [each / scale if isinstance(each, (int, float)) else each for each in values]


def seconds_text(seconds: float) -> str:
    """A duration: `8 s`, `4 min 7 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def shape_text(m: int, n: int, k: int, batch: int = 1, groups: str = "") -> str:
    """`MxNxK`, or `MxNxKxBATCH` for a batch: safe in shells and file names.

    Of groups it is their text, where a long one is cut and ends with the number of those left out.
    """
    if len(groups) > LONGEST_SHAPE:
        parts = groups.split(",")
        shown = parts[:1]
        while len(",".join((*shown, parts[len(shown)]))) <= LONGEST_SHAPE - len(" +999999 more"):
            shown.append(parts[len(shown)])
        return f"{','.join(shown)} +{len(parts) - len(shown)} more"
    if groups:
        return groups
    return "x".join(map(str, (m, n, k) if batch == 1 else (m, n, k, batch)))


def read_shape(text: str) -> tuple[int, int, int, int]:
    """m, n, k and the number of products of `MxNxK`, of `MxNxKxBATCH`, or of one number for a cube.

    Raises:
        UsageError: the text is not a valid shape.
    """
    lowered = text.lower().replace("×", "x")
    if re.fullmatch(r"\d+(x\d+x\d+(x\d+)?)?", lowered) is None:
        raise UsageError(
            f"'{text}' is not a valid shape: write MxNxK, for example 512x300x200, or MxNxKxBATCH"
        )
    sizes = [int(size) for size in lowered.split("x")]
    m, n, k, batch = sizes * 3 + [1] if len(sizes) == 1 else [*sizes, 1][:4]
    return m, n, k, batch


def counted(count: int, what: str) -> str:
    """A number of things: `1 problem`, `2 problems`."""
    return f"{count:,} {what}" + "s" * (count != 1)


_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(nbytes: float) -> str:
    """An amount of memory: `512 B`, `1.5 KiB`, `12.0 GiB`."""
    for unit in _BYTE_UNITS:
        if nbytes < 1024 or unit == _BYTE_UNITS[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
