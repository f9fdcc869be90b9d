"""The two short runs of a profile differ by a step along k at least."""

from __future__ import annotations

import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.demand import multiplies
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("h100")


@pytest.mark.parametrize(
    ("name", "dtype", "keys", "apart"),
    [
        ("gemm_wgmma", "bfloat16", {"BK": 64}, 64),
        ("gemm_wgmma", "bfloat16", {"BK": 128}, 128),
        ("gemm_fp8", "float8_e4m3", {}, 128),
    ],
)
def test_a_long_step_multiplies_as_much_as_a_short_one(name, dtype, keys, apart):
    kernel = find_kernel(name)
    tile = {"BM": 64, "BN": 64, "consumers": 1, "stages": 2, "cluster_m": 1}
    config = kernel.configure({**tile, **keys})
    problem = GemmProblem(64, 128, 1024, dtype=dtype, out_dtype="float32", transb=True)
    profile = profile_block(kernel, problem, H100, config=config)
    assert profile.depths == (apart, 2 * apart)
    executed = profile.executed(problem.k)
    products = [multiplies(form) for form in profile.flow.forms]
    found = sum(
        float(executed[number]) * amount
        for number, (pipe, amount) in enumerate(products)
        if pipe is not None and pipe.tensor
    )
    assert found == pytest.approx(64 * 64 * problem.k)
