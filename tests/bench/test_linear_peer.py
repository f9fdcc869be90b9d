"""Peers of several kernels: what they compute, and a bound for each rounding that they make."""

from __future__ import annotations

import ctypes
import types
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from gemmkit.bench import linear_peer, torch_peer
from gemmkit.bench.baseline import arithmetic_of, stored_steps
from gemmkit.bench.cublas_lt import Fused
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.storage import layouts
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.encoding import decode, encode
from gemmkit.verify.inputs import matrices, residual_matrix
from gemmkit.verify.reference import ACTIVATIONS

FULL = Epilogue("column", "gelu", residual=True, scale=0.7, auxiliary=True)
EPILOGUES = [
    Epilogue(),
    Epilogue("column", "relu"),
    Epilogue("column", "silu"),
    Epilogue("", "gelu_tanh", residual=True),
    Epilogue("column", residual=True),
    Epilogue(scale=0.5),
    FULL,
]


@pytest.mark.parametrize(
    ("epilogue", "fused", "stored"),
    [
        (Epilogue(), ("product",), ()),
        (Epilogue("column", "relu"), ("product",), ("product",)),
        (Epilogue("column", "relu"), ("product", "bias"), ()),
        (Epilogue("column", "gelu"), ("product",), ("product", "bias")),
        (Epilogue("column", "gelu"), ("product", "bias"), ("bias",)),
        (Epilogue("", "relu", scale=2.0), ("product",), ("activation",)),
        (Epilogue("column", "relu", residual=True), ("product",), ("product", "bias")),
        (FULL, ("product",), ("product", "bias", "activation", "scale")),
        (FULL, ("product", "bias", "activation"), ("activation", "scale")),
    ],
    ids=str,
)
def test_what_is_stored_between_kernels(epilogue, fused, stored):
    assert stored_steps(epilogue, fused) == stored


def kernel_by_kernel(problem, inputs, stored):
    """A result by fp32 kernels which store their results in C's type after those steps."""
    dtype, epilogue = problem.result_dtype, problem.epilogue
    a, b, _ = matrices(problem, inputs)

    def kept(step, values):
        values = values.astype(np.float32)
        return decode(encode(values, dtype), dtype) if step in stored else values

    x = kept("product", a[:] @ b[:])
    if epilogue.bias:
        x = x + decode(inputs.bias, dtype)
    x = kept("bias", x)
    y = kept("activation", ACTIVATIONS[str(epilogue.activation)](x.astype(float)))
    if epilogue.scale != 1:
        y = y * np.float32(epilogue.scale)
    y = kept("scale", y)
    if epilogue.residual:
        y = y + residual_matrix(problem, inputs)[:]
    c = inputs.c.copy()
    layouts(problem)[2].view(c)[0][:] = encode(y.astype(np.float32), dtype)
    return c, None if inputs.auxiliary is None else encode(x, dtype).ravel()


