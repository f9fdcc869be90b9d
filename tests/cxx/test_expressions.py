"""Expressions of grids, blocks and arguments: what they mean, and what they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.cxx.expressions import Expression, split_list
from gemmkit.errors import UsageError

VALUES = {"M": 300, "N": 200, "K": 7}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(N+127)/128", 2),
        ("(M + 127) / 128 * 2", 6),
        ("-7/2", -3),
        ("-7//2", -4),
        ("-7 % 4", -3),
        ("ceil_div(M, 128)", 3),
        ("CEIL_DIV(N,100)+cdiv(1,2)", 3),
        ("min(M,N,K)+max(1,K)", 14),
        ("2*16*(128+4)*sizeof(float)", 16896),
        ("1u<2", None),
        ("128u * 2UL", 256),
        ("0x40", 64),
        ("1.5f", 1.5),
        ("2.f*M", 600.0),
        ("1e-3", 1e-3),
        ("true", 1),
        ("7/2.0", 3.5),
        ("(1 << 4) + (M >> 2)", 91),
    ],
)
def test_values(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(UsageError, match="is not an expression"):
            Expression.parse(text)
        return
    found = Expression.parse(text).evaluate(VALUES)
    assert (found, type(found)) == (value, type(value))


def test_fields_of_structs_are_names() -> None:
    expression = Expression.parse("B.width/block.tile.x + M")
    assert expression.names == {"B.width", "block.tile.x", "M"}
    values = {"B.width": 64, "block.tile.x": 16, "M": 1}
    assert expression.evaluate(values) == 5
    assert expression.bound({"B.width": 64, "B": 3}) == "(64)/block.tile.x + M"
    with pytest.raises(UsageError, match=r"uses B\.height; known names: M"):
        Expression.parse("B.height").evaluate({"M": 1})


@given(st.integers(-1000, 1000), st.integers(-1000, 1000).filter(bool))
def test_division_as_in_c(a: int, b: int) -> None:
    values = {"a": a, "b": b}
    quotient = Expression.parse("a/b").evaluate(values)
    assert quotient == int(a / b)
    assert Expression.parse("a%b").evaluate(values) == a - quotient * b


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M +",
        "M; N",
        "__import__('os').system('true')",
        "(M+1).real",
        "(lambda: 1)()",
        "[1][0]",
        "'text'",
        "M ** 9999",
        "M if N else K",
        "1 ^ 60",
        "abs(M)",
        "min(M)",
        "ceil_div(M)",
        "max(*[1, 2])",
        "min(M, key=N)",
        "M" * 500,
        "None",
        "2j",
    ],
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an expression|too long"):
        Expression.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("M/(K-7)", r"'M/\(K-7\)' divides by zero with K = 7, M = 300"),
        ("M%0", "divides by zero"),
        ("BM+M", "uses BM; known names: M, N, K"),
        ("M/2.0", r"is 150\.0, not a whole number"),
    ],
)
def test_failures_name_the_expression(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Expression.parse(text).integer(VALUES)


def test_constants_become_part_of_the_text() -> None:
    bound = Expression.parse("BM*M + BM0").bound({"BM": 128})
    assert bound == "(128)*M + BM0"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("(N+1)/2, M", ["(N+1)/2", "M"]),
        ("min(M,N),K", ["min(M,N)", "K"]),
        ("7", ["7"]),
    ],
)
def test_lists_are_split_outside_of_brackets(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


@pytest.mark.parametrize("text", ["", "M,,N", ",M", "M,"])
def test_lists_without_a_part(text: str) -> None:
    with pytest.raises(UsageError, match="empty part"):
        split_list(text)
