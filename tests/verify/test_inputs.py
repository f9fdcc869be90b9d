import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.storage import layouts, matrix, storage_size
from gemmkit.verify import inputs as inputs_module
from gemmkit.verify import row_blocks
from gemmkit.verify.encoding import CANARIES, canaries
from gemmkit.verify.inputs import make_inputs

PADDED = GemmProblem(5, 7, 3, beta=0.5, lda=8, ldb=9, ldc=10, epilogue=Epilogue(bias=True))


@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_same_seed_same_inputs(kind):
    first, second, other = (make_inputs(PADDED, seed, kind) for seed in (3, 3, 4))
    for name in ("a", "b", "c", "bias"):
        assert np.array_equal(
            getattr(first, name).view(np.uint32), getattr(second, name).view(np.uint32)
        )
        assert not np.array_equal(
            getattr(first, name).view(np.uint32), getattr(other, name).view(np.uint32)
        )


@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_large_matrices_are_drawn_in_row_blocks(monkeypatch, kind):
    monkeypatch.setattr(inputs_module, "ONE_STREAM_ELEMENTS", 100)
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 90)
    problem = GemmProblem(40, 30, 20)
    first, second = (make_inputs(problem, 3, kind) for _ in range(2))
    assert np.array_equal(first.a, second.a)
    assert np.array_equal(first.b, second.b)
    rows = {row.tobytes() for row in [*first.a.reshape(40, 20), *first.b.reshape(20, 30)]}
    assert len(rows) == 60, "no block of rows repeats another"
    assert kind == "normal" or set(np.abs(first.a)) <= {1, 2, 3, 4}


def test_row_blocks_cover_each_row_once(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 90)
    seen = np.zeros(40, int)

    def visit(rows):
        seen[rows] += 1

    row_blocks.for_each_row_block(40, 30, visit)
    assert (seen == 1).all()
    row_blocks.for_each_row_block(0, 30, visit)
    with pytest.raises(ValueError, match="broken"):
        row_blocks.for_each_row_block(
            40, 30, lambda rows: (_ for _ in ()).throw(ValueError("broken"))
        )


def test_storage_is_exact_and_padding_holds_canaries():
    inputs = make_inputs(PADDED)
    storages = inputs.a, inputs.b, inputs.c
    for storage, layout in zip(storages, layouts(PADDED), strict=True):
        rows, columns, ld = layout.rows, layout.columns, layout.ld
        assert storage.size == layout.size == (rows - 1) * ld + columns
        gaps = layout.gaps(storage)
        assert gaps.size == (rows - 1) * (ld - columns)
        assert (gaps.view(np.uint32) == CANARIES["float32"]).all()
        assert np.isfinite(matrix(storage, rows, columns, ld)).all()


@pytest.mark.parametrize(
    ("strides", "sizes", "gaps"),
    [
        ({}, (4 * 15, 4 * 21, 4 * 35), (0, 0, 0)),
        ({"stride_a": 20, "stride_c": 40}, (75, 84, 155), (15, 0, 15)),
        # Shared by all, or overlapping: windows that advance by a row.
        ({"stride_b": BROADCAST, "stride_a": 3}, (24, 21, 140), (0, 0, 0)),
        # Interleaved, as heads of attention are.
        ({"ldc": 30, "stride_c": 7}, (60, 84, 4 * 30 + 28), (0, 0, 8)),
    ],
)
def test_a_batch_lies_as_its_strides_say(strides, sizes, gaps):
    problem = GemmProblem(5, 7, 3, beta=1.0, batch=4, **strides)
    inputs = make_inputs(problem)
    storages = inputs.a, inputs.b, inputs.c
    assert tuple(each.size for each in storages) == sizes
    for storage, layout, size in zip(storages, layouts(problem), gaps, strict=True):
        assert layout.gaps(storage).size == size
        assert (layout.gaps(storage).view(np.uint32) == CANARIES["float32"]).all()
        assert np.isfinite(layout.view(storage)).all()
    last = inputs.of_product(problem, 3)
    stride_a, stride_b, stride_c = problem.strides
    assert np.array_equal(last.a, inputs.a[3 * stride_a :][: last.a.size])
    assert np.array_equal(last.b, inputs.b[3 * stride_b :][: last.b.size])
    assert matrix(last.c, 5, 7, problem.ldc)[4, 6] == inputs.c[3 * stride_c + 4 * problem.ldc + 6]
    assert not np.array_equal(last.c[:7], inputs.of_product(problem, 0).c[:7])


def test_a_single_product_is_its_own_part():
    inputs = make_inputs(PADDED)
    assert inputs.of_product(PADDED, 0) is inputs
    assert make_inputs(GemmProblem(3, 4, 5, batch=0, beta=1.0)).c.size == 0


def test_zero_beta_poisons_all_of_c():
    inputs = make_inputs(GemmProblem(4, 6, 2, ldc=8))
    assert inputs.c.size == 3 * 8 + 6
    assert (inputs.c.view(np.uint32) == CANARIES["float32"]).all()
    assert inputs.bias is None


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_sides(shape):
    problem = GemmProblem(*shape, beta=1.0)
    inputs = make_inputs(problem)
    assert inputs.c.size == problem.m * problem.n
    assert inputs.a.size == problem.m * problem.k
    assert matrix(inputs.c, problem.m, problem.n, problem.ldc).shape == (problem.m, problem.n)


@pytest.mark.parametrize("k", [1, 1000, 70_000, 3_000_000])
def test_integer_sums_fit_fp32(k):
    inputs = make_inputs(GemmProblem(2, 2, k), kind="integer")
    assert (inputs.a != 0).all()
    assert (np.rint(inputs.a) == inputs.a).all()
    assert k * np.abs(inputs.a).max() * np.abs(inputs.b).max() <= 2**24


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-2.0, 3.0), (2.0, -3.0)])
def test_relu_integers_give_each_column_one_sign(alpha, beta):
    problem = GemmProblem(9, 40, 5, alpha, beta, epilogue=Epilogue(True, "relu"))
    inputs = make_inputs(problem, kind="integer")
    a, b = inputs.a.reshape(9, 5), inputs.b.reshape(5, 40)
    before = alpha * (a @ b) + inputs.bias
    if beta:
        before += beta * inputs.c.reshape(9, 40)
    signs = np.sign(before)
    assert (signs == signs[0]).all()
    assert set(signs[0]) == {-1.0, 1.0}


def test_views_refuse_short_storage():
    assert storage_size(3, 4, 10) == 24
    with pytest.raises(ValueError, match="are too few for"):
        matrix(canaries(23), 3, 4, 10)
