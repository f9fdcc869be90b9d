"""`gemmkit.jax.ragged_matmul` beside `jax.lax.ragged_dot`; on a GPU its kernels."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import gemmkit  # noqa: E402
import gemmkit.jax as gk  # noqa: E402
from gemmkit.errors import UnsupportedProblem, UsageError  # noqa: E402
from gemmkit.jax import call_frame, ragged_target, registry  # noqa: E402
from gemmkit.ops.libraries import dlpack  # noqa: E402

# A group without rows between others, and rows past the last end.
SIZES = (3, 0, 5, 2)
ENDS = np.cumsum(SIZES)


@pytest.fixture
def double():
    """Room for float64, which JAX has only on request."""
    jax.config.update("jax_enable_x64", True)
    yield partial(_normal, np.random.default_rng(0))
    jax.config.update("jax_enable_x64", False)


def _normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape))


def theirs(a, b, sizes=SIZES):
    return jax.lax.ragged_dot(a, b, jnp.asarray(sizes, jnp.int32))


def ours(a, b, ends=ENDS, **how):
    return gk.ragged_matmul(a, b, ends, **how)


@pytest.mark.parametrize(
    "offsets", [ENDS.tolist(), ENDS, ENDS.astype(np.int16), ENDS.astype(">i4"), "jax"]
)
def test_it_is_ragged_dot(offsets, double):
    a, b = double(12, 6), double(4, 6, 5)
    offsets = jnp.asarray(ENDS) if isinstance(offsets, str) else offsets
    wanted = theirs(a, b)
    for found in (
        ours(a, b, offsets),
        ours(a, b.swapaxes(1, 2), offsets, transb=True),
        jax.jit(gk.ragged_matmul)(a, b, jnp.asarray(ENDS)),
    ):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert not found[ENDS[-1] :].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types_and_another_division_of_the_same_program(dtype):
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.integers(-3, 4, size), dtype) for size in ((12, 8), (3, 8, 5)))
    program = jax.jit(lambda a, b, sizes: gk.ragged_matmul(a, b, jnp.cumsum(sizes)))
    for sizes in ((4, 4, 4), (0, 12, 0), (1, 0, 3), (0, 0, 0)):
        found = program(a, b, jnp.asarray(sizes))
        assert found.dtype == a.dtype
        exact = theirs(a.astype("float32"), b.astype("float32"), sizes)
        np.testing.assert_array_equal(np.asarray(found, np.float32), exact)


@pytest.mark.parametrize("transb", [False, True])
def test_derivatives_of_both_modes_to_the_second_order(transb, double):
    a, b = double(12, 6), double(4, 6, 5)
    own = b.swapaxes(1, 2) if transb else b
    check_grads(partial(ours, transb=transb), (a, own), order=2)

    def loss(multiply, a, b):
        return jnp.sin(multiply(a, b)).sum()

    found = jax.jit(jax.grad(partial(loss, partial(ours, transb=transb)), (0, 1)))(a, own)
    wanted = jax.grad(partial(loss, theirs), (0, 1))(a, b)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-10, atol=1e-12)
    of_b = found[1].swapaxes(1, 2) if transb else found[1]
    np.testing.assert_allclose(of_b, wanted[1], rtol=1e-10, atol=1e-12)
    # Of the group without rows, and of rows that are in no group.
    assert not of_b[1].any()
    assert not found[0][ENDS[-1] :].any()


def test_gradients_copy_no_operand_and_have_the_precision_of_the_product():
    def loss(a, b):
        return jnp.sin(ours(a, b, precision="tf32")).sum()

    a, b = jnp.ones((12, 6)), jnp.ones((4, 6, 5))
    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(a, b))
    assert "transpose" not in text
    assert re.findall(r"gemmkit_ragged_(\w+)\[(?:layout=(..) )?precision=(\w+)", text) == [
        ("matmul", "nn", "tf32"),
        ("outer", "", "tf32"),
        ("matmul", "nt", "tf32"),
    ]


@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, None), (2, 0, 1), (None, None, 0)])
def test_vmap(axes, double):
    operands = double(12, 6), double(4, 6, 5), jnp.asarray(ENDS)
    others = double(12, 6), double(4, 6, 5), jnp.asarray([1, 2, 3, 12])
    many = [
        each if axis is None else jnp.stack([each, other], axis)
        for each, other, axis in zip(operands, others, axes, strict=True)
    ]
    found = jax.jit(jax.vmap(gk.ragged_matmul, axes))(*many)
    for number in range(2):
        a, b, ends = (
            first if axis is None else (first, second)[number]
            for first, second, axis in zip(operands, others, axes, strict=True)
        )
        wanted = theirs(a, b, np.diff(np.asarray(ends), prepend=0))
        np.testing.assert_allclose(found[number], wanted, rtol=1e-12)


def test_an_exported_program_takes_any_number_of_rows():
    rows, *_ = export.symbolic_shape("rows")
    shapes = ((rows, 6), jnp.float32), ((4, 6, 5), jnp.float32), ((4,), jnp.int32)
    given = [jax.ShapeDtypeStruct(*each) for each in shapes]
    allowed = [export.DisabledSafetyCheck.custom_call("gemmkit_ragged_matmul")]
    program = export.export(jax.jit(gk.ragged_matmul), disabled_checks=allowed)(*given)
    b = jnp.arange(120.0).reshape(4, 6, 5)
    for length in (10, 12):
        a = jnp.arange(6.0 * length).reshape(length, 6) % 5
        found = program.call(a, b, jnp.asarray(ENDS, jnp.int32))
        np.testing.assert_array_equal(found, theirs(a, b))


@pytest.mark.parametrize("setting", [jax.disable_jit, jax.debug_nans])
def test_operations_one_by_one_and_a_watch_for_nans(setting):
    a, b = jnp.ones((12, 6)), jnp.ones((4, 6, 5))
    with setting(True):
        grads = jax.grad(lambda a, b: ours(a, b).sum(), (0, 1))(a, b)
        assert [float(each.sum()) for each in grads] == [300.0, 300.0]
        if setting is jax.debug_nans:
            with pytest.raises(FloatingPointError, match="nan"):
                ours(a * jnp.inf, 0 * b)


def test_nothing_to_compute():
    b = jnp.ones((4, 6, 5))
    assert ours(jnp.ones((0, 6)), b, [0, 0, 0, 0]).shape == (0, 5)
    assert not ours(jnp.ones((3, 6)), b[:0], []).any()
    assert not ours(jnp.ones((12, 0)), b[:, :0]).any()
    assert jax.grad(lambda b: ours(jnp.ones((12, 6)), b, [0, 0, 0, 0]).sum())(b).sum() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [1, 2, 3]}, r"shape \(3,\); b has 4 groups"),
        ({"offsets": [1.0, 2, 3, 4]}, "not integers"),
        ({"offsets": np.ones(4, ">f4")}, "not integers"),
        ({"offsets": None}, "NoneType"),
        ({"offsets": 4}, "int"),
        ({"a": jnp.ones(6)}, r"a has 1 dimension; it is \(rows, k\)"),
        ({"b": jnp.ones((6, 5))}, r"b has 2 dimensions; it is \(groups, k, n\)"),
        ({"b": jnp.ones((4, 5, 6))}, "6 columns .* 5 rows"),
        ({"transb": True}, "6 columns .* 5 columns"),
        ({"transb": "t"}, "use True or False"),
        ({"b": jnp.ones((4, 6, 5), "float16")}, "float16"),
        ({"a": jnp.ones((12, 6), "float8_e5m2")}, "float8_e5m2: products by groups take"),
        ({"precision": "fast"}, "precision"),
    ],
)
def test_what_does_not_go_together(change, message):
    given = {"a": jnp.ones((12, 6)), "b": jnp.ones((4, 6, 5)), "offsets": ENDS, **change}
    arguments = [given.pop(name) for name in ("a", "b", "offsets")]
    with pytest.raises(UsageError, match=message):
        gk.ragged_matmul(*arguments, **given)


@pytest.mark.parametrize("ends", [[3, 2, 5, 6], [3, 4, 5, 13], [-1, 2, 3, 4]])
def test_offsets_that_are_not_in_order_are_found_when_it_runs(ends):
    # JAX has raised what XLA reports as either.
    with pytest.raises((ValueError, RuntimeError), match="offsets must be in order"):
        jax.block_until_ready(ours(jnp.ones((12, 6)), jnp.ones((4, 6, 5)), ends))


def test_outside_of_programs_gemmkits_own_function_takes_the_arrays():
    rng = np.random.default_rng(2)
    a, b = (jnp.asarray(rng.integers(-3, 4, size), "float32") for size in ((12, 6), (4, 6, 5)))
    bias, ends = jnp.ones((4, 5)), jnp.asarray(ENDS)
    found = gemmkit.ragged_matmul(a, b, ends, bias=bias, epilogue="relu")
    assert isinstance(found, jax.Array)
    last = ENDS[-1]
    wanted = np.maximum(np.asarray(theirs(a, b)) + 1, 0)[:last]
    np.testing.assert_array_equal(found[:last], wanted)
    with pytest.raises(UsageError, match=r"gemmkit\.jax\.ragged_matmul"):
        jax.jit(gemmkit.ragged_matmul)(a, b, ends)
    with pytest.raises(UsageError, match="cannot be written"):
        gemmkit.ragged_matmul(a, b, ends, out=jnp.zeros((12, 5)))


class _Frame:
    """All of a call on a GPU but the GPU: buffers in host memory, and what was done to them."""

    def __init__(self, monkeypatch, refuses):
        self.done = []
        self.refuses = refuses
        monkeypatch.setattr(ragged_target, "_READ_ON_HOST", set())
        monkeypatch.setattr(registry, "gpu_of", lambda address: 0)
        monkeypatch.setattr(registry, "CUDA", dlpack.CPU)
        monkeypatch.setattr(ragged_target, "ragged_matmul", self.multiply)
        monkeypatch.setattr(ragged_target, "grouped_matmul", self.grouped)
        monkeypatch.setattr(ragged_target, "_brought", self.brought)
        monkeypatch.setattr(ragged_target, "_clear", self.clear)

    def call(self, arguments, result, **texts):
        def give_stream(told):
            told._obj.stream = 1234

        api = SimpleNamespace(contents=SimpleNamespace(get_stream=give_stream))
        buffers = [
            call_frame.Buffer(each.ctypes.data, each.shape, each.dtype.name)
            for each in (*arguments, result)
        ]
        frame = SimpleNamespace(context=None, api=api)
        return call_frame.Call(tuple(buffers[:-1]), (buffers[-1],), texts, frame)

    def clear(self, buffer, ordinal, stream):
        assert ordinal == 0
        self.done.append(("clear", stream))
        registry.numpy_view(buffer)[...] = 0

    def brought(self, buffer, ordinal, stream):
        assert ordinal == 0
        self.done.append(("brought", stream))
        return registry.numpy_view(buffer).copy()

    def multiply(self, a, b, ends, *, out, precision):
        on_gpu = isinstance(ends, dlpack.DlpackArray)
        self.done.append(("multiply", on_gpu, precision, dlpack.current_stream(0)))
        if on_gpu:
            if self.refuses:
                raise UnsupportedProblem("no kernel reads offsets on the GPU")
            ends = np.from_dlpack(ends)
        gemmkit.ragged_matmul(*map(np.from_dlpack, (a, b)), ends, out=_writable(out))

    def grouped(self, a, b, *, out, precision):
        self.done.append(("grouped", precision, dlpack.current_stream(0)))
        gemmkit.grouped_matmul(
            list(map(np.from_dlpack, a)),
            list(map(np.from_dlpack, b)),
            out=list(map(_writable, out)),
        )


def _writable(array):
    return registry.numpy_view(call_frame.Buffer(array.address, array.view.shape, array.dtype))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_call_on_a_gpu_reads_offsets_there_if_a_kernel_does(refuses, monkeypatch):
    frame = _Frame(monkeypatch, refuses)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(size, np.float32) for size in ((12, 6), (4, 5, 6)))
    found, ends = np.full((12, 5), np.nan, np.float32), ENDS.astype(np.int32)
    call = frame.call((a, b, ends), found, layout="nt", precision="tf32")
    ragged_target._on_gpu(call)
    np.testing.assert_allclose(found, theirs(a, b.swapaxes(1, 2)), rtol=1e-5, atol=1e-6)
    steps = [("clear", 1234), ("multiply", True, "tf32", 1234)]
    if refuses:
        steps += [("brought", 1234), ("multiply", False, "tf32", 1234)]
    assert frame.done == steps
    # What no kernel reads there is asked once.
    frame.done.clear()
    ragged_target._on_gpu(call)
    assert frame.done == (steps if not refuses else [steps[0], *steps[2:]])
    assert dlpack.current_stream(0) == 0


def test_the_gradient_of_b_on_a_gpu_is_one_grouped_product(monkeypatch):
    frame = _Frame(monkeypatch, False)
    rng = np.random.default_rng(4)
    a, c = (rng.standard_normal(size, np.float32) for size in ((12, 6), (12, 5)))
    found, ends = np.full((4, 6, 5), np.nan, np.float32), ENDS.astype(np.int32)
    call = frame.call((a, c, ends), found, precision="ieee")
    ragged_target._outer_on_gpu(call)
    starts = [0, *ENDS[:-1]]
    for group, (start, end) in enumerate(zip(starts, ENDS, strict=True)):
        np.testing.assert_allclose(
            found[group], a[start:end].T @ c[start:end], rtol=1e-5, atol=1e-6
        )
    assert frame.done == [("brought", 1234), ("grouped", "ieee", 1234)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_gpu_in_the_order_of_xlas_stream(dtype):
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA")
    rng = np.random.default_rng(5)
    a = jnp.asarray(rng.integers(-2, 3, (500, 320)), dtype)
    b = jnp.asarray(rng.integers(-2, 3, (9, 320, 320)), dtype)

    @jax.jit
    def program(a, b, ends):
        for _ in range(6):
            # Each product needs the one before; reading too soon would show.
            a = jnp.clip(gk.ragged_matmul(a, b, ends, transb=True), -2, 2)
        return a

    def exact(a, b, sizes):
        return theirs(a.astype("float32"), b.astype("float32"), sizes)

    for seed in range(3):
        sizes = np.random.default_rng(seed).multinomial(480, np.full(9, 1 / 9))
        ends = jnp.asarray(np.cumsum(sizes), jnp.int32)
        wanted = a
        for _ in range(6):
            wanted = jnp.clip(exact(wanted, b.swapaxes(1, 2), sizes), -2, 2)
        np.testing.assert_array_equal(np.asarray(program(a, b, ends), np.float32), wanted)
        grads = jax.jit(
            jax.grad(lambda a, b, e: gk.ragged_matmul(a, b, e).astype("float32").sum(), (0, 1))
        )(a, b, ends)
        right = jax.grad(lambda a, b, s=sizes: exact(a, b, s).sum(), (0, 1))(a, b)
        for found, each in zip(grads, right, strict=True):
            # Whole numbers that every type holds exactly, up to 256 in bfloat16.
            np.testing.assert_allclose(np.asarray(found, np.float32), each, rtol=2**-8)
