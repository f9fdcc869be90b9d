"""Checks of kernels whose blocks share the k of a tile, rungs and production kernels alike."""

from collections.abc import Iterator

import numpy as np

from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.gpu import BOARDS, GpuSpec, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.kernels.rules import resident_blocks
from gemmkit.problem import GemmProblem

# Boards that differ in what limits how many blocks an SM holds.
UNLIKE_BOARDS = tuple(BOARDS[name] for name in ("rtx3080", "a100", "h100", "rtx5090"))


def streamed(
    kernel: Kernel, problem: GemmProblem, config: TileConfig, board: GpuSpec
) -> tuple[LaunchPlan, int]:
    """The plan of a persistent kernel, and how many blocks the board holds at once."""
    plan = kernel.plan(problem, config, board)
    return plan, board.sm_count * resident_blocks(config, board, plan.shared_bytes)


def plans_that_fill(kernel: Kernel, board: GpuSpec) -> Iterator[tuple[TileConfig, LaunchPlan, int]]:
    """Each configuration of a persistent kernel with its plan and its blocks per SM.

    Those are as many on each SM, and no more than its threads and shared memory allow.
    """
    limits = board.capability
    for config in kernel.configurations(board):
        plan = kernel.plan(GemmProblem(9000, 9000, 9000), config, board)
        resident, rest = divmod(plan.blocks, board.sm_count)
        assert rest == 0
        assert resident == 1 or resident * plan.shared_bytes <= limits.shared_per_sm
        assert resident * plan.threads_per_block <= limits.max_threads_per_sm
        yield config, plan, resident


def bits_in_any_order(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, board: str, launches: int
) -> set[bytes]:
    """The different results of launches whose blocks come in different orders.

    On the emulator the order depends on the number of host threads. Each launch must leave the
    scratch memory as the next one needs it.
    """
    random, dtype = np.random.default_rng(1), np.dtype(problem.dtype)
    a = random.standard_normal((problem.m, problem.k)).astype(dtype)
    b = random.standard_normal((problem.k, problem.n)).astype(dtype)
    result = np.empty((problem.m, problem.n), dtype)
    seen = set()
    for threads in (1, 2, 3):
        device = EmulatedDevice(find_board(board), threads=threads)
        plan = kernel.plan(problem, config, device.spec)
        assert plan.workspace_bytes, "no blocks share a tile"
        binary = compile_plan(plan, device.spec.arch, assemble=False)
        buffers = [device.upload(each) for each in (a, b, np.empty_like(result))]
        bound = bind_arguments(problem, Operands(*buffers))
        scratch = Scratch.of(device, plan, bound)
        for _ in range(launches):
            device.launch(binary, plan, bound | scratch.arguments)
            device.download(buffers[2], result)
            seen.add(result.tobytes())
        scratch.check(device, plan)
    return seen
