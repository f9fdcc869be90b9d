"""NumPy's arrays of every kind: byte orders, alignments, subclasses, dimensions, empty ones."""

import tracemalloc

import numpy as np
import pytest

import gemmkit
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.carriers import carrier_on


def whole(*shape, seed=0, dtype=np.float32):
    """Numbers whose products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


A, B = whole(5, 7), whole(7, 3, seed=1)
WANTED = A @ B


def matmul(*arrays, **rest):
    return gemmkit.matmul(*arrays, device="emulator", **rest)


def swapped(values):
    return values.astype(values.dtype.newbyteorder())


def unaligned(values):
    raw = np.zeros(values.nbytes + 1, np.uint8)
    found = raw[1:].view(values.dtype).reshape(values.shape)
    found[...] = values
    assert not found.flags.aligned
    return found


def field(values):
    """Elements that lie a number of bytes apart that is not a multiple of theirs."""
    records = np.zeros(values.shape, [("before", "u1"), ("x", values.dtype)])
    records["x"] = values
    return records["x"]


def backwards(values):
    return swapped(values)[::-1, ::-1].copy()[::-1, ::-1]


ODD = [swapped, unaligned, field, backwards]


@pytest.mark.parametrize("odd", ODD)
def test_arrays_that_no_kernel_reads_are_copied(odd):
    for a, b in ((odd(A), B), (A, odd(B)), (odd(A), odd(B))):
        result = matmul(a, b)
        assert result.dtype == np.float32
        assert result.dtype.isnative
        np.testing.assert_array_equal(result, WANTED)
    np.testing.assert_array_equal(matmul(odd(A.astype(float)), B.astype(float)), WANTED)
    np.testing.assert_array_equal(
        matmul(A, B, c=odd(WANTED), beta=1, bias=odd(A[:1, :3])[0], residual=odd(WANTED)),
        3 * WANTED + A[0, :3],
    )


@pytest.mark.parametrize("odd", ODD)
def test_results_are_copied_back_to_them(odd):
    out, kept = odd(np.ones_like(WANTED)), odd(np.zeros_like(WANTED))
    assert matmul(A, B, out=out, c=out, beta=3, auxiliary=kept, epilogue="relu") is out
    np.testing.assert_array_equal(out, np.maximum(WANTED + 3, 0))
    np.testing.assert_array_equal(kept, WANTED + 3)
    group = odd(np.ones_like(WANTED))
    plain = np.ones_like(WANTED)
    gemmkit.grouped_matmul(
        [odd(A), A], [B, odd(B)], out=[group, plain], c=[group, plain], beta=2, device="emulator"
    )
    np.testing.assert_array_equal(group, WANTED + 2)
    np.testing.assert_array_equal(plain, WANTED + 2)


def test_what_lies_around_their_elements_stays():
    records = np.full((5, 3), 7, [("before", "u1"), ("x", "f4"), ("after", "u1")])
    matmul(A, B, out=records["x"])
    np.testing.assert_array_equal(records["x"], WANTED)
    assert (records["before"] == 7).all()
    assert (records["after"] == 7).all()


def test_written_twice_is_refused_of_them_as_of_others():
    out = swapped(WANTED)
    for rest in ({"out": out, "auxiliary": out}, {"out": out, "c": out[::-1], "beta": 1}):
        with pytest.raises(UsageError, match="overlap"):
            matmul(A, B, **rest)
    repeated = np.lib.stride_tricks.as_strided(out, (5, 3), (0, 4))
    with pytest.raises(UsageError, match="share memory"):
        matmul(A, B, out=repeated)
    with pytest.raises(UsageError, match=r"out\[0\] overlaps out\[1\]"):
        gemmkit.grouped_matmul([A, A], [B, B], out=[out, out], device="emulator")
    out.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        matmul(A, B, out=out)


class Plain(np.ndarray):
    pass


class Prior(np.ndarray):
    __array_priority__ = 5


class Wrapped(np.ndarray):
    def __array_wrap__(self, array, context=None, return_scalar=False):
        name = context[0].__name__ if context else None
        return "wrapped", name, array.tolist(), bool(return_scalar)


PAIRS = [
    (A.view(Plain), B),
    (A, B.view(Plain)),
    (A.view(Plain), B.view(Prior)),
    (A.view(Prior), B.view(Plain)),
    (A.view(np.matrix), B),
    (A, B.view(np.matrix)),
    (A.view(np.recarray), B),
    (A[0].view(Plain), B[:, 0]),
    (A.view(Wrapped), B),
    (A[0], B[:, 0].view(Wrapped)),
]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_subclasses_come_out_as_of_numpys_matmul(a, b):
    wanted, found = np.matmul(a, b), matmul(a, b)
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        assert found == wanted
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_subclasses_written_for_numpy_1():
    class Old(np.ndarray):
        def __array_wrap__(self, array, context=None):
            return np.asarray(array).view(Old)

    assert type(matmul(A.view(Old), B)) is Old


def test_memory_maps(tmp_path):
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(5, 3))
    assert matmul(A, B, out=out) is out
    out.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", np.float32), WANTED.ravel())
    assert type(matmul(out.T, A)) is type(np.matmul(out.T, A))


class Quantity(np.ndarray):
    """As of a library of units."""

    def __array_ufunc__(self, *arguments, **rest):
        raise AssertionError("nothing is to be computed by it")


class Proxy:
    """As of a library of units that is no subclass: it passes on what is asked of it."""

    def __init__(self, values):
        self.values = values

    def __getattr__(self, name):
        return getattr(self.values, name)

    def __array_ufunc__(self, *arguments, **rest):
        raise AssertionError("nothing is to be computed by it")


class OptedOut(np.ndarray):
    __array_ufunc__ = None


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (A.view(Quantity), "a has type Quantity, which defines __array_ufunc__"),
        (A.view(OptedOut), "a has type OptedOut"),
        (Proxy(A), "a has type Proxy"),
        (np.ma.array(A, mask=A > 0), "a is a masked array"),
        (A.astype(object), "a has type object"),
        (A.astype(int), "a has type int64"),
        (A.astype(bool), "a has type bool"),
        (A.astype(complex), "real and imaginary"),
        (np.zeros((5, 7), "datetime64[s]"), "a has type datetime64"),
        (np.zeros((5, 7), "U3"), "a has type str96"),
        (np.zeros((5, 7), "f4,f4"), "a has type void64"),
        (A.tolist(), "a has type list"),
        (1.5, "a has type float"),
        (memoryview(A), "a has type memoryview"),
    ],
)
def test_refused_types_are_type_errors_and_value_errors(array, words):
    with pytest.raises(TypeError, match=words) as caught:
        matmul(array, B)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UnsupportedType)
    with pytest.raises(TypeError, match=r"^residual"):
        matmul(A, B, residual=array)


@pytest.mark.parametrize(
    "call",
    [
        lambda: matmul(A, B[:6]),
        lambda: matmul(np.float32(1), B),
        lambda: matmul(A, B, out=np.zeros((4, 3), np.float32)),
        lambda: gemmkit.gemm(A, B, np.zeros((5, 4), np.float32), device="emulator"),
        lambda: matmul(A, B, alpha=float("inf")),
        lambda: gemmkit.grouped_matmul([A], [A], device="emulator"),
        lambda: gemmkit.GemmProblem(-1, 2, 3),
        lambda: gemmkit.find_kernel("no such kernel"),
    ],
)
def test_bad_values_are_value_errors(call):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the class is what is tested)
        call()
    assert isinstance(caught.value, UsageError)
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: gemmkit.gemm(A, B, transa=True),
            r"a of shape \(5, 7\) has 5 rows and b of shape \(7, 3\) has 7 rows: aᵀ·b",
        ),
        (
            lambda: gemmkit.gemm(A, B, transb=True),
            r"a of shape \(5, 7\) has 7 columns and b of shape \(7, 3\) has 3 columns: a·bᵀ",
        ),
        (lambda: gemmkit.gemm(A, B, A), r"c has the shape \(5, 7\); the result has \(5, 3\)"),
        (lambda: gemmkit.matmul(A[0], B[:6]), r"a of shape \(7,\) has 7 columns"),
        (
            lambda: gemmkit.matmul(np.stack([A] * 2), np.stack([B] * 3)),
            r"a \(2, 5, 7\) and b \(3, 7, 3\)",
        ),
        (
            lambda: gemmkit.nn.linear(A[None], B.T.copy(), residual=A),
            r"residual has the shape \(5, 7\), and must have \(1, 5, 3\)",
        ),
        (lambda: gemmkit.nn.linear(A[None], B.T.astype(float)), "weight has type float64 and x"),
        (lambda: gemmkit.nn.attention(A, A.astype(float), A), "k has type float64 and q"),
        (
            lambda: gemmkit.nn.conv2d(A[None, None], B[None, None].astype(float)),
            "weight has type float64 and x",
        ),
        (
            lambda: gemmkit.nn.gru(A[None], None, [[A[:3].astype(float), A[:3, :1]]]),
            "w_ih of layer 0 has type float64 and x",
        ),
    ],
)
def test_messages_have_names_and_shapes_as_the_caller_passed_them(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_64_dimensions():
    ones = (1,) * 58
    a, b = whole(2, 1, *ones, 2, 1, 3, 4), whole(1, 3, *ones, 1, 2, 4, 2, seed=1)
    assert a.ndim == 64
    wanted = a @ b
    np.testing.assert_array_equal(matmul(a, b), wanted)
    np.testing.assert_array_equal(matmul(a, b[(0,) * 62]), a @ b[(0,) * 62])
    vector = whole(4, seed=2)
    np.testing.assert_array_equal(matmul(a, vector), a @ vector)
    np.testing.assert_array_equal(matmul(vector, b), vector @ b)
    out = np.ones_like(wanted)
    matmul(a, b, out=out, c=out, beta=2, residual=wanted)
    np.testing.assert_array_equal(out, 2 * wanted + 2)
    with pytest.raises(UsageError, match="do not broadcast"):
        matmul(a, whole(3, *ones, 1, 1, 2, 4, 2))


class Uncopied:
    """A carrier to which nothing may be brought."""

    alignment, by_columns = 0, False

    def __getattr__(self, name):
        raise AssertionError(f"{name} of a carrier for an empty result")


def test_empty_results_copy_nothing(monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def nothing(_):
        yield Uncopied()

    monkeypatch.setattr("gemmkit.ops.carriers.carrier_on", nothing)
    assert gemmkit.matmul(A[:0], B).shape == (0, 3)
    assert gemmkit.matmul(A, B[:, :0]).shape == (5, 0)
    assert gemmkit.matmul(np.stack([A] * 2)[:0], B).shape == (0, 5, 3)
    out = np.empty((0, 3), np.float32)
    assert gemmkit.matmul(A[:0], B, out=out, c=out, beta=1) is out
    assert type(gemmkit.matmul(A[:0].view(np.matrix), B)) is np.matrix
    with pytest.raises(UsageError, match="the same number"):
        gemmkit.matmul(A[:0], B[:5])


def test_empty_products_of_a_group_are_not_brought_there(monkeypatch):
    brought = []
    with carrier_on("emulator") as carrier:
        real = type(carrier).upload
    monkeypatch.setattr(
        type(carrier),
        "upload",
        lambda self, array: (brought.append(array.nbytes), real(self, array))[1],
    )
    large = np.ones((7, 4096), np.float32)
    empty, found = gemmkit.grouped_matmul(
        [np.ones((0, 7), np.float32), A], [large, B], device="emulator"
    )
    assert empty.shape == (0, 4096)
    np.testing.assert_array_equal(found, WANTED)
    assert max(brought) < large.nbytes


@pytest.mark.parametrize("odd", ODD)
def test_nothing_is_copied_for_an_empty_result(odd):
    big = odd(np.ones((3000, 1000), np.float32))
    none, out = np.ones((0, 3000), np.float32), np.ones((0, 1000), np.float32)
    gemmkit.grouped_matmul([A], [B], bias=[B[0]], device="emulator")
    tracemalloc.start()
    try:
        matmul(none, big)
        matmul(none, big, out=out, c=big[:1], beta=2, bias=big[0])
        gemmkit.gemm(big, none, transa=True, transb=True, device="emulator")
        gemmkit.grouped_matmul([none, A], [big, B], bias=[big[0], B[0]], device="emulator")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < big.nbytes / 4


@pytest.mark.parametrize("odd", ODD)
def test_where_they_lie_is_seen(odd):
    whole = odd(np.ones((9, 9), np.float32))
    with pytest.raises(UsageError, match="out overlaps a in memory"):
        matmul(whole[:3, :3], B[:3], out=whole[2:5, 2:5])
    with pytest.raises(UsageError, match=r"out\[0\] overlaps bs\[1\] in memory"):
        gemmkit.grouped_matmul(
            *([A[:3, :3], A[:3, :3]], [B[:3], whole[4:7, 4:7]]),
            out=[whole[:5, :5][2:, 2:], np.empty((3, 3), np.float32)],
            device="emulator",
        )
    matmul(whole[:3, :3], B[:3], out=whole[3:6, 3:6])
