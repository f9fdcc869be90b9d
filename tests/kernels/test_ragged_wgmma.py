"""`ragged_wgmma`: one A whose rows are divided among groups, on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Further, Operands, bind_arguments
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.production.ragged_wgmma import KERNEL, most_tiles, ragged_problem, signature
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1, "pingpong": 1}
TURNS = {**NARROW, "stages": 3, "consumers": 2, "pingpong": 2}
TOGETHER = {**NARROW, "BM": 128, "consumers": 2, "cluster_m": 2}
SWAPPED = {**NARROW, "BM": 16, "BN": 64}
ROW = {**SWAPPED, "BM": 8}
STORAGE = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}

# Groups without rows at both ends and between, of a row, of whole tiles, and of more than one.
ENDS = (0, 1, 1, 65, 65, 193, 200)


@pytest.fixture(scope="module")
def device():
    # Few SMs, so that blocks go from tile to tile and from group to group.
    return EmulatedDevice(replace(H100, sm_count=4), sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch, assemble=False)


def stored(values, dtype):
    """Small integers, which all types hold."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(STORAGE[dtype])


def read(stored_values, dtype):
    if dtype == "bfloat16":
        return (stored_values.astype(np.uint32) << 16).view(np.float32)
    return stored_values.astype(np.float32)


def run(
    device,
    keys,
    layout="nn",
    ends=ENDS,
    rows=200,
    n=40,
    k=72,
    own_bias=True,
    offsets="int32",
    poisoned=None,
    **rest,
):
    """A launch that breaks no rule: what lies in C, and what should.

    Rows `poisoned` of A are NaN.
    """
    transposed = {"transb": layout == "nt"}
    groups = len(ends)
    problem = ragged_problem(
        rows, n, k, groups, **{"dtype": "bfloat16", "out_dtype": "bfloat16", **transposed, **rest}
    )
    plan = KERNEL.plan(problem, KERNEL.configure(keys), device.spec)
    if not own_bias:
        plan = replace(plan, signature=signature("0"))
    if offsets == "int64":
        plan = replace(plan, entry=plan.entry.replace(", int,", ", long long,"))
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-2, 3, shape) for shape in ((rows, k), (groups, k, n)))
    c, residual = rng.integers(-3, 4, (2, rows, n))
    kind, out = problem.dtype, problem.out_dtype
    bias = rng.integers(-3, 4, (groups, n) if own_bias else (n,))
    arrays = {
        "a": stored(a, kind),
        "b": stored(b.swapaxes(1, 2) if transposed["transb"] else b, kind),
        "c": stored(c, out),
        "bias": stored(bias, out),
        "residual": stored(residual, out),
        "auxiliary": stored(np.full((rows, n), 77), out),
    }
    if poisoned is not None:
        arrays["a"][poisoned] = 0x7FC0
    uploaded = {name: device.upload(np.ascontiguousarray(each)) for name, each in arrays.items()}
    epilogue = problem.epilogue
    operands = Operands(
        uploaded["a"],
        uploaded["b"],
        uploaded["c"],
        uploaded["bias"] if epilogue.bias else None,
        Further(uploaded["residual"], n) if epilogue.residual else None,
        Further(uploaded["auxiliary"], n) if epilogue.auxiliary else None,
    )
    there = device.upload(np.array(ends, offsets))
    arguments = bind_arguments(problem, operands) | plan.table.arguments
    arguments |= {"offsets": there.address}
    binary = compiled(replace(plan, grid=(1, 1, 1), tensor_maps=(), table=None))
    launch = device.launch(binary, plan, arguments)
    assert not launch.findings, launch.findings[0].message
    found = np.empty_like(arrays["c"])
    device.download(uploaded["c"], found)
    expected = c.astype(np.float64)
    start = 0
    for group, end in enumerate(np.clip(ends, 0, rows).tolist()):
        of_rows = slice(start, end)
        x = problem.alpha * (a[of_rows] @ b[group]) + problem.beta * c[of_rows]
        if epilogue.bias:
            x = x + (bias[group] if own_bias else bias)
        if epilogue.activation == "relu":
            x = np.maximum(x, 0)
        if epilogue.residual:
            x = x + residual[of_rows]
        expected[of_rows] = x
        start = max(start, end)
    return read(found, out), read(stored(expected, out), out)


