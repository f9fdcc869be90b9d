"""Products of arrays on a GPU that the emulator plays: read in place, prepared once, launched."""

import logging
import threading
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import gemmkit
from emulated_gpu import STREAM, GpuArray, install
from gemmkit.errors import UsageError
from gemmkit.verify.encoding import encode


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        # As if no address were aligned: half as many kernels to compile.
        patch.setattr("gemmkit.ops.detours.alignment", lambda addresses: 4)
        yield install(patch)


@pytest.fixture
def gpu(played):
    gpu, _ = played
    gpu.launches.clear()
    gpu.chosen.clear()
    return gpu


def whole_numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def arrays(*shapes):
    return [GpuArray.of(whole_numbers(*shape, seed=seed)) for seed, shape in enumerate(shapes)]


def layouts(gpu):
    return [problem.layout for problem in gpu.chosen]


# --- warm calls ---------------------------------------------------------------------------------


def test_a_warm_call_chooses_nothing_anew(gpu):
    a, b = arrays((33, 34), (34, 35))
    for _ in range(3):
        result = gemmkit.matmul(a, b)
        np.testing.assert_array_equal(result.values, a.values @ b.values)
    assert len(gpu.launches) == 3
    assert {stream for _, stream in gpu.launches} == {STREAM}
    assert len(gpu.chosen) == 1


def test_what_a_launch_depends_on_is_looked_at_anew(gpu):
    a, b = arrays((20, 20), (20, 20))
    for x, y in ((a, b), (a.T, b), (a, b.T), (a[1:], b), (a, b[:, :17])):
        for alpha in (1, 2):
            result = gemmkit.matmul(x, y, alpha=alpha)
            np.testing.assert_array_equal(result.values, alpha * (x.values @ y.values))


def test_scales_may_be_others_at_each_call(gpu, played, monkeypatch):
    _, library = played
    read = library.read

    def read_narrow(array, role):
        found = read(array, role)
        return replace(found, dtype="float8_e4m3") if found.dtype == "uint8" else found

    monkeypatch.setattr(library, "read", read_narrow)
    a, b = (whole_numbers(*shape, seed=seed) for seed, shape in enumerate(((20, 200), (200, 24))))
    narrow = [GpuArray.of(encode(each, "float8_e4m3")) for each in (a, b)]
    for shape_a, shape_b, scaled in (
        ((20, 1), (1, 24), lambda x, y: (a * x) @ (b * y)),
        ((1, 1), (2, 1), lambda x, y: (a * x) @ (b * np.repeat(y, 128, 0)[:200])),
    ):
        gpu.chosen.clear()
        for factor in (0.5, 1, 2):
            x, y = np.full(shape_a, factor, np.float32), np.full(shape_b, 4, np.float32)
            x[-1], y[-1] = 2 * factor, 8
            result = gemmkit.matmul(*narrow, scale_a=GpuArray.of(x), scale_b=GpuArray.of(y))
            np.testing.assert_array_equal(result.values, scaled(x, y))
        assert len(gpu.chosen) == 1
    with pytest.raises(UsageError, match="a is in GPU 0 and scale_a in host memory"):
        gemmkit.matmul(*narrow, scale_a=np.ones((20, 1), np.float32))


def test_warm_calls_with_results_of_8_bits(gpu, played, monkeypatch):
    _, library = played
    read = library.read

    def read_narrow(array, role):
        found = read(array, role)
        return replace(found, dtype="float8_e4m3") if found.dtype == "uint8" else found

    monkeypatch.setattr(library, "read", read_narrow)
    a, b = (whole_numbers(*shape, seed=seed) for seed, shape in enumerate(((20, 30), (30, 24))))
    narrow = [GpuArray.of(encode(each, "float8_e4m3")) for each in (a, b)]
    out, bias = GpuArray.of(np.zeros((20, 24), np.uint8)), GpuArray.of(np.ones(24, np.float32))
    for factor in (0.5, 1, 4):
        scale = GpuArray.of(np.full((1,), factor, np.float32))
        gemmkit.matmul(*narrow, out=out, bias=bias, scale_result=scale)
        right = encode((a @ b + 1) * factor, "float8_e4m3")
        np.testing.assert_array_equal(out.values, right)
    assert len(gpu.chosen) == 1
    with pytest.raises(UsageError, match="a is in GPU 0 and scale_result in host memory"):
        gemmkit.matmul(*narrow, out=out, scale_result=np.ones((), np.float32))


