"""gemmkit.jax against jax.numpy: values, transformations and errors.

Arrays of JAX's CPU backend are computed on the emulator where there is no GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from matmul_cases import DIFFERENTIATED, each_shape, run_snippets

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import gemmkit  # noqa: E402
import gemmkit.jax as gk  # noqa: E402
from gemmkit.errors import UsageError  # noqa: E402
from gemmkit.jax import call_frame, registry, target  # noqa: E402
from gemmkit.ops.libraries import dlpack  # noqa: E402

LAYOUTS = list(product((False, True), repeat=2))


@pytest.fixture
def double():
    """Room for float64, which JAX has only on request."""
    jax.config.update("jax_enable_x64", True)
    yield partial(_normal, np.random.default_rng(0))
    jax.config.update("jax_enable_x64", False)


def _normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape))


def swapped(array, swap=True):
    return jnp.swapaxes(array, -1, -2) if swap else array


@each_shape()
def test_matmul_follows_numpy(left, right, double):
    a, b = double(*left), double(*right)
    wanted = jnp.matmul(a, b)
    for function in (gk.matmul, jax.jit(gk.matmul)):
        found = function(a, b)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@each_shape(*DIFFERENTIATED)
def test_derivatives_of_both_modes_to_the_second_order(left, right, double):
    check_grads(gk.matmul, (double(*left), double(*right)), order=2)


@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
def test_transposes_and_their_gradients(transa, transb, double):
    a, b = double(2, 3, 4), double(4, 5)

    def loss(multiply, a, b):
        return jnp.sin(multiply(a, b)).sum()

    ours = partial(gk.matmul, transa=transa, transb=transb)
    value, grads = jax.value_and_grad(partial(loss, ours), (0, 1))(
        swapped(a, transa), swapped(b, transb)
    )
    wanted, wanted_grads = jax.value_and_grad(partial(loss, jnp.matmul), (0, 1))(a, b)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    np.testing.assert_allclose(swapped(grads[0], transa), wanted_grads[0], rtol=1e-10)
    np.testing.assert_allclose(swapped(grads[1], transb), wanted_grads[1], rtol=1e-10)


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0), (-1, -1)])
def test_vmap(axes, double):
    a, b = double(3, 4), double(2, 4, 5)
    many = [
        each if axis is None else jnp.stack([each, 2 * each, -each], axis)
        for each, axis in zip((a, b), axes, strict=True)
    ]
    found = jax.jit(jax.vmap(gk.matmul, axes))(*many)
    np.testing.assert_allclose(found, jax.vmap(jnp.matmul, axes)(*many), rtol=1e-12)


def test_gradients_copy_no_operand(double):
    program = jax.make_jaxpr(jax.grad(lambda a, b: jnp.sin(gk.matmul(a, b)).sum(), (0, 1)))
    text = str(program(double(3, 4), double(4, 5)))
    assert "transpose" not in text
    assert re.findall(r"gemmkit_matmul\[layout=(..) precision=ieee\]", text) == ["nn", "tn", "nt"]


def test_gradients_and_stacks_have_the_precision_of_the_product():
    def traced(function):
        a, b = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
        stacked = jax.vmap(function, (0, None))
        gradients = jax.grad(lambda a, b: stacked(a, b).sum(), (0, 1))
        text = str(jax.make_jaxpr(gradients)(a, b))
        return re.findall(r"gemmkit_matmul\[[^]]*precision=(\w+)", text)

    def total(a, b, **how):
        return jnp.sin(gk.matmul(a, b, **how)).sum()

    assert set(traced(partial(total, precision="tf32"))) == {"tf32"}
    assert set(traced(total)) == {"ieee"}
    with gemmkit.precision("fp32"):
        assert set(traced(total)) == {"fp32"}
    with pytest.raises(UsageError, match="A and B are of float16"):
        gk.matmul(jnp.ones((2, 2), jnp.float16), jnp.ones((2, 2), jnp.float16), precision="tf32")


def test_what_is_computed_has_the_precision_that_was_asked_for(monkeypatch):
    seen, multiply = [], target.matmul

    def noted(*operands, precision, **rest):
        seen.append(precision)
        return multiply(*operands, precision=precision, **rest)

    monkeypatch.setattr(target, "matmul", noted)
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    for precision in ("tf32", None):
        assert (jax.jit(partial(gk.matmul, precision=precision))(a, b) == 4).all()
    assert seen == ["tf32", "ieee"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types(dtype):
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.integers(-4, 5, size), dtype) for size in ((5, 8), (8, 3)))
    found = gk.matmul(a, b)
    assert found.dtype == a.dtype
    # Small whole numbers: exact in every type.
    np.testing.assert_array_equal(
        np.asarray(found, np.float64), np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    )


def deleted():
    array = jnp.ones((2, 3))
    array.delete()
    return array


def test_what_jax_takes_for_arrays():
    class Parameter:
        def __jax_array__(self):
            return jnp.ones((3, 2))

    wanted = np.full((2, 2), 3, np.float32)
    for b in (Parameter(), np.ones((3, 2), np.float32), np.ones((3, 2), ">f4")):
        np.testing.assert_array_equal(gk.matmul(jnp.ones((2, 3)), b), wanted)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("weak_a", "weak_b"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_a_result_has_a_weak_type_where_jaxs_has_one(traced, weak_a, weak_b):
    weak, strong = jnp.broadcast_to(jnp.asarray(1.5), (3, 3)), jnp.ones((3, 3))
    assert weak.weak_type
    assert not strong.weak_type
    pair = weak if weak_a else strong, weak if weak_b else strong
    found, wanted = ((jax.jit(each) if traced else each)(*pair) for each in (gk.matmul, jnp.matmul))
    assert (found.dtype, found.weak_type) == (wanted.dtype, wanted.weak_type)
    half = jnp.ones((3, 3), "float16")
    assert (found + half).dtype == (wanted + half).dtype


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: gk.matmul(a, a), "the same number"),
        (lambda a: gk.matmul(a, a.T.astype("float16")), "float16"),
        (lambda a: gk.matmul(a.astype(int), a.T.astype(int)), "int32"),
        (lambda a: gk.matmul(a[0], a, transa=True), "transa"),
        (lambda a: gk.matmul(a, a, transb="t"), "transb = 't': use True or False"),
        (lambda a: gk.matmul(None, a), "a has type NoneType; gemmkit takes arrays of"),
        (lambda a: gk.matmul(a, [[1.0], [2.0], [3.0]]), "b has type list; gemmkit takes arrays of"),
        (lambda a: gk.matmul(((1.0, 2.0),), a), "a has type tuple; gemmkit takes arrays of"),
        (lambda a: gk.matmul(a, 2.0), "b has type float; gemmkit takes arrays of"),
        (lambda a: jax.jit(lambda x: gk.matmul(x, [[1.0]] * 3))(a), "b has type list"),
        (lambda a: gk.matmul(deleted(), a), "a has been deleted, or donated to a function: give"),
        (lambda a: gk.matmul(jnp.ones((2, 2, 3)), jnp.ones((3, 3, 2))), "broadcast"),
        (lambda a: jax.jit(gk.matmul)(a, a), "the same number"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call(jnp.ones((2, 3)))


WATCHED = {
    "plain": gk.matmul,
    "jit": jax.jit(gk.matmul),
    "grad": jax.grad(lambda a, b: gk.matmul(a, b).sum()),
    "vmap": lambda a, b: jax.vmap(gk.matmul, (0, None))(a[None], b)[0],
}
SETTINGS = [jax.disable_jit, jax.debug_nans, jax.debug_infs]


@pytest.mark.parametrize("function", WATCHED.values(), ids=WATCHED)
@pytest.mark.parametrize("setting", SETTINGS)
def test_operations_one_by_one_and_a_watch_for_nans(setting, function):
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 2))
    wanted = function(a, b)
    with setting(True):
        np.testing.assert_array_equal(function(a, b), wanted)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["plain", "jit"])
def test_what_is_watched_for_is_found(name, whole):
    large, ones = jnp.full((1, 2), 3e38), jnp.ones((2, 1))
    assert WATCHED[name](large, ones) == jnp.inf
    with jax.disable_jit(not whole):
        with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
            WATCHED[name](large, ones)
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            WATCHED[name](large * jnp.array([[10, -10]]), ones)


def test_an_exported_program():
    pytest.importorskip("flatbuffers", reason="jax.export writes with it")
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 2))
    check = export.DisabledSafetyCheck.custom_call("gemmkit_matmul")
    with pytest.raises(ValueError, match="gemmkit_matmul"):
        export.export(jax.jit(gk.matmul))(a, b)
    rows, columns = export.symbolic_shape("rows, columns")
    shapes = (
        jax.ShapeDtypeStruct((rows, 3), jnp.float32),
        jax.ShapeDtypeStruct((3, columns), jnp.float32),
    )
    written = export.export(jax.jit(gk.matmul), disabled_checks=[check])(*shapes)
    read = export.deserialize(written.serialize(vjp_order=1))
    np.testing.assert_array_equal(read.call(a, b), a @ b)
    np.testing.assert_array_equal(
        read.vjp().call(a, b, jnp.ones((2, 2)))[0], jnp.ones((2, 2)) @ b.T
    )


def test_refused_types_are_type_errors_and_shapes_those_of_the_caller():
    a = jnp.ones((2, 3))
    for bad in (a.astype(int), a.astype(jnp.float16), None, jax.random.key(0)):
        with pytest.raises(TypeError) as caught:
            gk.matmul(a.T, bad)
        assert isinstance(caught.value, UsageError)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(UsageError, match=r"a of shape \(2, 3\) has 2 rows and b of shape \(3, 2\)"):
        gk.matmul(a, a.T, transa=True)
    with pytest.raises(UsageError, match="has been deleted"):
        gemmkit.matmul(deleted(), a.T)


def _register(name, work):
    made = call_frame.make_handler(work)
    address = ctypes.cast(made, ctypes.c_void_p).value
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform="cpu")
    return made


def test_the_handler_reads_xlas_call():
    seen = []
    kept = _register("gemmkit_test_read", seen.append)
    like = jax.ShapeDtypeStruct((3,), jnp.float32)
    a = jax.device_put(jnp.ones((2, 5), jnp.bfloat16), jax.devices("cpu")[0])
    jax.block_until_ready(
        jax.ffi.ffi_call("gemmkit_test_read", like)(a, layout="nt", n=np.int64(1))
    )
    (call,) = seen
    assert [(each.shape, each.dtype) for each in call.arguments] == [((2, 5), "bfloat16")]
    assert [(each.shape, each.dtype) for each in call.results] == [((3,), "float32")]
    assert call.attributes == {"layout": "nt"}
    assert kept is not None


def test_what_the_handler_raises_is_xlas_error():
    def work(call):
        if call.attributes["how"] == "ours":
            raise UsageError("of ours")
        if call.attributes["how"] == "stream":
            call.stream()
        raise KeyboardInterrupt("of another")

    kept = _register("gemmkit_test_raise", work)
    run = jax.ffi.ffi_call("gemmkit_test_raise", jax.ShapeDtypeStruct((), jnp.float32))
    for how, message in (
        ("ours", "INVALID_ARGUMENT: of ours"),
        ("stream", "INVALID_ARGUMENT: XLA gave no CUDA stream"),
        ("other", "INTERNAL: KeyboardInterrupt: of another"),
    ):
        on_cpu = jax.default_device(jax.devices("cpu")[0])
        with on_cpu, pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(run(how=how))
    assert kept is not None


def test_a_call_on_a_gpu_has_views_of_xlas_buffers_and_its_stream(monkeypatch):
    """All but the GPU: buffers in host memory, a stand-in for XLA's stream, NumPy's product."""
    a, b = (
        np.arange(count, dtype=np.float32).reshape(size)
        for count, size in ((24, (2, 4, 3)), (40, (2, 5, 4)))
    )
    found, streams = np.empty((2, 3, 5), np.float32), []

    def give_stream(told):
        told._obj.stream = 1234

    def multiply(a, b, out, precision):
        streams.append((dlpack.current_stream(0), precision))
        assert np.from_dlpack(out).ctypes.data == found.ctypes.data
        np.matmul(np.from_dlpack(a), np.from_dlpack(b), out=found)

    api = SimpleNamespace(get_stream=give_stream)
    frame = SimpleNamespace(context=None, api=SimpleNamespace(contents=api))
    buffers = [call_frame.Buffer(each.ctypes.data, each.shape, "float32") for each in (a, b, found)]
    texts = {"layout": "tt", "precision": "tf32"}
    call = call_frame.Call(tuple(buffers[:2]), tuple(buffers[2:]), texts, frame)
    monkeypatch.setattr(target, "matmul", multiply)
    monkeypatch.setattr(registry, "CUDA", dlpack.CPU)
    monkeypatch.setattr(registry, "gpu_of", lambda address: 0)
    target._on_gpu(call)
    np.testing.assert_array_equal(found, a.swapaxes(1, 2) @ b.swapaxes(1, 2))
    assert streams == [(1234, "tf32")]


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import gemmkit.jax as gk
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
a, b = jnp.arange(24.0).reshape(4, 6), jnp.ones((6, 5))
shards = jax.device_put(a, NamedSharding(mesh, P("x")))
local = jax.shard_map(
    gk.matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
)
found = jax.grad(lambda a, b: local(a, b).sum(), (0, 1))(shards, b)
wanted = jax.grad(lambda a, b: (a @ b).sum(), (0, 1))(a, b)
assert all(map(np.allclose, found, wanted))
under_way = jax.jit(gk.matmul)(shards, b)
# Nobody holds these results, nor what they are computed from.
twice = jax.jit(lambda a: gk.matmul(gk.matmul(jnp.sin(a) @ a, a), a))
twice(twice(twice(jnp.ones((64, 64)))))
print("ended")
"""


