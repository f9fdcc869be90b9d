"""Records of products with prepared operands, and what their timing leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.bench.run import run_kernel
from gemmkit.bench.suites import find_suite, variants
from gemmkit.bench.workload import Workload
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.tune.run import tune

H100 = find_board("h100")
KERNEL = find_kernel("gemm_fp16x3")
CONFIG = KERNEL.configure({"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1})
PROBLEM = GemmProblem(70, 40, 77, precision="fp32", prepared="b")


class Timed(EmulatedDevice):
    """An emulated board that puts launches on a stream, as a GPU does."""

    stream = None

    def work(self, binary, plan, arguments):
        return arguments

    def record(self, works, kept=()):
        raise NotImplementedError


def test_a_record_says_what_was_prepared():
    record = run_kernel(KERNEL, PROBLEM, EmulatedDevice(H100), config=CONFIG)
    assert record.correct
    assert record.problem.prepared == "b"
    assert record.problem.types == "fp32 (precision fp32), B prepared"


def test_each_set_of_buffers_has_a_prepared_operand_of_its_own():
    """Else one would stay in the L2 cache, or be that of another set's B."""
    device = Timed(replace(H100, l2_bytes=3 << 14))
    workload = Workload(PROBLEM, device)
    plan = KERNEL.plan(PROBLEM, CONFIG, device.spec)
    works, kept = workload.works(device, compile_plan(plan, H100.arch, assemble=False), plan)
    assert len(works) > 2
    assert len({each["prepared_b"] for each in works}) == len({each["B"] for each in works})
    assert len({each["B"] for each in works}) == len(works)
    assert len({each["workspace"] for each in works}) == 1
    assert {each["prepared_b"] for each in works} <= {each.address for each in kept}


def test_suites_with_prepared_operands():
    found = variants(find_suite("llm"), precision="fp32", prepared="b")
    assert {each.prepared for each in found} == {"b"}
    assert len(found) == len(find_suite("llm"))
    for given, wanted in (("b", "b"), ("ab", "")):
        found = variants(find_suite("grouped"), prepared=given)
        assert {each.prepared for each in found} == {wanted}


def test_prepared_operands_are_not_tuned():
    with pytest.raises(UsageError, match="measured without prepared operands"):
        tune(PROBLEM)
