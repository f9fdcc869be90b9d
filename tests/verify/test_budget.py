"""What an error bound is made of adds up to the bound."""

import math

import pytest

from gemmkit.float8_products import FAST_SUMS, PROMOTED_SUMS
from gemmkit.problem import GemmProblem
from gemmkit.split_products import CHUNK_SCALED_PRODUCTS, SPLIT_PRODUCTS, TF32_PRODUCTS
from gemmkit.verify.arithmetic import FP32, named_arithmetic
from gemmkit.verify.bounds import gamma
from gemmkit.verify.budget import IN_ALL, error_budget

U = 2.0**-24
NAMED = (
    *("tf32", "float16", "float16,float16", "bfloat16"),
    *(SPLIT_PRODUCTS, CHUNK_SCALED_PRODUCTS, TF32_PRODUCTS),
)


def parts_of(problem, arithmetic):
    return {each.name: each.units for each in error_budget(problem, arithmetic)}


@pytest.mark.parametrize("k", [1, 64, 1000, 16384])
@pytest.mark.parametrize("name", [*NAMED, PROMOTED_SUMS, FAST_SUMS])
def test_the_parts_add_up_to_the_bound(name, k):
    parts = parts_of(GemmProblem(32, 32, k), named_arithmetic(name, None))
    whole = parts.pop(IN_ALL)
    of_sums = [part for each, part in parts.items() if "Σ" not in each]
    assert all(part > 0 for part in parts.values())
    assert sum(of_sums) <= whole * (1 + 1e-9)
    # The bound has products of parts as well.
    together = math.prod(1 + part * U for part in of_sums) - 1
    assert whole * U == pytest.approx(together, rel=1e-4)


def test_fp32_has_one_part():
    parts = parts_of(GemmProblem(32, 32, 100), FP32)
    assert parts == {"Sums in fp32": gamma(100, U) / U, IN_ALL: gamma(100, U) / U}
    assert parts_of(GemmProblem(32, 32, 0), FP32) == {}


def test_the_parts_of_fp16_products_are_those_of_the_page():
    """docs/precision.md: 4 u, 4 u, c / 2 u, c / 8 u, 0.1 u."""
    parts = parts_of(GemmProblem(32, 32, 64), named_arithmetic(SPLIT_PRODUCTS, None))
    found = [round(part, 1) for part in parts.values()][:5]
    assert found == [4.0, 4.0, 0.1, 32.1, 8.0]


def test_units_are_those_of_the_sums():
    exact = parts_of(GemmProblem(32, 32, 100, dtype="float64"), FP32)
    assert exact["Sums in fp64"] == pytest.approx(100)
    half = parts_of(GemmProblem(32, 32, 8, dtype="bfloat16", out_dtype="bfloat16"), FP32)
    assert half["Rounding to the type of C, of the result"] == 2.0**16
    assert parts_of(GemmProblem(8, 8, 8), named_arithmetic("", 0.5)) == {
        "Tolerance, as requested": 0.5 / U
    }
