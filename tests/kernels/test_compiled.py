"""What the compiler makes of the rungs: no spills, and the occupancy that the literature states."""

from dataclasses import replace

import pytest

from gemmkit.analysis.occupancy import occupancy
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import HOPPER, board_for

RTX3090 = find_board("rtx3090")


def compiled(kernel, problem, config, gpu):
    problem = fitting(kernel, in_types_of(kernel, problem), gpu, config)
    plan = kernel.plan(problem, config, gpu)
    return plan, compile_plan(plan, gpu.arch).resources


# The rungs, each with matrices of its own type, and the production kernels for fp32 of IEEE.
IEEE = (("float32",), "ieee")
KERNELS = (*LADDER, *(each for each in PRODUCTION if (each.dtypes, each.precision) == IEEE))


@pytest.mark.parametrize("size", [1024, 1023], ids=["vectors", "floats"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.sample(19)
def test_defaults_do_not_spill(kernel, size):
    _, resources = compiled(
        kernel, GemmProblem(size, size, size), kernel.default, board_for(kernel, RTX3090)
    )
    assert resources.spill_bytes == 0
    assert resources.local_bytes == 0


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.sample(13)
def test_configurations_that_the_rules_allow_compile(kernel):
    """The ends of the space, on the oldest board and the newest; static_asserts must hold.

    They hold without optimization too, which takes a tenth of the time.
    """
    only = ("h100",) if kernel.name in HOPPER else ("t4", "b200")
    for board, size in zip((only * 2)[:2], (64, 65), strict=True):
        gpu = find_board(board)
        problem = in_types_of(kernel, GemmProblem(size, size, size))
        if kernel.condition is not None and "bfloat16" in kernel.dtypes:
            # The tensor cores of all boards take it.
            problem = replace(problem, dtype="float16", out_dtype=None)
        allowed = list(kernel.configurations(gpu))
        for config in allowed[:1] + allowed[-1:]:
            plan = kernel.plan(fitting(kernel, problem, gpu, config), config, gpu)
            options = (*plan.source.options, "--device-debug")
            compile_plan(replace(plan, source=replace(plan.source, options=options)), gpu.arch)


@pytest.mark.parametrize("board", ["t4", "a100", "rtx3090", "h100", "b200"])
@pytest.mark.parametrize("name", ["double_buffered", "warp_tiled"])
@pytest.mark.sample(7)
def test_two_blocks_of_256_threads_fit_an_sm(name, board):
    """What `BLOCKS_PER_SM` asks of the compiler: 128 registers per thread."""
    kernel = find_kernel(name)
    problem = GemmProblem(1024, 1024, 1024)
    plan, resources = compiled(kernel, problem, kernel.default, find_board(board))
    assert plan.threads_per_block == 256
    assert resources.registers <= 128


def test_occupancy_of_the_strides_on_a_16x16_tile():
    """A step-by-step guide's figures for the RTX 3090: 100, 100, 66.67, 33.33 and 33.33 %."""
    kernel = find_kernel("coarsening_1d")
    problem = GemmProblem(1024, 1024, 1024)
    seen = []
    for stride in (1, 2, 4, 8, 16):
        config = kernel.configure({"BM": 16, "BN": 16, "BK": 16, "stride": stride})
        plan, resources = compiled(kernel, problem, config, RTX3090)
        assert plan.threads_per_block == 256 // stride
        filled = occupancy(
            RTX3090,
            registers=resources.registers,
            threads=plan.threads_per_block,
            shared_bytes=resources.shared_bytes + plan.shared_bytes,
            blocks=plan.blocks,
        )
        seen.append(round(100 * filled.theoretical, 2))
    assert seen == [100, 100, 66.67, 33.33, 33.33]


@pytest.mark.parametrize("name", ["naive", "shared_tiling"])
def test_waves_of_16x16_blocks(name):
    """The guide's 8.33 waves: 4,096 blocks, six a multiprocessor, 82 multiprocessors."""
    kernel = find_kernel(name)
    tile = dict.fromkeys(kernel.default.as_dict(), 16)
    plan, resources = compiled(
        kernel, GemmProblem(1024, 1024, 1024), kernel.configure(tile), RTX3090
    )
    filled = occupancy(
        RTX3090,
        registers=resources.registers,
        threads=plan.threads_per_block,
        shared_bytes=resources.shared_bytes,
        blocks=plan.blocks,
    )
    assert plan.blocks == 4096
    assert filled.blocks_per_sm == 6
    assert round(filled.waves_per_sm, 2) == 8.33
