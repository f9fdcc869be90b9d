"""Runs rungs of the ladder on an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from launching import Executor, Outcome, launch
from numpy.typing import NDArray

from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_kernel
from gemmkit.kernels import include_files
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.verify.encoding import encode
from rung_boards import board_for

# Elements as they are stored, of the problem's types.
Elements = NDArray[Any]


@dataclass(frozen=True)
class Operands:
    """Row-major matrices with their leading dimensions, including C's initial content."""

    A: Elements
    B: Elements
    C: Elements
    bias: Elements

    @classmethod
    def random(cls, problem: GemmProblem, seed: int = 0) -> Operands:
        rng = np.random.default_rng(seed)
        shapes = (
            ((problem.m, problem.lda), problem.dtype),
            ((problem.k, problem.ldb), problem.dtype),
            ((problem.m, problem.ldc), problem.result_dtype),
            ((problem.n,), problem.result_dtype),
        )
        return cls(
            *(
                encode(rng.standard_normal(shape, dtype=np.float32), dtype)
                for shape, dtype in shapes
            )
        )


def run_rung(
    executor: Executor,
    name: str,
    problem: GemmProblem,
    operands: Operands,
    arch: str = "sm_86",
    **config: int,
) -> tuple[Elements, Outcome]:
    """C after the launch, and the launch's execution."""
    kernel = find_kernel(name)
    gpu = board_for(kernel, find_board("RTX 3090"))
    plan = kernel.plan(problem, kernel.configure(config), gpu)
    binary = compile_kernel(
        plan.source.text, plan.entry, arch, headers=include_files(), assemble=False
    )
    values = {
        **dict(zip("MNK", map(np.int32, (problem.m, problem.n, problem.k)), strict=True)),
        **{name: np.int32(getattr(problem, name)) for name in ("lda", "ldb", "ldc")},
        "alpha": np.float32(problem.alpha),
        "beta": np.float32(problem.beta),
        "A": operands.A,
        "B": operands.B,
        "C": operands.C,
        "bias": operands.bias if problem.epilogue.bias else np.uint64(0),
        "workspace": np.full(max(plan.workspace_bytes // 4, 1), np.nan, np.float32),
        "semaphores": np.zeros(max(plan.semaphores, 1), np.int32),
        "batch": np.int32(problem.batch),
        **dict.fromkeys(("stride_a", "stride_b", "stride_c", "stride_r", "stride_x"), np.int64(0)),
        **dict.fromkeys(("residual", "auxiliary"), np.uint64(0)),
        **dict.fromkeys(("ldr", "ldx"), np.int32(0)),
        "scale": np.float32(1),
    }
    for planned in plan.tensor_maps:
        operand = planned.rule.operand
        values[planned.rule.name] = lambda place, planned=planned, operand=operand: encoded(
            planned.of({**values, operand: place(values[operand])})
        )
    outcome = launch(
        executor,
        binary.ptx,
        *(values[each] for each in plan.signature),
        grid=plan.grid,
        block=plan.block,
        shared_bytes=plan.shared_bytes,
        cluster=plan.cluster if plan.cluster != (1, 1, 1) else None,
    )
    matrices = [each for each in plan.signature if isinstance(values[each], np.ndarray)]
    return outcome.arrays[matrices.index("C")], outcome
