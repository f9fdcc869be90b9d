"""The value of a preprocessor condition, by C's rules; None where it depends on unknown names."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(
    r"\s*(?:([A-Za-z_]\w*)|(\d[\w']*)|('(?:\\.|[^'\\])')|(&&|\|\||[!<>=]=|<<|>>|\S))"
)
_NUMBER = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|\d+)[uUlL]*")
_WIDEST = 64

Value = int | None


def _divided(left: int, right: int) -> Value:
    if right == 0:
        return None
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> Value:
    quotient = _divided(left, right)
    return None if quotient is None else left - quotient * right


def _shifted(left: int, right: int) -> Value:
    return left << right if 0 <= right < _WIDEST else None


# From those that bind least to those that bind most.
_LEVELS: tuple[Mapping[str, Callable[[int, int], Value]], ...] = (
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": _shifted, ">>": lambda left, right: left >> right if 0 <= right < _WIDEST else None},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divided, "%": _remainder},
)
_UNARY: Mapping[str, Callable[[int], int]] = {
    "+": operator.pos,
    "-": operator.neg,
    "~": operator.invert,
    "!": operator.not_,
}


def condition(text: str) -> Value:
    """The value of an expression in which macros are replaced; each name left in it is unknown.

    Raises:
        ValueError: this is not an expression of integers.
    """
    reader = _Reader(_tokens(text))
    found = reader.choice()
    if reader.left:
        raise ValueError(f"'{reader.left[-1]}' follows the expression")
    return found


def _tokens(text: str) -> list[str]:
    return [found[0].strip() for found in _TOKEN.finditer(text)]


class _Reader:
    """Reads by recursive descent; `left` are the tokens to come, the next one last."""

    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens[::-1]

    def choice(self) -> Value:
        """`a ? b : c`, or less."""
        found = self._disjunction()
        if not self._take("?"):
            return found
        first = self.choice()
        self._expect(":")
        second = self.choice()
        if found is None:
            return first if first == second else None
        return first if found else second

    def _disjunction(self) -> Value:
        found = self._conjunction()
        while self._take("||"):
            other = self._conjunction()
            open_still = None if found is None or other is None else 0
            found = 1 if found or other else open_still
        return found

    def _conjunction(self) -> Value:
        found = self._binary(0)
        while self._take("&&"):
            other = self._binary(0)
            open_still = None if found is None or other is None else 1
            found = 0 if 0 in (found, other) else open_still
        return found

    def _binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._unary()
        found = self._binary(level + 1)
        while self.left and (combine := _LEVELS[level].get(self.left[-1])):
            self.left.pop()
            other = self._binary(level + 1)
            found = None if found is None or other is None else combine(found, other)
        return None if found is None else int(found)

    def _unary(self) -> Value:
        token = self.left.pop() if self.left else ""
        if token in _UNARY:
            found = self._unary()
            return None if found is None else int(_UNARY[token](found))
        if token == "(":
            found = self.choice()
            self._expect(")")
            return found
        if token in ("true", "false"):
            return int(token == "true")
        if re.fullmatch(r"[A-Za-z_]\w*", token):
            return None
        number = _NUMBER.fullmatch(token.replace("'", ""))
        if number is None:
            raise ValueError(f"'{token}' is not an integer")
        octal = len(number[1]) > 1 and number[1].isdecimal() and number[1][0] == "0"
        return int(number[1], 8 if octal else 0)

    def _take(self, token: str) -> bool:
        if self.left and self.left[-1] == token:
            self.left.pop()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise ValueError(f"there is no '{token}'")
