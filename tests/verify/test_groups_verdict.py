"""Results of products of different shapes: each is judged, and so is what lies between them."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.problem import GemmProblem
from gemmkit.storage import placements
from gemmkit.verify import Reference, make_inputs

PROBLEM = GemmProblem.of_groups(
    "5x6x7,0x3x4,9x4x3:5:6:8,1x1x1",
    alpha=2.0,
    beta=-1.0,
    epilogue=Epilogue(True, "relu", auxiliary=True),
)


def right(problem, inputs):
    """Storage of C and of the auxiliary output, in float64 arithmetic."""
    placed = placements(problem)
    c, auxiliary = inputs.c.copy(), inputs.auxiliary.copy()
    views = {name: placed[name].view(getattr(inputs, name)) for name in ("a", "b", "bias")}
    for number, (out, kept) in enumerate(
        zip(placed["c"].view(c), placed["auxiliary"].view(auxiliary), strict=True)
    ):
        a, b, bias = (views[name][number].astype(float) for name in ("a", "b", "bias"))
        kept[...] = 2.0 * a @ b - out + bias
        out[...] = np.maximum(kept, 0)
    return c, auxiliary


@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_a_right_result(kind):
    inputs = make_inputs(PROBLEM, 3, kind)
    verdict = Reference(PROBLEM, inputs).check(*right(PROBLEM, inputs))
    assert verdict.correct, verdict.detail
    assert verdict.method == "every element of 4 products"


def test_a_wrong_element_is_told_with_its_product():
    inputs = make_inputs(PROBLEM, 3, "integer")
    c, auxiliary = right(PROBLEM, inputs)
    placements(PROBLEM)["c"].view(c)[2][8, 3] += 1
    verdict = Reference(PROBLEM, inputs).check(c, auxiliary)
    assert not verdict.correct
    assert verdict.detail.startswith("1 of 4 products are wrong; number 2 (9x4x3): C[8, 3] is ")


@pytest.mark.parametrize("between", [False, True], ids=["padding", "between"])
def test_what_is_written_beside_the_elements(between):
    inputs = make_inputs(PROBLEM, 3, "integer")
    c, auxiliary = right(PROBLEM, inputs)
    place = placements(PROBLEM)["c"]
    # Past the first row of the third product, or right after the first product.
    offset = place.starts[0] + place.matrices[0].size if between else place.starts[2] + 4
    c[offset] = 0
    verdict = Reference(PROBLEM, inputs).check(c, auxiliary)
    assert not verdict.correct
    assert verdict.detail == (
        "1 elements of C's padding or between its matrices were written (seed 3)"
    )


def test_products_are_drawn_each_by_itself():
    problem = GemmProblem.of_groups("8x8x8*2")
    first, second = placements(problem)["a"].view(make_inputs(problem, 1).a)
    assert not np.array_equal(first, second)
    again = make_inputs(problem, 1)
    assert np.array_equal(first, placements(problem)["a"].view(again.a)[0])
