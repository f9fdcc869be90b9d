"""Inputs and references of transposed operands: the same product, stored differently."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.problem import GemmProblem
from gemmkit.storage import layouts
from gemmkit.verify import Reference, check, make_inputs
from gemmkit.verify.encoding import is_canary
from gemmkit.verify.inputs import matrices

LAYOUTS = ["nn", "nt", "tn", "tt", "nnt", "ttt"]
PADDED = {"lda": 8, "ldb": 9, "ldc": 11}


@pytest.mark.parametrize("pitches", [{}, PADDED], ids=["tight", "padded"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_lie_where_the_layout_says(layout, pitches):
    transposed = dict(
        zip(("transa", "transb", "transc"), (each == "t" for each in layout), strict=False)
    )
    problem = GemmProblem(7, 6, 5, beta=0.5, **transposed, **pitches)
    assert problem.layout == layout
    inputs = make_inputs(problem)
    storages = inputs.a, inputs.b, inputs.c
    swapped = (problem.transa, problem.transb, problem.transc)
    leading = (problem.lda, problem.ldb, problem.ldc)
    for x, storage, swap, ld in zip(
        (each[:] for each in matrices(problem, inputs)), storages, swapped, leading, strict=True
    ):
        rows, columns = x.shape
        for row in range(rows):
            for col in range(columns):
                assert x[row, col] == storage[col * ld + row if swap else row * ld + col]
        gaps = storage.size - rows * columns
        assert np.count_nonzero(is_canary(storage)) == gaps
        assert bool(gaps) == bool(pitches)


@pytest.mark.parametrize("method", ["full", "sampled"])
@pytest.mark.parametrize("kind", ["normal", "integer"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_product_passes_and_its_transpose_does_not(layout, kind, method):
    problem = GemmProblem(24, 24, 9, alpha=-1.5, beta=0.5, ldc=27).laid_out(layout)
    inputs = make_inputs(problem, 3, kind)
    a, b, c = (each[:] for each in matrices(problem, inputs))
    wanted = -1.5 * (a.astype(float) @ b) + 0.5 * c

    def stored(values):
        result = inputs.c.copy()
        layouts(problem)[2].view(result)[0] = values
        return result

    reference = Reference(problem, inputs, method)
    assert reference.check(stored(wanted)).correct
    assert not reference.check(stored(wanted.T)).correct


def test_writes_between_the_columns_of_a_column_major_c_are_seen():
    problem = GemmProblem(7, 6, 5, transc=True, ldc=9)
    inputs = make_inputs(problem)
    a, b, _ = (each[:] for each in matrices(problem, inputs))
    result = inputs.c.copy()
    layouts(problem)[2].view(result)[0] = a @ b
    assert check(problem, inputs, result).correct
    result[8] = 0
    assert "1 elements of C's padding were written" in check(problem, inputs, result).detail


def test_padding_survives_another_size_and_another_layout():
    problem = GemmProblem(7, 6, 5, lda=8, ldc=6)
    assert problem.resized(10, 20, 30) == GemmProblem(10, 20, 30, lda=33)
    assert problem.laid_out("tn") == GemmProblem(7, 6, 5, transa=True, lda=10)
    assert problem.laid_out("ttt").tight == (7, 5, 7)
    assert problem.laid_out("ttt").laid_out("nn") == problem