@pytest.mark.parametrize(
    ("keys", "layout", "rest"),
    [
        (NARROW, "nn", {}),
        (TURNS, "nt", {"epilogue": "bias+relu+residual", "beta": 2.0, "dtype": "float16"}),
        (TOGETHER, "nt", {"alpha": 2.0, "out_dtype": "float32", "epilogue": "bias"}),
        (SWAPPED, "nt", {"beta": 1.0}),
        (ROW, "nn", {"out_dtype": "float32"}),
    ],
)
@pytest.mark.sample(2)
def test_rows_of_each_group(device, keys, layout, rest):
    if rest.get("dtype") == "float16":
        rest = {**rest, "out_dtype": "float16"}
    found, expected = run(device, keys, layout, **rest)
    np.testing.assert_allclose(found, expected, rtol=2**-8)
    if keys in (NARROW, TURNS):
        # Rows past the last offset stay as they are, and a group may have all rows.
        for ends in ((30, 100), (200,)):
            found, expected = run(device, keys, layout, ends, **rest)
            np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_neighbors_and_offsets_of_any_kind_do_no_harm(device):
    """Rows of other groups that are not finite, and offsets past both ends."""
    expected, _ = run(device, NARROW, ends=(30, 100))
    found, _ = run(device, NARROW, ends=(30, 100), poisoned=slice(100, None))
    np.testing.assert_array_equal(found[:100], expected[:100])
    found, expected = run(device, NARROW, ends=(-5, 30, 1 << 30))
    np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_a_bias_for_all_groups_and_offsets_of_64_bits(device):
    found, expected = run(device, SWAPPED, own_bias=False, epilogue="bias", offsets="int64")
    np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_more_groups_than_a_warp_has_lanes(device):
    rows = np.random.default_rng(1).integers(0, 3, 70)
    found, expected = run(device, ROW, ends=tuple(np.cumsum(rows).tolist()), rows=int(rows.sum()))
    np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_what_it_refuses():
    def refusal(keys=NARROW, rows=64, n=40, k=72, groups=3, **rest):
        problem = ragged_problem(rows, n, k, groups, **{"dtype": "float16", **rest})
        return KERNEL.supports(problem, KERNEL.configure(keys), H100) or ""

    assert refusal() == ""
    assert "16 bytes" in refusal(k=71)
    assert "nothing to load" in refusal(k=0)
    assert "nothing to load" in refusal(alpha=0.0)
    with pytest.raises(UsageError, match="ragged groups are rows of A"):
        refusal(transa=True)
    assert "registers" in refusal({**TURNS, "BM": 128, "BN": 192})
    assert "stages" in refusal({**SWAPPED, "stages": 25})
    shared = GemmProblem(64, 40, 72, batch=3, dtype="float16")
    assert "not a batch" in KERNEL.supports(shared, KERNEL.configure(NARROW), H100)
    others = GemmProblem.of_groups([(64, 40, 72), (8, 40, 72)], dtype="float16")
    assert "ragged groups" in KERNEL.supports(others, KERNEL.configure(NARROW), H100)


def test_blocks_for_the_most_tiles_of_any_division():
    problem = ragged_problem(200, 40, 72, 7, dtype="float16")
    config = KERNEL.configure(NARROW)
    # Each of 7 groups may have a partial tile of rows besides 200 // 64 whole ones.
    assert most_tiles(200, 40, 7, config) == (3 + 7) * 2
    assert KERNEL.plan(problem, config, H100).grid == (20, 1, 1)
    assert most_tiles(0, 40, 7, config) == 0
