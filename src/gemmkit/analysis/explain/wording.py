"""Numbers in sentences: how much fewer, how many times as many."""

from __future__ import annotations

# Where two values are this close, no sentence calls one the larger.
EQUAL = 1.02
_TIMES = 1.5


def number(value: float) -> str:
    """Whole numbers in full, others with three significant digits or to the whole."""
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
    """How much `this` is of `other`, both above 0: `32 times fewer`, `12.5 % more`."""
    ratio = max(this, other) / min(this, other)
    if ratio >= _TIMES:
        return f"{number(ratio)} times " + ("fewer" if this < other else "as many")
    if this < other:
        return f"{number(100 - 100 / ratio)} % fewer"
    return f"{number(100 * ratio - 100)} % more"


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
