"""`allgather_wgmma`: rows of A in two matrices, some of which come later, on the emulator; to the
bits of `gemm_wgmma`."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Further, Operands, bind_arguments
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.production import gemm_wgmma
from gemmkit.kernels.production.allgather_wgmma import Shares, allgather_kernel, raster_rows
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1, "cluster_m": 1}
TURNS = {**NARROW, "stages": 3, "consumers": 2, "pingpong": 2}
ALONG_M = {**NARROW, "BN": 64, "cluster_m": 2}
ALONG_N = {**NARROW, "BN": 64, "cluster_n": 2, "stages": 3}


# Few SMs, so that blocks go from tile to tile and from share to share.
@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(replace(H100, sm_count=4), sanitize=True)


def stored(shape, rng):
    """bfloat16 of numbers with many digits."""
    return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def launched(device, kernel, problem, keys, arrays, further=None):
    """What a kernel leaves in C, and what the sanitizer finds."""
    plan = kernel.plan(problem, kernel.configure(keys), device.spec)
    uploaded = {name: device.upload(np.ascontiguousarray(each)) for name, each in arrays.items()}
    epilogue = problem.epilogue
    operands = Operands(
        *(uploaded[name] for name in "abc"),
        uploaded["bias"] if epilogue.bias else None,
        Further(uploaded["residual"], problem.n) if epilogue.residual else None,
    )
    arguments = bind_arguments(problem, operands)
    for name, value in (further or {}).items():
        arguments[name] = uploaded[value].address if isinstance(value, str) else value
    binary = compile_plan(plan, device.spec.arch, assemble=device.kind != "emulator")
    launch = device.launch(binary, plan, arguments)
    found = np.empty_like(arrays["c"])
    device.download(uploaded["c"], found)
    return found, launch.findings


def gathered(device, keys, problem, shares, flags=None):
    """The same by both kernels: C of all rows in place, that of rows in two matrices, and findings;
    own rows are not among the gathered ones."""
    rng = np.random.default_rng(5)
    m, n, k = problem.m, problem.n, problem.k
    whole = {
        "a": stored((m, k), rng),
        "b": stored((n, k) if problem.transb else (k, n), rng),
        "c": stored((m, n), rng),
        "bias": stored((n,), rng),
        "residual": stored((m, n), rng),
    }
    numbers = shares.numbers(problem)
    own = slice(numbers["first_row"], numbers["first_row"] + numbers["own_rows"])
    apart = {**whole, "own": whole["a"][own].copy(), "a": whole["a"].copy()}
    apart["a"][own] = 0x7FC0
    apart["arrived"] = np.ones(shares.ranks - 1, np.int32) if flags is None else flags
    further = {**numbers, "own": "own", "arrived": "arrived"}
    expected, findings = launched(device, gemm_wgmma.KERNEL, problem, keys, whole)
    assert not findings
    kernel = allgather_kernel(shares.ranks, shares.rows)
    return expected, *launched(device, kernel, problem, keys, apart, further)


CASES = pytest.mark.parametrize(
    ("keys", "shares", "rest"),
    [
        (NARROW, Shares(1, 3, 128), {"m": 320}),
        (TURNS, Shares(2, 3, 128), {"m": 300, "transb": True}),
        (ALONG_M, Shares(0, 2, 128), {"m": 200, "epilogue": "bias+relu"}),
        (ALONG_M, Shares(1, 2, 128), {"m": 130, "transb": True, "beta": 0.5}),
        (ALONG_N, Shares(1, 2, 64), {"m": 128, "epilogue": "bias+residual", "alpha": 0.3}),
    ],
    ids=["one consumer", "ping-pong", "along M", "boxes moved by TMA", "along N"],
)


@CASES
@pytest.mark.sample(2)
def test_rows_of_several_gpus(device, keys, shares, rest):
    problem = GemmProblem(n=72, k=136, dtype="bfloat16", **rest)
    expected, found, findings = gathered(device, keys, problem, shares)
    assert not findings, findings[0].message
    assert np.array_equal(found, expected)


@pytest.mark.gpu
@CASES
def test_a_gpu_has_the_same_bits(keys, shares, rest):
    from gemmkit.devices.cuda import CudaDevice

    problem = GemmProblem(n=72, k=136, dtype="bfloat16", **rest)
    expected, found, _ = gathered(CudaDevice(), keys, problem, shares)
    assert np.array_equal(found, expected)


def test_a_share_that_does_not_come_is_waited_for():
    device = EmulatedDevice(replace(H100, sm_count=4), sanitize=True, max_steps=100_000)
    problem = GemmProblem(192, 32, 64, dtype="bfloat16")
    flags = np.array([1, 0], np.int32)
    _, _, findings = gathered(device, NARROW, problem, Shares(1, 3, 64), flags)
    assert [each.kind for each in findings] == ["endless"]
    assert "it is at scheduler/arriving_rows.cuh" in findings[0].message


@pytest.mark.parametrize(
    ("keys", "shares", "changes", "message"),
    [
        ({}, Shares(0, 2, 384), {}, "shares of 384 rows are not whole tiles of BM × cluster_m"),
        ({"BM": 16, "cluster_m": 1}, Shares(0, 2, 384), {}, "BM = 16: tiles that are computed as"),
        ({"cluster_k": 2, "cluster_m": 1}, Shares(0, 2, 384), {}, "cluster_k = 2: blocks that"),
        ({}, Shares(0, 3, 512), {}, "768 rows in shares of 512 are not those of 3 ranks"),
        ({}, Shares(0, 3, 256), {"k": 132}, "TMA needs rows that lie a multiple of 16 bytes"),
        ({}, Shares(0, 3, 256), {"transa": True}, "takes NN, NT, not TN"),
        ({}, Shares(0, 3, 256), {"batch": 2}, "computes one product per launch, not a batch"),
    ],
)
def test_what_it_refuses(keys, shares, changes, message):
    problem = GemmProblem(**{"m": 768, "n": 256, "k": 128, "dtype": "bfloat16"} | changes)
    kernel = allgather_kernel(shares.ranks, shares.rows)
    assert re.search(message, str(kernel.supports(problem, kernel.configure(keys), H100)))


@pytest.mark.parametrize(
    ("share", "rows"),
    # Of 8 rows of tiles at most: shares that have so many, fewer, a multiple, and none near.
    [(2048, 8), (1024, 4), (3072, 6), (4096, 8), (2304, 8), (256, 1)],
)
def test_groups_of_tiles_have_rows_of_one_share(share, rows):
    assert raster_rows(share, gemm_wgmma.KERNEL.default) == rows
