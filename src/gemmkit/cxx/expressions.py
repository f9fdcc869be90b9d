"""Small expressions that users write for grids, blocks and arguments, such as `(M+127)/128`.

They are parsed, never executed: only what is listed here exists in them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from gemmkit.errors import UsageError

Number = int | float

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_LONGEST = 400
# Bits of the widest integer that a shift may be meant for.
_WIDEST = 64
_FLOAT_SUFFIX = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)[fF](?!\w)")
_INTEGER_SUFFIX = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|\d+)[uUlL]{1,3}(?!\w)")
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*(\w+)\s*\)")
_SIZES = {"char": 1, "half": 2, "int": 4, "float": 4, "float2": 8, "double": 8, "float4": 16}


def _divide(left: Number, right: Number) -> Number:
    """As in C: between integers the quotient is cut off toward zero."""
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _remainder(left: Number, right: Number) -> Number:
    return left - _divide(left, right) * right


def _ceil_div(left: Number, right: Number) -> Number:
    return -(-left // right)


def _shift(left: Number, right: Number) -> Number:
    """`left << right`; to the right where `right` is negative."""
    if not (isinstance(left, int) and isinstance(right, int) and abs(right) < _WIDEST):
        raise OverflowError
    return left << right if right >= 0 else left >> -right


_BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _remainder,
    ast.LShift: _shift,
    ast.RShift: lambda left, right: _shift(left, -right),
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {"min": min, "max": max, "ceil_div": _ceil_div}
# Other spellings that kernels' own host code uses.
_ALSO_CEIL_DIV = ("ceildiv", "cdiv", "div_up", "divup")


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `names` are those that it needs a value of."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)
    names: frozenset[str]

    @classmethod
    def parse(cls, text: str | int) -> Expression:
        """Read one expression: numbers, names, `+ - * / // % << >> ( )`, and some functions.

        They are min, max, ceil_div and sizeof. `/` between integers divides as in C; suffixes of
        literals (`1.0f`, `4u`) are allowed.

        Raises:
            UsageError: the text is anything else.
        """
        return _parse(str(text).strip())

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        """The value, an int if every number in it is one.

        Raises:
            UsageError: a name has no value, a division by zero, or a result beyond all bounds.
        """
        unknown = sorted(self.names - values.keys())
        if unknown:
            known = ", ".join(values)
            raise UsageError(f"'{self.text}' uses {', '.join(unknown)}; known names: {known}")
        try:
            return _evaluate(self.tree, values)
        except ZeroDivisionError:
            given = ", ".join(f"{name} = {values[name]}" for name in sorted(self.names))
            where = f" with {given}" if given else ""
            raise UsageError(f"'{self.text}' divides by zero{where}") from None
        except OverflowError:
            raise UsageError(f"'{self.text}' is too large") from None

    def integer(self, values: Mapping[str, Number]) -> int:
        """The value as an integer.

        Raises:
            UsageError: as `evaluate`, or it is not an integer.
        """
        value = self.evaluate(values)
        if isinstance(value, float):
            raise UsageError(f"'{self.text}' is {value}, not a whole number")
        return value

    def bound(self, values: Mapping[str, Number]) -> str:
        """The text with some names replaced by their values."""
        return re.sub(
            r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\b",
            lambda found: f"({values[found[0]]})" if found[0] in values else found[0],
            self.text,
        )


def split_list(text: str) -> list[str]:
    """The parts between the commas that stand outside of brackets; none of them is empty.

    Raises:
        UsageError: a part is empty, or a bracket has no counterpart.
    """
    _check_brackets(text)
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    if not all(parts):
        raise UsageError(f"'{text}' has an empty part: separate expressions with single commas")
    return parts


def _check_brackets(text: str) -> None:
    opened: list[str] = []
    for character in text:
        if character in _BRACKETS:
            opened.append(character)
        elif character in _BRACKETS.values() and (
            not opened or _BRACKETS[opened.pop()] != character
        ):
            raise UsageError(f"'{text}' closes a bracket that is not open: '{character}'")
    if opened:
        raise UsageError(f"'{text}' has no '{_BRACKETS[opened[-1]]}' for its '{opened[-1]}'")


@cache
def _parse(text: str) -> Expression:
    if len(text) > _LONGEST:
        raise UsageError(f"'{text[:40]}…' is too long for an expression")
    plain = _SIZEOF.sub(lambda found: str(_SIZES.get(found[1], found[0])), text)
    plain = _INTEGER_SUFFIX.sub(r"\1", _FLOAT_SUFFIX.sub(r"float(\1)", plain))
    try:
        tree = ast.parse(plain, mode="eval").body
        names = frozenset(_names(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _no_expression(text) from None
    return Expression(text, tree, names)


def _no_expression(text: str) -> UsageError:
    return UsageError(
        f"'{text}' is not an expression: it may contain numbers, names, + - * / // % << >> ( ), "
        "min, max and ceil_div, as in (M+127)/128"
    )


def _names(node: ast.expr) -> set[str]:
    """The names below a node.

    Raises:
        ValueError: something in it is not allowed.
    """
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return set()
        case ast.Name(id=name):
            return set() if name in ("true", "false") else {name}
        case ast.Attribute(value=ast.Name() | ast.Attribute()):
            return {_dotted(node)}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _names(left) | _names(right)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _names(operand)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            wanted = {"float": 1, "ceil_div": 2}.get(_function(function))
            if len(arguments) == wanted or (wanted is None and len(arguments) > 1):
                return set().union(*map(_names, arguments))
    raise ValueError("not allowed")


def _dotted(node: ast.expr) -> str:
    """The name of a struct's field, such as `A.width`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError("not allowed")


def _function(name: str) -> str:
    plain = name.lower()
    plain = "ceil_div" if plain in _ALSO_CEIL_DIV else plain
    if plain != "float" and plain not in _FUNCTIONS:
        raise ValueError("no such function")
    return plain


def _evaluate(node: ast.expr, values: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id="true" | "false" as name):
            return int(name == "true")
        case ast.Name(id=name):
            return values[name]
        case ast.Attribute():
            return values[_dotted(node)]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](_evaluate(operand, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            numbers = [_evaluate(each, values) for each in arguments]
            function = _function(name)
            return float(numbers[0]) if function == "float" else _FUNCTIONS[function](*numbers)
    raise ValueError("not allowed")
