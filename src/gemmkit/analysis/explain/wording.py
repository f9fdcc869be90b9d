"""Numbers and comparisons in sentences."""

from __future__ import annotations

# Two values within this ratio count as equal.
EQUAL = 1.02
_TIMES = 1.5


def number(value: float) -> str:
    """Integers, and values of at least 100, in full; others with three significant digits."""
    rounded = float(f"{value:.3g}")
    if float(value).is_integer() or abs(rounded) >= 100:
        return f"{value:,.0f}"
    return f"{rounded:g}"


def percent(value: float) -> str:
    """`33.33 %`."""
    return f"{value:.4g} %"


def differ(this: float, other: float) -> bool:
    """Whether two values of at least 0 differ by more than 2 %."""
    return max(this, other) > EQUAL * min(this, other)


def compared(this: float, other: float) -> str:
    """`this` relative to `other`, both above 0: `32 times fewer`, `12.5 % more`."""
    ratio = max(this, other) / min(this, other)
    if ratio >= _TIMES:
        return f"{number(ratio)} times " + ("fewer" if this < other else "as many")
    if this < other:
        return f"{number(100 - 100 / ratio)} % fewer"
    return f"{number(100 * ratio - 100)} % more"


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