@pytest.mark.parametrize("epilogue", EPILOGUES[1:], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_each_store_has_its_rounding_in_the_bound(epilogue, dtype, kind):
    problem = GemmProblem(48, 40, 64, dtype=dtype, epilogue=epilogue)
    inputs = make_inputs(problem, 3, kind)
    stored = stored_steps(epilogue)
    reference = Reference(problem, inputs)
    allowed = reference.under(arithmetic_of(problem, stored))
    result = kernel_by_kernel(problem, inputs, stored)
    verdict = allowed.check(*result)
    assert verdict.correct, verdict.detail
    if dtype == "float32":
        assert verdict.arithmetic == reference.check(*result).arithmetic == "fp32"
    elif kind == "normal" and len(stored) > 1:
        assert f"stored as {dtype} between kernels" in verdict.arithmetic
        # One rounding less than they make is too few for at least one element.
        less = reference.under(arithmetic_of(problem, stored[:1]))
        assert less.check(*result).error_ratio > verdict.error_ratio


def test_a_bound_of_one_rounding_refuses_results_that_were_rounded_thrice():
    epilogue = Epilogue("column", "none", residual=True)
    problem = GemmProblem(256, 256, 16, dtype="bfloat16", epilogue=epilogue)
    inputs = make_inputs(problem, 1)
    result, _ = kernel_by_kernel(problem, inputs, ("product", "bias"))
    assert not Reference(problem, inputs).check(result).correct
    arithmetic = arithmetic_of(problem, ("product", "bias"))
    assert Reference(problem, inputs, arithmetic=arithmetic).check(result).correct


@pytest.mark.parametrize("spoiled", [0.05, float("nan")])
def test_wrong_results_stay_wrong(spoiled):
    problem = GemmProblem(48, 40, 64, dtype="float16", epilogue=FULL)
    inputs = make_inputs(problem, 3)
    result, auxiliary = kernel_by_kernel(problem, inputs, stored_steps(FULL))
    result[7] += np.float16(spoiled)
    allowed = Reference(problem, inputs, arithmetic=arithmetic_of(problem, stored_steps(FULL)))
    assert not allowed.check(result, auxiliary).correct


def test_large_products_of_several_kernels_pass_freivalds_check():
    epilogue = Epilogue("column", "none", residual=True)
    problem = GemmProblem(200, 150, 96, dtype="bfloat16", epilogue=epilogue)
    inputs, stored = make_inputs(problem, 1), ("product", "bias")
    result, _ = kernel_by_kernel(problem, inputs, stored)
    arithmetic = arithmetic_of(problem, stored)
    sampled = Reference(problem, inputs, "sampled", arithmetic)
    assert "Freivalds" in sampled.method
    assert sampled.check(result).correct


@pytest.mark.parametrize(
    ("problem", "name", "steps", "residual", "left"),
    [
        ({}, "DEFAULT", 1, False, False),
        ({"epilogue": Epilogue(True, "relu")}, "RELU_BIAS", 3, False, False),
        ({"epilogue": Epilogue(True, "silu")}, "BIAS", 2, False, True),
        ({"epilogue": Epilogue(True, residual=True)}, "BIAS", 2, True, False),
        ({"epilogue": Epilogue(True, residual=True), "beta": 1.0}, "BIAS", 2, False, True),
        ({"epilogue": Epilogue(True, "relu", residual=True)}, "RELU_BIAS", 3, False, True),
        ({"epilogue": Epilogue(True, scale=2.0)}, "BIAS", 2, False, True),
        ({"epilogue": Epilogue("row", "relu")}, "DEFAULT", 1, False, True),
        ({"epilogue": Epilogue("row", "relu"), "transc": True}, "RELU_BIAS", 3, False, False),
        (
            {"epilogue": Epilogue(True, "gelu_tanh", auxiliary=True)},
            *("GELU_AUX_BIAS", 3, False, False),
        ),
        ({"epilogue": Epilogue(True, "silu", auxiliary=True)}, "BIAS", 2, False, True),
    ],
    ids=str,
)
def test_what_cublaslt_fuses(problem, name, steps, residual, left):
    fused = Fused.of(GemmProblem(8, 8, 8, **problem))
    assert (fused.name, fused.residual, fused.left) == (name, residual, left)
    assert (
        fused.steps == ("product", "bias", "activation")[: steps if isinstance(steps, int) else 1]
    )


def test_an_activation_that_cublaslt_lacks_is_left():
    problem = GemmProblem(8, 8, 8, dtype="float64", epilogue=Epilogue(True, "gelu_tanh"))
    fused = Fused.of(problem, matrices=False, activation=False)
    assert (fused.name, fused.steps, fused.left) == ("BIAS", ("product", "bias"), True)


@pytest.fixture
def on_the_cpu(monkeypatch):
    """PyTorch, which works on host memory by addresses as it would on a GPU's."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")

    def tensor(_torch, _ordinal, address, shape, steps, dtype="float32"):
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        memory = (ctypes.c_byte * (reach * ITEM_BYTES[dtype])).from_address(int(address))
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype))
        return flat.as_strided(shape, steps)

    @contextmanager
    def on(_torch, _stream, _ordinal):
        yield

    for module in (torch_peer, linear_peer):
        monkeypatch.setattr(module, "cuda_torch", lambda: torch)
        monkeypatch.setattr(module, "on_stream", on)
    monkeypatch.setattr(torch_peer, "device_tensor", tensor)
    return types.SimpleNamespace(
        stream=types.SimpleNamespace(device=types.SimpleNamespace(device_id=0))
    )


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("kind", [torch_peer.TorchBaseline, linear_peer.LinearBaseline])
def test_pytorch_computes_the_epilogue(on_the_cpu, kind, epilogue, dtype, layout):
    problem = GemmProblem(24, 40, 32, dtype=dtype, epilogue=epilogue).laid_out(layout)
    inputs = make_inputs(problem)
    names = {"a": "A", "b": "B", "c": "C"}
    baseline = kind(on_the_cpu)
    for number in range(len(baseline.candidates(problem, []))):
        arrays = {name: array.copy() for name, array in inputs.arrays.items()}
        bound = {names.get(name, name): array.ctypes.data for name, array in arrays.items()}
        way = [*baseline.candidates(problem, [bound]).values()][number]
        (way.judged or way.works)[0](None)
        reference = Reference(problem, inputs, arithmetic=arithmetic_of(problem, way.stored))
        verdict = reference.check(arrays["c"], arrays.get("auxiliary"))
        assert verdict.correct, verdict.detail


def test_linear_is_what_users_write(on_the_cpu):
    baseline = linear_peer.LinearBaseline(on_the_cpu)
    problem = GemmProblem(24, 40, 32, epilogue=Epilogue("column", "gelu"))
    ways = baseline.candidates(problem, [])
    assert [way.choice for way in ways.values()] == ["eager", "compiled"]
    told = [name.partition(": ")[2] for name in ways]
    assert told == ["F.linear, bias+gelu, op by op", "F.linear, bias+gelu, torch.compile"]
    for changes in (
        {"alpha": 2.0},
        {"batch": 3},
        {"epilogue": Epilogue("row")},
        {"out_dtype": "float64"},
        {"transc": True},
    ):
        with pytest.raises(UnsupportedProblem):
            baseline.candidates(replace(problem, ldc=0, **changes), [])