def test_libraries_take_note_of_what_is_overwritten(gpu, played):
    _, library = played
    a, b, out, kept = arrays((12, 13), (13, 11), (12, 11), (12, 11))
    library.overwrites.clear()
    for count in (1, 2, 3):
        gemmkit.matmul(a, b, out=out, auxiliary=kept, epilogue="relu")
        assert [library.overwrites.count(each) for each in (out, kept)] == [count, count]
    with pytest.raises(UsageError):
        gemmkit.matmul(a, b, out=out.T)
    with pytest.raises(UsageError):
        gemmkit.matmul(a, b, out=out, auxiliary=out)
    gemmkit.matmul(a, b)
    assert len(library.overwrites) == 6


def test_what_is_watched_is_not_looked_up(gpu, played, monkeypatch):
    _, library = played
    a, b = arrays((12, 13), (13, 11))
    gemmkit.matmul(a, b)
    monkeypatch.setattr(library, "watched", lambda: True)
    monkeypatch.setattr(library, "glance_at_matrices", None)
    np.testing.assert_array_equal(gemmkit.matmul(a, b).values, a.values @ b.values)


def test_empty_results_copy_and_launch_nothing(gpu, played, monkeypatch):
    _, library = played
    for name in ("copied", "assign"):
        monkeypatch.setattr(library, name, None)
    a, b, c, bias = arrays((8, 10), (10, 9), (9,), (18,))
    for _ in range(2):
        result = gemmkit.matmul(a[:0, ::2], b[:5], c=c, beta=1, bias=bias[::2])
        assert result.shape == (0, 9)
        assert gemmkit.matmul(a, b[:, :0]).shape == (8, 0)
        out = GpuArray.empty((8, 0), np.float32)
        assert gemmkit.matmul(a[:, ::2], b[::2, :0], out=out) is out
    assert not gpu.launches


def test_threads_have_launches_of_their_own(gpu):
    pairs = [arrays((9, 30 + number), (30 + number, 8)) for number in range(2)] * 2
    failures = []

    def work(a, b):
        for _ in range(10):
            result = gemmkit.matmul(a, b)
            if not np.array_equal(result.values, a.values @ b.values):
                failures.append((a, b))

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(gpu.launches) == 40


def test_streams(gpu, played):
    _, library = played
    a, b = arrays((5, 6), (6, 7))
    gemmkit.matmul(a, b)
    library.stream = 78
    try:
        gemmkit.matmul(a, b)
    finally:
        library.stream = STREAM
    assert [stream for _, stream in gpu.launches] == [STREAM, 78]


# --- views --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "layout"),
    [
        (lambda x: x[:30, :20], lambda y: y[:20, :10], "nn"),
        (lambda x: x[:20, :30].T, lambda y: y[:20, :10], "tn"),
        (lambda x: x[:30, :20], lambda y: y[:10, :20].T, "nt"),
        (lambda x: x[:20, :30].T, lambda y: y[:10, :20].T, "tt"),
        (lambda x: x[::2, :20], lambda y: y[:40:2, :10], "nn"),
        (lambda x: x[3, ::2], lambda y: y[:20, 5], "tn"),
    ],
)
def test_rows_and_columns_are_read_in_place(gpu, caplog, left, right, layout):
    a, b = arrays((60, 40), (40, 40))
    a, b = left(a), right(b)
    with caplog.at_level(logging.DEBUG, "gemmkit"):
        result = gemmkit.matmul(a, b)
    np.testing.assert_array_equal(result.values, a.values @ b.values)
    assert layouts(gpu) == [layout]
    assert not caplog.records


@pytest.mark.parametrize("view", [lambda x: x[::2, ::2], lambda x: x[::-1], lambda x: x[:, ::-1]])
def test_other_views_are_copied_once(gpu, caplog, view):
    a, b = arrays((20, 20), (20, 20))
    a = view(a)
    b = b[: a.shape[1]]
    with caplog.at_level(logging.DEBUG, "gemmkit"):
        result = gemmkit.matmul(a, b)
    np.testing.assert_array_equal(result.values, a.values @ b.values)
    assert [record.message.split(":")[0] for record in caplog.records] == ["a is copied once"]