def test_shards_and_a_program_that_ends_before_its_results():
    told = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    # XLA would wait for ever for what could not be computed after Python's end.
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=told, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_the_snippets_of_the_docs_run():
    run_snippets("jax.md")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_gpu_in_the_order_of_xlas_stream(dtype):
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA")
    rng = np.random.default_rng(2)
    a, b = (jnp.asarray(rng.integers(-2, 3, (2, 320, 320)), dtype) for _ in "ab")

    @jax.jit
    def program(a, b):
        for _ in range(8):
            # Each product needs the one before; reading too soon would show.
            a = jnp.clip(gk.matmul(a, b, transb=True), -2, 2)
        return a

    def expected(a, b):
        for _ in range(8):
            a = np.clip(a @ b.swapaxes(1, 2), -2, 2)
        return a

    found = program(a, b)
    assert found.devices() == a.devices()
    wanted = expected(np.asarray(a, np.float64), np.asarray(b, np.float64))
    np.testing.assert_array_equal(np.asarray(found, np.float64), wanted)
    grads = jax.grad(lambda a, b: gk.matmul(a, b).astype("float32").sum(), (0, 1))(a, b)
    ones = np.ones((2, 320, 320))
    for got, exact in zip(
        grads,
        (
            ones @ np.asarray(b, np.float64).swapaxes(1, 2),
            np.asarray(a, np.float64).swapaxes(1, 2) @ ones,
        ),
        strict=True,
    ):
        # Whole numbers that every type holds exactly, up to 256 in bfloat16.
        np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=2**-8)
