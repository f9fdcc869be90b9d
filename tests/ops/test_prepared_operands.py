"""Prepared operands: made once, read by the kernels that copy, right for any other product."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray, install
from gemmkit import nn
from gemmkit.dispatch.choose import Choice, choose
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.ops import product
from gemmkit.ops.prepared_operands import PreparedOperand, prepare

SMALL = {
    "gemm_fp16x3": {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1},
    "gemm_tf32": {"BM": 64, "BN": 64, "consumers": 1, "stages": 3, "cluster_m": 1},
    "gemm_wgmma": {"BM": 64, "BN": 64, "consumers": 1, "stages": 2, "cluster_m": 1},
}
COPYING = {
    ("float32", "fp32"): "gemm_fp16x3",
    ("float32", "tf32"): "gemm_tf32",
    ("float16", "ieee"): "gemm_wgmma",
}


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch)


@pytest.fixture
def gpu(played):
    """A GPU on which products of up to 8 rows are multiplied without copies."""
    gpu, _ = played

    def pick(problem):
        name = COPYING.get((problem.dtype, problem.precision))
        if name is None or min(problem.m, problem.n) <= 8 or problem.k == 0:
            return choose(problem, gpu.spec, emulated=True)
        kernel = find_kernel(name)
        return Choice(kernel, kernel.configure(SMALL[name]), "picked", "heuristic", 1.0)

    gpu.pick = pick
    product._ready.calls.clear()
    for seen in (gpu.launches, gpu.chosen, gpu.finished):
        seen.clear()
    yield gpu
    gpu.pick = None
    gpu.capturing = 0


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def equal(one, other):
    """Whether two arrays are the same to the bit."""
    return one.values.tobytes() == other.values.tobytes()


def count(gpu, call):
    """The number of launches of a call, and its result."""
    before = len(gpu.launches)
    result = call()
    return len(gpu.launches) - before, result


# --- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True], ids=["row-major", "a transposed view"])
@pytest.mark.parametrize(("dtype", "precision"), COPYING)
@pytest.mark.sample
def test_results_are_those_without_preparation_to_the_bit(gpu, dtype, precision, transposed):
    m, n, k = 70, 45, 77
    a = GpuArray.of(normal(m, k, dtype=dtype))
    b = GpuArray.of(normal(n, k, dtype=dtype)).T if transposed else GpuArray.of(normal(k, n))
    if dtype != "float32" and not transposed:
        b = GpuArray.of(normal(k, n, dtype=dtype))
    plain = gemmkit.matmul(a, b, precision=precision)
    w = prepare(b, precision=precision, rows=m)
    assert (w.shape, w.dtype, w.side, w.precision) == ((k, n), b.dtype, "b", precision)
    assert len(w.forms) == 1
    for _ in range(2):
        assert equal(gemmkit.matmul(a, w), plain)
        assert equal(gemmkit.matmul(a, w, precision=precision), plain)
    assert np.allclose(plain.values, a.values @ b.values, atol=0.2)


def test_only_the_other_operand_is_converted(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    launches, _ = count(gpu, lambda: prepare(b, precision="fp32", rows=70))
    assert (launches, gpu.finished) == (1, [STREAM])
    w = prepare(b, precision="fp32", rows=70)
    launches, _ = count(gpu, lambda: gemmkit.matmul(a, w))
    assert launches == 2  # A is split, and the product
    (split, _), _ = gpu.launches[-2:]
    gemmkit.matmul(a, b, precision="fp32")
    (split_both, _), _ = gpu.launches[-2:]
    assert split < split_both
    # TF32 reads A in place.
    aligned = GpuArray.of(normal(70, 80))
    t = prepare(GpuArray.of(normal(80, 45)), precision="tf32", rows=70)
    assert count(gpu, lambda: gemmkit.matmul(aligned, t))[0] == 1


def test_weights_of_one_shape_do_not_get_in_each_others_way(gpu):
    a = GpuArray.of(normal(70, 77))
    arrays = [GpuArray.of(normal(77, 45, seed=seed)) for seed in range(3)]
    prepared = [prepare(each, precision="fp32", rows=()) for each in arrays]
    assert [each.nbytes for each in prepared] == [0, 0, 0]
    wanted = [gemmkit.matmul(a, each, precision="fp32") for each in arrays]
    for _ in range(2):
        for w, right in zip(prepared, wanted, strict=True):
            assert equal(gemmkit.matmul(a, w), right)
    assert all(each.nbytes for each in prepared)
    # The calls of all three share what was chosen.
    assert sum("b" in each.prepared for each in gpu.chosen) == 1


def test_what_is_not_finite_is_multiplied_from_the_array_itself(gpu):
    a, b = normal(70, 77), normal(77, 45)
    b[3, 5], b[7, 5], b[9, 40], a[11, 9] = np.inf, np.nan, -np.inf, 0
    a, b = GpuArray.of(a), GpuArray.of(b)
    w = prepare(b, precision="fp32", rows=70)
    found = gemmkit.matmul(a, w)
    assert equal(found, gemmkit.matmul(a, b, precision="fp32"))
    with np.errstate(invalid="ignore"):
        wanted = a.values.astype(float) @ b.values
    assert np.array_equal(np.isnan(found.values), np.isnan(wanted))
    assert np.isnan(found.values[11, 40])


# --- any product --------------------------------------------------------------------------------


def test_few_rows_are_multiplied_from_the_array_itself(gpu):
    b = GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32", rows=4)
    assert w.forms == ()
    assert "read in place" in repr(w)
    for rows in (1, 3, 70):
        a = GpuArray.of(normal(rows, 77, seed=rows))
        assert equal(gemmkit.matmul(a, w), gemmkit.matmul(a, b, precision="fp32"))
    assert len(w.forms) == 1  # of 70 rows
    vector = GpuArray.of(normal(77))
    assert gemmkit.matmul(vector, w).shape == (45,)


def test_side_a(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    plain = gemmkit.matmul(a, b, precision="fp32")
    w = prepare(a, side="a", precision="fp32", rows=45)
    assert equal(gemmkit.matmul(w, b), plain)
    both = prepare(b, precision="fp32", rows=70)
    assert equal(gemmkit.matmul(w, both), plain)
    assert "70, 77" in repr(w)


def test_a_transposed_result(gpu):
    """It is computed as B^T A^T, in which the prepared operand is the left one."""
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32", rows=70)
    out = GpuArray.empty((45, 70), np.float32)
    gemmkit.matmul(a, b, out=out.T, precision="fp32")
    other = GpuArray.empty((45, 70), np.float32)
    gemmkit.matmul(a, w, out=other.T)
    assert equal(other, out)
    assert len(w.forms) == 1


def test_epilogues_scales_and_results(gpu):
    a, b, bias = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45)), GpuArray.of(normal(45))
    c = GpuArray.of(normal(70, 45, seed=3))
    w = prepare(b, precision="fp32", rows=70)
    options = {"alpha": 0.5, "beta": 2.0, "bias": bias, "epilogue": "relu"}
    wanted = gemmkit.matmul(a, b, c=c, precision="fp32", **options)
    for _ in range(2):
        assert equal(gemmkit.matmul(a, w, c=c, **options), wanted)
    out = GpuArray.of(c.values)
    assert gemmkit.matmul(a, w, out=out, c=out, **options) is out
    assert equal(out, wanted)
    assert equal(
        gemmkit.gemm(a, w, GpuArray.of(c.values), bias=bias, alpha=0.5, beta=2.0, epilogue="relu"),
        wanted,
    )
    # BLAS: neither operand is read where α = 0.
    nothing = gemmkit.matmul(a, w, alpha=0, c=c, beta=1)
    assert equal(nothing, c)


def test_stacks_share_the_operand(gpu):
    a, b = GpuArray.of(normal(3, 30, 77)), GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32")
    assert equal(gemmkit.matmul(a, w), gemmkit.matmul(a, b, precision="fp32"))
    apart = GpuArray(a.values[:, :20], a.buffer)
    assert equal(gemmkit.matmul(apart, w), gemmkit.matmul(apart, b, precision="fp32"))
    assert len(w.forms) == 1


def test_empty_operands(gpu):
    for m, n, k in ((0, 45, 77), (70, 0, 77), (70, 45, 0), (0, 0, 0)):
        a, b = GpuArray.of(normal(m, k)), GpuArray.of(normal(k, n))
        w = prepare(b, precision="fp32")
        result = gemmkit.matmul(a, w)
        assert result.shape == (m, n)
        assert not result.values.any()
        assert (w.nbytes > 0) == (n * k > 0)


def test_an_array_without_contiguous_rows_is_copied_once(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 90))[:, ::2]
    w = prepare(b, precision="fp32", rows=70)
    assert w.array is not b
    assert equal(gemmkit.matmul(a, w), gemmkit.matmul(a, b, precision="fp32"))


# --- life ---------------------------------------------------------------------------------------


def test_refresh_follows_a_change_in_place(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32", rows=70)
    old = gemmkit.matmul(a, w)
    b.values[...] = normal(77, 45, seed=9)
    assert equal(gemmkit.matmul(a, w), old)
    launches, _ = count(gpu, w.refresh)
    assert launches == 1
    assert equal(gemmkit.matmul(a, w), gemmkit.matmul(a, b, precision="fp32"))


def test_nothing_is_made_while_a_graph_is_captured(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32", rows=())
    gpu.capturing = 1
    with pytest.raises(UsageError, match="cannot be captured into a graph: multiply once before"):
        gemmkit.matmul(a, w)
    with pytest.raises(UsageError, match="cannot be captured"):
        prepare(b, precision="fp32", rows=70)
    gpu.capturing = 0
    gemmkit.matmul(a, w)
    assert w.nbytes


def test_a_transpose_is_for_functions_that_transpose_it(gpu):
    x, weight = GpuArray.of(normal(70, 77)), GpuArray.of(normal(45, 77))
    w = prepare(weight, transpose=True, precision="fp32", rows=70)
    assert w.shape == (45, 77)
    assert w.T.T is w
    plain = gemmkit.matmul(x, weight.T, precision="fp32")
    assert equal(gemmkit.gemm(x, w, transb=True), plain)
    assert equal(gemmkit.matmul(x, w.T), plain)
    assert equal(nn.linear(x, w), plain)
    with pytest.raises(UsageError, match="is the transpose of what was prepared"):
        gemmkit.matmul(x, w)


# --- refusals -----------------------------------------------------------------------------------


def test_what_does_not_go_together_is_refused(gpu):
    a, b = GpuArray.of(normal(70, 77)), GpuArray.of(normal(77, 45))
    w = prepare(b, precision="fp32", rows=())
    with pytest.raises(UsageError, match="prepared for precision 'fp32', not 'ieee'"):
        gemmkit.matmul(a, w, precision="ieee")
    with pytest.raises(UsageError, match="prepared as side 'b': prepare it with side='a'"):
        gemmkit.matmul(w, b)
    with pytest.raises(UsageError, match="a was prepared for precision 'tf32' and b for 'fp32'"):
        gemmkit.matmul(prepare(a, side="a", precision="tf32", rows=()), w)
    with pytest.raises(UsageError, match="a·b needs the same number of both"):
        gemmkit.matmul(GpuArray.of(normal(70, 70)), w)
    with pytest.raises(UnsupportedType, match="b has type float32"):
        gemmkit.matmul(GpuArray.of(normal(70, 77, dtype=np.float16)), w)
    with pytest.raises(UsageError, match="a is in host memory and b in GPU 0"):
        gemmkit.matmul(normal(70, 77), w)
    with pytest.raises(UnsupportedType, match="is a prepared operand"):
        gemmkit.grouped_matmul([a], [w])
    with pytest.raises(UnsupportedType, match="c is a prepared operand"):
        gemmkit.matmul(a, b, c=w, beta=1)


def test_what_cannot_be_prepared_is_refused(gpu):
    b = GpuArray.of(normal(77, 45))
    with pytest.raises(UsageError, match="use 'b' for products x · array"):
        prepare(b, side="left")
    with pytest.raises(UsageError, match="b has 3 dimensions: prepared operands are matrices"):
        prepare(GpuArray.of(normal(2, 77, 45)))
    with pytest.raises(UnsupportedType, match="prepared already"):
        prepare(prepare(b, rows=()))
    with pytest.raises(UsageError, match="precision"):
        prepare(b, precision="fp8")
    for rows in ("8", 8.0, None):
        with pytest.raises(UnsupportedType, match="use a number of rows"):
            prepare(b, rows=rows)
    with pytest.raises(UsageError, match="integers from 0 on"):
        prepare(b, rows=[-1])


# --- host arrays --------------------------------------------------------------------------------


def test_host_arrays_are_multiplied_as_they_are():
    a, b = normal(30, 70), normal(70, 20)
    w = gemmkit.prepare(b, precision="fp32")
    assert isinstance(w, PreparedOperand)
    assert (w.nbytes, w.shape, w.array is b) == (0, (70, 20), True)
    found = gemmkit.matmul(a, w, device="emulator")
    assert np.array_equal(found, gemmkit.matmul(a, b, precision="fp32", device="emulator"))
    assert "in host memory, read in place" in repr(w)
    w.refresh()
    with pytest.raises(UsageError, match="stream is for arrays on a GPU"):
        gemmkit.prepare(b, stream=0)


def test_the_setting_counts_when_an_operand_is_prepared():
    with gemmkit.precision("tf32"):
        w = gemmkit.prepare(normal(70, 20))
    assert w.precision == "tf32"
    assert gemmkit.prepare(normal(70, 20, dtype=np.float16)).precision == "ieee"
