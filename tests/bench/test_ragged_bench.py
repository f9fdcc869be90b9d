"""Ragged groups measured and checked as other problems are: what is run, and what is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmkit.analysis.explain.build import explain
from gemmkit.bench.check import check
from gemmkit.bench.default_cases import default_cases
from gemmkit.bench.groups import single_products
from gemmkit.bench.run import run_kernel
from gemmkit.bench.suites import ragged, variants
from gemmkit.bench.torch_groups import GroupedOperands
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel, kernels_for
from gemmkit.problem import GemmProblem
from gemmkit.record import ProblemRecord

H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
TEXT = "ragged:3x40x72,0x40x72,70x40x72,7x40x72"


@pytest.fixture(scope="module")
def device():
    # Few SMs, so that blocks go from tile to tile and from group to group.
    return EmulatedDevice(replace(H100, sm_count=4))


@pytest.mark.parametrize("epilogue", ["none", "bias+relu+residual+aux", "row_bias+residual"])
@pytest.mark.parametrize(
    ("name", "config"),
    [("ragged_wgmma", NARROW), ("grouped_wgmma", NARROW), ("grouped_typed", {"BM": 32, "BN": 64})],
)
def test_a_launch_is_measured_whichever_way_it_reads_the_groups(device, name, config, epilogue):
    kernel = find_kernel(name)
    problem = GemmProblem.of_groups(TEXT, "nt", dtype="bfloat16", beta=0.5)
    problem = replace(problem, epilogue=type(problem.epilogue).parse(epilogue))
    assert kernel in kernels_for([problem])
    record = run_kernel(kernel, problem, device, config=kernel.configure(config), assemble=False)
    assert record.correct, record.check
    assert record.problem.groups == TEXT
    # A record tells the problem.
    assert Groups.parse(record.problem.groups) == problem.groups.unpitched(problem.transposed)
    assert isinstance(record.problem, ProblemRecord)


def test_a_kernel_that_misplaces_rows_is_found(device):
    """Groups end a row early: where no gap lies beside them, results are wrong."""
    kernel = find_kernel("ragged_wgmma")
    problem = GemmProblem.of_groups("ragged:5x40x72,9x40x72", "nt", dtype="bfloat16")
    off_by_one = replace(kernel, launch=_with_table(kernel, lambda ends: ends - 1))
    record = run_kernel(
        off_by_one, problem, device, config=kernel.configure(NARROW), assemble=False
    )
    assert not record.correct
    assert "2 of 2 products are wrong" in record.check


def _with_table(kernel, change):
    """Its launch, with other offsets in memory."""

    class Table:
        def __init__(self, own):
            self.tiles, self.arguments, self._own = own.tiles, own.arguments, own

        def of_storage(self, arguments, maps):
            return change(self._own.of_storage(arguments, maps))

    def launch(problem, config, gpu):
        shape = kernel.launch(problem, config, gpu)
        return replace(shape, table=Table(shape.table))

    return launch


def test_check_runs_the_kernel_with_the_sanitizers():
    records = check(
        "ragged_wgmma", [GemmProblem.of_groups(TEXT, dtype="float16")], config=NARROW, gpu="h100"
    )
    assert [each.verdict for each in records] == ["ok"]


def test_the_cases_of_check_have_ragged_groups_for_a_kernel_that_takes_them():
    def names(name):
        kernel = find_kernel(name)
        cases = default_cases(kernel, kernel.default, H100, Asked(dtype="bf16"))
        problems = {each.name: each.problem for each in cases}
        return {each: problem for each, problem in problems.items() if problem.ragged}

    found = names("ragged_wgmma")
    assert {"ragged groups", "ragged, padded rows", "ragged, many of few rows"} <= set(found)
    kernel = find_kernel("ragged_wgmma")
    for problem in found.values():
        assert kernel.supports(problem, kernel.default, H100) is None
    rows = found["ragged groups"].groups.m
    assert rows[0] == rows[-1] == 0 < rows.max()
    assert found["ragged, many of few rows"].count > 32
    assert names("grouped_wgmma") == {}


def test_explain_takes_them():
    kernel = find_kernel("ragged_wgmma")
    problem = GemmProblem.of_groups(TEXT, dtype="float16")
    found = explain(kernel, problem, gpu=H100, config=NARROW)
    assert found.metrics["gemmkit__table_loads_per_result"] > 0
    assert found.metrics["gemmkit__predicted_time_us"] > 0


def test_the_suite_is_of_tokens_that_a_router_sends():
    problems = ragged()
    assert all(each.ragged for each in problems.values())
    for name, problem in problems.items():
        tokens, experts, *_ = (int(word) for word in name.split() if word.isdecimal())
        assert (problem.groups.rows, problem.count) == (tokens, experts)
    narrow = variants(problems.values(), ["bf16"], layouts=["nt"])
    assert {each.layout for each in narrow} == {"nt"}
    assert all(each.ragged and each.dtype == "bfloat16" for each in narrow)


def test_libraries_get_the_rows_of_each_group():
    problem = GemmProblem.of_groups(TEXT, "nt", dtype="bfloat16")
    singles = single_products(problem, {"A": 1000, "B": 20000, "C": 500000})
    assert [(each.m, bound["A"], bound["B"], bound["C"]) for each, bound in singles] == [
        (3, 1000, 20000, 500000),
        (70, 1000 + 3 * 72 * 2, 20000 + 2 * 40 * 72 * 2, 500000 + 3 * 40 * 2),
        (7, 1000 + 73 * 72 * 2, 20000 + 3 * 40 * 72 * 2, 500000 + 73 * 40 * 2),
    ]


def test_torch_gets_one_matrix_and_the_ends():
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    rng = np.random.default_rng(0)
    a = [torch.from_numpy(rng.standard_normal((rows, 6))) for rows in (3, 0, 5)]
    b = [torch.from_numpy(rng.standard_normal((5, 6))).mT for _ in a]
    operands = GroupedOperands(torch, a, b)
    assert operands.ends.tolist() == [3, 3, 8]
    assert (operands.a.shape, operands.b.shape) == ((8, 6), (3, 6, 5))