def test_columns_of_out_are_written_in_place(gpu):
    a, b, out, bias = arrays((30, 20), (20, 10), (10, 30), (10,))
    result = gemmkit.matmul(a, b, out=out.T, bias=bias, epilogue="bias+relu")
    assert result.values.base is out.values.base
    wanted = np.maximum(a.values @ b.values + bias.values, 0)
    np.testing.assert_array_equal(out.values.T, wanted)
    (problem,) = gpu.chosen
    assert (problem.layout, problem.m, problem.epilogue.bias) == ("tt", 10, "row")


def test_other_outputs_are_copied_back(gpu):
    a, b, out = arrays((9, 8), (8, 7), (18, 14))
    before = out.values.copy()
    gemmkit.matmul(a, b, out=out[::2, ::-2], c=out[::2, ::-2], beta=2)
    wanted = before.copy()
    wanted[::2, ::-2] = a.values @ b.values + 2 * before[::2, ::-2]
    np.testing.assert_array_equal(out.values, wanted)


def test_a_small_operand_is_repeated_rather_than_launched_for(gpu, caplog):
    a, b = arrays((2, 1, 5, 8), (1, 3, 8, 3))
    with caplog.at_level(logging.DEBUG, "gemmkit"):
        result = gemmkit.matmul(a, b)
    np.testing.assert_array_equal(result.values, a.values @ b.values)
    assert len(gpu.launches) == 1
    assert "its stack would take 2 launches" in caplog.text


@settings(max_examples=50)
@given(st.data())
@pytest.mark.slow
def test_any_views(played, data):
    sizes = st.integers(0, 40)
    m, n, k = (data.draw(sizes, label=side) for side in "mnk")
    stack = data.draw(st.sampled_from([(), (2,), (3, 2), (2, 1)]), label="stack")
    steps = st.sampled_from((1, 2, -1))

    def view(rows, columns, name, *, stacked=True):
        outer = stack if stacked else ()
        down, across = (data.draw(steps, label=name) for _ in range(2))
        back = data.draw(st.sampled_from((1, -1)), label=f"{name} back")
        spare = GpuArray.of(
            whole_numbers(*(2 * size for size in outer), 2 * rows + 1, 2 * columns + 3, seed=rows)
        )
        found = spare[(..., slice(None, None, down), slice(None, None, across))]
        found = found[(*(slice(0, size) for size in outer), slice(0, rows), slice(0, columns))]
        if outer:
            found = found[::back]
        if data.draw(st.booleans(), label=f"{name} by columns"):
            flipped = GpuArray.of(found.values.swapaxes(-1, -2))
            found = GpuArray(flipped.values.swapaxes(-1, -2), flipped.buffer)
        return found

    a = view(m, k, "a", stacked=data.draw(st.booleans()))
    b = view(k, n, "b", stacked=data.draw(st.booleans()))
    wanted = a.values @ b.values
    out = None
    if data.draw(st.booleans(), label="out"):
        out = view(m, n, "out", stacked=wanted.ndim > 2)
    result = gemmkit.matmul(a, b, out=out)
    assert out is None or result is out
    np.testing.assert_array_equal(result.values, wanted)


