"""Parameters of an activation of one's own: arguments of the kernel, on each way to a launch."""

import numpy as np
import pytest

import gemmkit
import gemmkit.errors
import gemmkit.nn
from emulated_gpu import GpuArray, install
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.devices.packing import argument_offsets, entry_parameters
from gemmkit.gpu import find_board
from gemmkit.jit import compiler
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
# Named as arguments and types of the kernels are, and as what macros of gemmkit's put there.
EXPRESSION = "x > alpha ? x * A + M : epilogue_0 * x"
A = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
B = np.eye(4, dtype=np.float32)


def custom(alpha, scale, shift, slope, **more):
    return gemmkit.Epilogue.custom(
        EXPRESSION, epilogue_0=slope, M=shift, A=scale, alpha=alpha, **more
    )


def expected(x, alpha, scale, shift, slope):
    return np.where(x > alpha, x * scale + shift, slope * x)


VALUES = ((0.5, 2.0, 1.0, 0.25), (-2.0, 3.0, -1.5, 0.0), (1e-3, -1.0, 64.0, -0.1))


@pytest.fixture
def compilations(monkeypatch):
    """The entries that the CUDA compiler is asked for, past the caches in memory."""
    found = []

    def counted(request, *arguments, **options):
        found.append(request.key(""))
        return original(request, *arguments, **options)

    original = compiler._compile
    monkeypatch.setattr(compiler, "_compile", counted)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.sample(3)
def test_a_new_value_compiles_nothing(compilations, dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    for values in VALUES:
        result = gemmkit.matmul(a, b, epilogue=custom(*values), device="emulator")
        wanted = expected(A.astype("f8"), *values).astype(dtype)
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
        if dtype == "float64":
            # -0.1 as fp32 is another number.
            below = values[0] >= A
            np.testing.assert_array_equal(result[below], (values[3] * A.astype("f8"))[below])
    assert len(set(compilations)) <= 1


def test_grouped_products_take_them_too(compilations):
    for values in VALUES:
        results = gemmkit.grouped_matmul(
            [A, A[:1]], [B, B], epilogue=custom(*values), device="emulator"
        )
        for result, x in zip(results, (A, A[:1]), strict=True):
            np.testing.assert_allclose(result, expected(x, *values), rtol=1e-6)
    assert len(set(compilations)) <= 1


def test_a_launch_on_a_gpu_takes_them(monkeypatch, compilations):
    install(monkeypatch)
    a, b = GpuArray.of(A), GpuArray.of(B)
    for values in VALUES:
        result = gemmkit.matmul(a, b, epilogue=custom(*values))
        np.testing.assert_allclose(result.values, expected(A, *values), rtol=1e-6)
    assert len(set(compilations)) <= 1


@pytest.mark.parametrize("name", [each.name for each in LADDER if each.fuses])
def test_every_rung_that_fuses_declares_and_passes_them_on(name):
    source = find_kernel(name).source
    assert source.count(" CUSTOM_PARAMETERS) {") == 1
    made = source.count("Epilogue{") + source.count("Epilogue epilogue{")
    assert source.count(" CUSTOM}") == made > 0


@pytest.mark.parametrize("name", ["warp_tiled", "gemm_split_k", "gemm_skinny", "gemm_stream_k"])
@pytest.mark.sample(2)
def test_kernels_of_each_make_compile_with_them(name):
    kernel = find_kernel(name)
    problem = GemmProblem(3, 4, 4, epilogue=custom(*VALUES[0]))
    plan = kernel.plan(problem, kernel.default, BOARD)
    binary = compile_plan(plan, BOARD.arch)
    assert argument_offsets(binary, plan).keys() >= problem.epilogue.arguments.keys()
    places = plan.structs or (None,) * len(plan.signature)
    parameters = entry_parameters(binary.ptx, binary.entry)
    assert len(parameters) == len(places)
    for struct, parameter in zip(places, parameters, strict=True):
        assert struct is None or struct.size == parameter.size


@pytest.mark.parametrize("name", ["naive", "shared_tiling"])
def test_rungs_without_further_matrices_apply_them(name):
    kernel, values = find_kernel(name), VALUES[0]
    problem = GemmProblem(3, 4, 4, epilogue=custom(*values))
    plan = kernel.plan(problem, kernel.default, BOARD)
    device = EmulatedDevice(BOARD)
    a, b, c = device.upload(A), device.upload(B), device.empty(A.nbytes)
    device.launch(compile_plan(plan, BOARD.arch), plan, bind_arguments(problem, Operands(a, b, c)))
    result = np.empty_like(A)
    device.download(c, result)
    np.testing.assert_allclose(result, expected(A, *values), rtol=1e-6)


def test_an_expression_without_parameters_is_no_argument():
    problem = GemmProblem(3, 4, 4, epilogue=gemmkit.Epilogue.custom("x * x"))
    kernel = find_kernel("naive")
    assert kernel.plan(problem, kernel.default, BOARD).signature == kernel.signature


@pytest.mark.parametrize(
    "values", [(0.0, -0.0, 0.0), (np.inf, -np.inf), (np.nan, 1.0, np.nan), (1e-40, -1e-45)]
)
def test_values_that_compare_alike_or_not_at_all(monkeypatch, values):
    install(monkeypatch)
    a, b = GpuArray.of(A), GpuArray.of(B)
    for value in values:
        epilogue = gemmkit.Epilogue.custom("copysignf(fminf(x, s), s)", s=value)
        wanted = np.copysign(np.fmin(A, np.float32(value)), np.float32(value))
        for result in (
            gemmkit.matmul(A, B, epilogue=epilogue, device="emulator"),
            gemmkit.matmul(a, b, epilogue=epilogue).values,
            gemmkit.nn.linear(A, B, activation=epilogue.activation, device="emulator"),
        ):
            np.testing.assert_array_equal(result, wanted)
            np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted))


def test_names_that_the_kernels_use_themselves():
    names = ("T", "apply", "Custom", "cls", "self", "number", "expf", "INFINITY")
    epilogue = gemmkit.Epilogue.custom(
        " + ".join(("x", *names)), **{name: 2.0**place for place, name in enumerate(names)}
    )
    np.testing.assert_array_equal(
        gemmkit.matmul(A, B, epilogue=epilogue, device="emulator"), A + 255
    )


@pytest.mark.parametrize("name", ["float", "for", "true", "this", "x", "é", "NULL"])
def test_names_that_no_variable_may_have(name):
    with pytest.raises(gemmkit.errors.UsageError, match=f"cannot be called '{name}'"):
        gemmkit.Epilogue.custom("x", **{name: 1.0})


@pytest.mark.parametrize("value", ["3", None, 1j])
def test_a_parameter_that_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"s = .* is not a number"):
        gemmkit.Epilogue.custom("x * s", s=value)


def test_a_parameter_beyond_the_range_of_floats():
    with pytest.raises(ValueError, match="exceeds fp32's range"):
        gemmkit.Epilogue.custom("x * s", s=1e39)


def test_nan_and_infinity_are_known():
    epilogue = gemmkit.Epilogue.custom("x > 1.0f ? NAN : x > 0.0f ? INFINITY : fmaxf(x, -INFINITY)")
    result = gemmkit.matmul(A, B, epilogue=epilogue, device="emulator")
    product = A @ B
    assert np.isnan(result[product > 1]).all()
    assert np.isposinf(result[(product > 0) & (product <= 1)]).all()
    np.testing.assert_array_equal(result[product <= 0], product[product <= 0])
