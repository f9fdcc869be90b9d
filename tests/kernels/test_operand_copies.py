"""Operands that TMA cannot load are copied first: which ones, and where to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.copying import copying
from gemmkit.kernels.operand_copies import (
    aligned_copies,
    place_in_memory,
    workspace_bytes,
)
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_wgmma")
H100 = find_board("h100")
CONFIG = KERNEL.configure({"BM": 64, "BN": 64, "consumers": 1, "stages": 2, "cluster_m": 1})
PROBLEMS = {
    "both": (GemmProblem(72, 131, 75, dtype="bfloat16"), "AB"),
    "A alone": (GemmProblem(72, 136, 75, dtype="bfloat16", transa=False), "A"),
    "B alone": (GemmProblem(72, 131, 136, dtype="bfloat16"), "B"),
    "neither": (GemmProblem(71, 131, 136, dtype="bfloat16", transb=True), ""),
    "A transposed": (GemmProblem(67, 136, 40, dtype="float16", transa=True), "A"),
    "both transposed": (GemmProblem(67, 70, 41, dtype="float16", transa=True, transb=True), "AB"),
    "addresses": (GemmProblem(72, 136, 72, dtype="bfloat16", alignment=2), "AB"),
    "gaps": (GemmProblem(72, 136, 72, lda=77, ldb=139, dtype="bfloat16", alignment=4), "AB"),
    "even rows": (GemmProblem(72, 130, 74, dtype="bfloat16", alignment=4), "AB"),
    "more than a segment": (GemmProblem(9, 24, 611, dtype="bfloat16"), "A"),
    "one row, one column": (GemmProblem(1, 1, 77, dtype="bfloat16"), "B"),
    "an element": (GemmProblem(1, 1, 1, dtype="bfloat16", transb=True), ""),
    "a batch": (GemmProblem(67, 70, 41, batch=3, dtype="bfloat16"), "AB"),
    "a batch of one B": (
        GemmProblem(67, 70, 41, batch=3, stride_b=BROADCAST, dtype="bfloat16"),
        "AB",
    ),
    "a row that products share": (
        GemmProblem(1, 16, 7, batch=2, stride_a=BROADCAST, dtype="bfloat16"),
        "",
    ),
    "a line of B that products share": (
        GemmProblem(9, 1, 9, batch=2, transb=True, stride_b=BROADCAST, dtype="bfloat16"),
        "A",
    ),
    "products that lie apart": (
        GemmProblem(8, 16, 24, batch=2, stride_a=201, stride_b=384, dtype="bfloat16"),
        "A",
    ),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(("problem", "copied"), PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.sample(5)
def test_results_and_which_operands(device, problem, copied):
    check_exact(problem, run_typed(problem, device, kernel="gemm_wgmma", config=CONFIG))
    plan = KERNEL.plan(problem, CONFIG, H100)
    assert "".join(each.operand for each in aligned_copies(problem)) == copied
    assert (plan.before is not None) == bool(copied)
    assert "".join(plan.copied) == copied
    assert bool(plan.workspace_bytes) == bool(copied)


def test_copies_hold_the_matrices_lines(device):
    """A batch of both operands, byte for byte, of the elements and nothing besides."""
    problem = PROBLEMS["a batch"][0]
    copies = aligned_copies(problem)
    plan = copying(problem, copies, H100)
    binary = compile_plan(plan, H100.arch, assemble=False)
    random = np.random.default_rng(3)
    matrices = {
        "A": random.integers(0, 1 << 16, (3, 67, 41), dtype=np.uint16),
        "B": random.integers(0, 1 << 16, (3, 41, 70), dtype=np.uint16),
    }
    kept = {name: device.upload(array) for name, array in matrices.items()}
    workspace = device.empty(workspace_bytes(copies))
    launch = device.launch(
        binary,
        plan,
        {
            **{name: buffer.address for name, buffer in kept.items()},
            "lda": 41,
            "stride_a": 67 * 41,
            "ldb": 70,
            "stride_b": 41 * 70,
            "workspace": workspace.address,
        },
    )
    assert not launch.findings
    found = np.empty(workspace.nbytes // 2, np.uint16)
    device.download(workspace, found)
    for each in copies:
        assert each.ld % 8 == 0
        assert each.offset % 256 == 0
        own = found[each.offset // 2 :][: each.elements].reshape(each.count, each.lines, each.ld)
        assert np.array_equal(own[..., : each.length], matrices[each.operand])


def test_nothing_is_read_where_alpha_is_zero(device):
    problem = replace(PROBLEMS["both"][0], alpha=0.0, beta=0.5)
    assert KERNEL.plan(problem, CONFIG, H100).before is None
    check_exact(problem, run_typed(problem, device, kernel="gemm_wgmma", config=CONFIG))


def test_an_estimate_counts_the_copies():
    candidate = CostedCandidate(Candidate("gemm_wgmma", KERNEL.default), H100)
    aligned, unaligned = (
        candidate.estimate(GemmProblem(4096, 4096, k, dtype="bfloat16", transb=True))
        for k in (4096, 4097)
    )
    moved = 2 * 2 * (4096 * 4097) * 2
    assert unaligned.work.copied_bytes == moved
    assert aligned.work.copied_bytes == 0
    least = moved / (H100.dram_gb_per_s * 1e3)
    assert unaligned.microseconds > aligned.microseconds + least


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("workspace", ("workspace", 0)),
        ("workspace + 512", ("workspace", 512)),
        ("prepared_b + 256", ("prepared_b", 256)),
        ("semaphores", None),
        ("workspace+1", None),
    ],
)
def test_addresses_in_memory_for_copies(text, place):
    assert place_in_memory(text) == place


@pytest.mark.gpu
@pytest.mark.parametrize(("problem", "copied"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_on_a_gpu(problem, copied):
    from gemmkit.devices.cuda import CudaDevice

    check_exact(problem, run_typed(problem, CudaDevice(), kernel="gemm_wgmma", config=CONFIG))