@settings(max_examples=15)
@given(st.data())
def test_further_operands_may_lie_otherwise(played, data):
    """A result by rows or columns, and next to it c, bias, residual and auxiliary output."""
    m, n, k = (data.draw(st.integers(1, 20), label=side) for side in "mnk")
    left = data.draw(st.sampled_from([(m, k), (k,)]), label="a")
    right = data.draw(st.sampled_from([(k, n), (k,)][: len(left)]), label="b")
    a, b = arrays(left, right)
    shape = (a.values @ b.values).shape

    def lying(name, shape):
        steps = [data.draw(st.sampled_from((1, 1, 2, -1)), label=name) for _ in shape]
        order = data.draw(st.permutations(range(len(shape))), label=f"{name}'s order")
        sizes = [abs(step) * size + 1 for step, size in zip(steps, shape, strict=True)]
        spare = GpuArray.of(whole_numbers(*(sizes[axis] for axis in order), seed=len(name)))
        values = spare.values.transpose(np.argsort(order))
        values = values[tuple(slice(None, None, step) for step in steps)]
        return GpuArray(values[tuple(slice(0, size) for size in shape)], spare.buffer)

    out, c, residual, auxiliary = (lying(name, shape) for name in ("o", "cc", "res", "aux4"))
    in_place = data.draw(st.sampled_from(("", "c", "residual")), label="is out")
    c, residual = (out if in_place == "c" else c), (out if in_place == "residual" else residual)
    bias = lying("bias5", (n if len(right) > 1 else 1,))
    argument = a.values @ b.values - c.values + bias.values
    wanted = np.maximum(argument, 0) + residual.values
    result = gemmkit.matmul(
        *(a, b),
        out=out,
        c=c,
        beta=-1,
        bias=bias,
        epilogue="relu",
        residual=residual,
        auxiliary=auxiliary,
    )
    assert result is out
    np.testing.assert_array_equal(out.values, wanted)
    np.testing.assert_array_equal(auxiliary.values, argument)


# --- stacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "launches", "batch", "m"),
    [
        ((6, 5, 7), (6, 7, 3), 1, 6, 5),
        ((6, 5, 7), (7, 3), 1, 1, 30),
        ((5, 7), (6, 7, 3), 1, 6, 5),
        ((2, 3, 5, 7), (2, 3, 7, 3), 1, 6, 5),
        ((2, 1, 5, 7), (1, 3, 7, 3), 2, 3, 5),
        ((2, 3, 5, 7), (3, 7, 3), 2, 3, 5),
        ((6, 1, 7), (7, 3), 1, 1, 6),
    ],
)
def test_stacks_are_told_in_few_launches(gpu, monkeypatch, a, b, launches, batch, m):
    monkeypatch.setattr("gemmkit.ops.placement.BYTES_A_LAUNCH", 0)
    x, y = arrays(a, b)
    result = gemmkit.matmul(x, y)
    np.testing.assert_array_equal(result.values, x.values @ y.values)
    assert len(gpu.launches) == launches
    assert {(problem.batch, problem.m) for problem in gpu.chosen} == {(batch, m)}


# --- what cannot be meant -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["0", 0.5, True, -1, [1], object()])
def test_streams_that_are_none_are_refused(gpu, stream):
    a, b = arrays((5, 6), (6, 7))
    with pytest.raises(UsageError, match="is not an open CUDA stream"):
        gemmkit.matmul(a, b, stream=stream)
    assert not gpu.launches


@pytest.mark.parametrize("role", ["b", "out", "c", "bias", "residual", "auxiliary"])
def test_arrays_in_two_places_are_refused_cold_and_warm(gpu, role):
    given = dict(zip(("a", "b", "bias"), arrays((5, 6), (6, 7), (7,)), strict=True))
    given |= dict(zip(("out", "c", "residual", "auxiliary"), arrays(*4 * [(5, 7)]), strict=True))
    gemmkit.matmul(**given, beta=2)
    gpu.launches.clear()
    elsewhere = given | {role: given[role].values.copy()}
    with pytest.raises(UsageError, match=f"a is in GPU 0 and {role} in host memory"):
        gemmkit.matmul(**elsewhere, beta=2)
    assert not gpu.launches


def test_overlapping_memory_is_refused_once_the_call_is_warm(gpu):
    whole, b = arrays((20, 6), (6, 6))
    residual = arrays((5, 6))[0]
    gemmkit.matmul(whole[:5], b, out=whole[5:10], residual=residual)
    gpu.launches.clear()
    for changes, words in (
        ({"out": whole[4:9]}, "out overlaps a"),
        ({"residual": whole[6:11]}, "out overlaps residual"),
        ({"b": whole[9:15]}, "out overlaps b"),
    ):
        call = {"b": b, "out": whole[5:10], "residual": residual} | changes
        with pytest.raises(UsageError, match=words):
            gemmkit.matmul(whole[:5], **call)
    assert not gpu.launches
