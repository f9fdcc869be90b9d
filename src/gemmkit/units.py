"""Times as text, in a suitable unit."""

from __future__ import annotations

from collections.abc import Sequence


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
