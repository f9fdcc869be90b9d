"""`grouped_matmul` of host arrays on the emulator: values, places of results, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.devices.choose import open_device
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.operands import Operand, View
from gemmkit.ops.overlaps import Extents, first_overlap

# Fewer than a tile, several tiles, and some without rows, columns or k.
SHAPES = [(5, 7, 9), (0, 5, 6), (33, 65, 40), (64, 3, 0), (4, 0, 3), (1, 1, 1)]


def integers(rng, *shape):
    """Such small ones that sums of their products are exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def operands(rng):
    return (
        [integers(rng, m, k) for m, _, k in SHAPES],
        [integers(rng, k, n) for _, n, k in SHAPES],
    )


@pytest.fixture(scope="module")
def emulator():
    return open_device("emulator", "h100", sanitize=True)


def same(results, expected):
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, right)


def test_products_of_different_shapes(operands, emulator):
    a, b = operands
    results = grouped_matmul(a, b, device=emulator)
    same(results, [x @ y for x, y in zip(a, b, strict=True)])
    assert all(isinstance(each, np.ndarray) for each in results)


def test_any_strides_and_stacks(rng, emulator):
    stack = integers(rng, 3, 8, 6)
    a = [each[::-1, ::2] for each in stack]
    b = integers(rng, 3, 5, 3).transpose(0, 2, 1)
    same(grouped_matmul(a, b, device=emulator), [x @ y for x, y in zip(a, b, strict=True)])


def test_no_products_at_all():
    assert grouped_matmul([], []) == []


def test_everything_at_once(rng, operands, emulator):
    a, b = operands
    c = [integers(rng, m, n) for m, n, _ in SHAPES]
    residual = [integers(rng, m, n) for m, n, _ in SHAPES]
    bias = [integers(rng, m) for m, _, _ in SHAPES]
    auxiliary = [np.full((m, n), np.nan, np.float32) for m, n, _ in SHAPES]
    out = [each.copy() for each in c]
    results = grouped_matmul(
        *(a, b),
        out=out,
        alpha=2,
        c=out,
        beta=-1,
        epilogue=Epilogue("row", "relu"),
        bias=bias,
        residual=residual,
        auxiliary=auxiliary,
        device=emulator,
    )
    assert all(result is each for result, each in zip(results, out, strict=True))
    terms = zip(a, b, c, bias, strict=True)
    arguments = [2 * (x @ y) - z + row[:, None] for x, y, z, row in terms]
    same(auxiliary, arguments)
    same(results, [np.maximum(x, 0) + r for x, r in zip(arguments, residual, strict=True)])


def test_results_beside_each_other_in_one_matrix(rng, emulator):
    a, b = [integers(rng, 6, 4) for _ in range(3)], [integers(rng, 4, 5) for _ in range(3)]
    whole = np.full((6, 17), np.nan, np.float32)
    grouped_matmul(a, b, out=[whole[:, 5 * i : 5 * i + 5] for i in range(3)], device=emulator)
    same([whole[:, :15]], [np.hstack([x @ y for x, y in zip(a, b, strict=True)])])
    assert np.isnan(whole[:, 15:]).all()


def test_beta_of_zero_does_not_read_c(rng, emulator):
    a, b = [integers(rng, 3, 4)], [integers(rng, 4, 5)]
    c = [np.full((3, 5), np.nan, np.float32)]
    same(grouped_matmul(a, b, c=c, beta=0, device=emulator), [a[0] @ b[0]])


