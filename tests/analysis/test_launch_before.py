"""What the model predicts of the launch that copies or splits operands before a kernel's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.analysis.block_profile import _moved_before
from gemmkit.analysis.closed_form.costs import BoardCosts
from gemmkit.analysis.machine import COPY_US
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.splitting import ACROSS
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
KERNEL = find_kernel("gemm_fp16x3")


@pytest.mark.parametrize(("layout", "share"), [("nt", 1.0), ("tn", ACROSS)])
def test_lines_that_are_not_contiguous_are_split_at_a_share_of_the_speed(layout, share):
    problem = GemmProblem(1024, 1024, 1024, precision="fp32").laid_out(layout)
    for kernel, asked in (
        (KERNEL, problem),
        (
            find_kernel("grouped_fp16x3"),
            GemmProblem.of_groups("1024*2", layout, precision="fp32"),
        ),
    ):
        plan = kernel.plan(asked, kernel.default, H100)
        moved, found = _moved_before(kernel, kernel.default, asked, H100, plan)
        assert moved == asked.count * 2 * 2 * 4 * 2**20
        assert found == pytest.approx(share)
        # Where neither operand is read, nothing comes before.
        plan = kernel.plan(replace(asked, alpha=0.0), kernel.default, H100)
        assert _moved_before(kernel, kernel.default, asked, H100, plan) == (0.0, 1.0)


def test_the_cost_of_such_a_launch_has_one_owner():
    assert BoardCosts().copy_us == COPY_US