ONES = np.ones((3, 4), np.float32)
TWO = {"as_": [ONES, ONES], "bs": [ONES.T, ONES.T]}
SQUARE = np.zeros((3, 3), np.float32)
READ_ONLY = np.zeros((3, 3), np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bs": [ONES.T]}, r"bs has 1 array and as_ has 2: give one for each product"),
        ({"as_": None, "bs": None}, r"as_ has type NoneType: give a list of arrays"),
        ({"as_": 3.0}, r"as_ has type float: give a list of arrays"),
        ({"as_": [ONES, "x"]}, r"as_\[1\] has type str; gemmkit takes arrays"),
        (
            {"bs": [ONES.T, ONES]},
            r"as_\[1\] of shape \(3, 4\) has 4 columns and bs\[1\] of shape \(3, 4\) has 3 rows",
        ),
        ({"as_": [ONES, ONES[0]]}, r"as_\[1\] has 1 dimension; each product is of two matrices"),
        (
            {"bs": [ONES.T, ONES.T.astype(float)]},
            r"bs\[1\] has type float64 and as_\[0\] has float32: the products",
        ),
        ({"as_": [ONES, ONES.astype(int)]}, r"as_\[1\] has type int64; gemmkit multiplies"),
        ({"beta": 1.0}, r"beta = 1.0 needs c; c=out adds to what out holds"),
        ({"alpha": "x"}, r"alpha = 'x' is not a number"),
        ({"epilogue": "bias"}, r"the epilogue 'bias' needs the array bias"),
        ({"bias": [ONES[0, :3], ONES[0]]}, r"bias\[1\] has the shape \(4,\); a column bias has n"),
        ({"residual": [SQUARE, ONES]}, r"residual\[1\] has the shape \(3, 4\); the product has"),
        ({"out": [SQUARE, READ_ONLY]}, r"out\[1\] cannot be written: it is read-only"),
        ({"out": [SQUARE, SQUARE]}, r"out\[0\] overlaps out\[1\] in memory"),
        (
            {"out": [SQUARE, np.broadcast_to(SQUARE[0], (3, 3))]},
            r"out\[1\] cannot be written|share memory",
        ),
        (
            {"c": [SQUARE, SQUARE.copy()], "out": [SQUARE[::-1], SQUARE.copy()], "beta": 1.0},
            r"out\[0\] overlaps c\[0\] in memory",
        ),
        ({"out": [ONES[:, 1:], SQUARE]}, r"out\[0\] overlaps as_\[0\] in memory"),
        (
            {"out": [SQUARE, SQUARE.copy()], "auxiliary": [SQUARE.copy(), SQUARE]},
            r"out\[0\] overlaps auxiliary\[1\] in memory",
        ),
        ({"stream": 7}, "stream is for arrays on a GPU"),
        ({"device": "tpu"}, "use 'auto', 'cuda', 'emulator'"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        grouped_matmul(**{**TWO, **changes})


@pytest.mark.parametrize("seed", range(20))
def test_overlaps_are_those_that_numpy_finds(seed):
    """Random windows of one matrix, in rows, in columns, backwards and with gaps."""
    rng = np.random.default_rng(seed)
    whole = np.zeros((12, 12), np.float32)

    def window():
        rows, columns = (np.sort(rng.integers(0, 13, 2)) for _ in "mn")
        found = whole[slice(*rows), slice(*columns)]
        found = found[:: rng.choice([1, 1, -1, 2]), :: rng.choice([1, 1, 1, 2])]
        return found.T if rng.random() < 0.2 else found

    def extents(arrays):
        return Extents.of(
            [
                Operand(
                    *(each, each.ctypes.data),
                    View(each.shape, tuple(step // 4 for step in each.strides)),
                    *("float32", None, True),
                )
                for each in arrays
            ]
        )

    written, read = [window() for _ in range(3)], [window() for _ in range(6)]
    found = first_overlap(extents(written), extents(read))
    pairs = {
        (i, j)
        for i, one in enumerate(written)
        for j, other in enumerate(read)
        if np.shares_memory(one, other)
    }
    assert (found in pairs) if pairs else found is None
    own = extents(read)
    clash = first_overlap(own, own)
    pairs = {
        (i, j)
        for i, one in enumerate(read)
        for j, other in enumerate(read)
        if i < j and np.shares_memory(one, other)
    }
    assert (clash in pairs) if pairs else clash is None
