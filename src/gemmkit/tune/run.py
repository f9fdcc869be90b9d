"""`tune`: finds the fastest configuration for each of some shapes on the GPU, and remembers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gemmkit.devices.choose import gpu_problem, open_device
from gemmkit.devices.device import Device, TimedDevice
from gemmkit.dtypes import Dtype, Precision
from gemmkit.epilogue import Epilogue
from gemmkit.errors import DeviceError, UsageError
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel, tunable_kernels
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem, Shape, read_problem
from gemmkit.trials.store import Store
from gemmkit.tune.compiling import CompileOne
from gemmkit.tune.progress import TuneProgress
from gemmkit.tune.result import Tuned
from gemmkit.tune.search import check_strategy
from gemmkit.tune.session import Options, Session
from gemmkit.tune.space import WITHIN, Allowed

BUDGET_SECONDS = 60.0

WITHOUT_GPU = (
    "without one, `gemmkit tune --device model --gpu BOARD` ranks configurations by prediction, "
    "and `--import`, `--export` and `--explain` work on what a store holds"
)


def tune(
    shapes: Shape | Sequence[Shape],
    *,
    budget: float = BUDGET_SECONDS,
    strategy: str = "model",
    seed: int = 0,
    kernels: Sequence[str | Kernel] | None = None,
    epilogue: str | Epilogue = "none",
    layout: str = "NN",
    dtype: Dtype = "float32",
    out_dtype: Dtype | None = None,
    precision: Precision = "ieee",
    scales: str = "",
    device: Device | None = None,
    store: Store | Path | str | None = None,
    within: float = WITHIN,
    progress: TuneProgress | None = None,
    cache_dir: Path | None = None,
    compile_one: CompileOne | None = None,
) -> list[Tuned]:
    """Search for the fastest configuration of each shape; each trial is stored immediately.

    For a shape that was tuned before, the search is resumed: nothing is tried twice, unless a
    kernel or the compiler has changed. Each configuration's result is checked before it is timed.

    Args:
        shapes: `"MxNxK"`, a number for a cube, (M, N, K) or a `GemmProblem`, or a list of them. A
            problem's own epilogue, layout, types and precision count.
        budget: seconds for each shape, in total.
        strategy: "model", "random" or "exhaustive" (see `search.make_strategy`).
        seed: seed for the inputs and for the strategy.
        kernels: the kernels to try, by name or as kernels; by default the production
            kernels for the type, and `warp_tiled` for boards without cp.async.
        epilogue: fused into the write-back.
        layout: the layout of A and B: "NN", "NT", "TN" or "TT".
        dtype: the type of A and B.
        out_dtype: the type of C, by default the same.
        precision: how float32 may be multiplied: "ieee", "fp32" or "tf32" (see `GemmProblem`).
        scales: of A and B of 8 bits: "tensor", "rows" or "blocks" (see `Scales.parse`).
        device: an open GPU; by default that of this machine.
        store: where trials are kept; by default the user's own store.
        within: configurations estimated to take longer than this many times the best estimate are
            not tried.
        progress: receives the events of the search.
        cache_dir: root of the compiler's cache; by default the user's.
        compile_one: compiles a plan for an architecture; by default NVRTC, through the cache.

    Raises:
        DeviceError: there is no GPU, or not enough memory on it.
        UsageError: an argument is not valid, or no kernel accepts a shape.
        TuningError: the store cannot be used, or the GPU was lost.
        CompilerMissing: there is no compiler.
        KeyboardInterrupt: after an interrupt; the trials so far are kept.
    """
    if budget <= 0:
        raise UsageError(f"a budget of {budget:g} s is not enough to tune in")
    check_strategy(strategy)
    fused = Epilogue.parse(epilogue) if isinstance(epilogue, str) else epilogue
    types = {"dtype": dtype, "out_dtype": out_dtype, "precision": precision, "scales": scales}
    asked_for = {"epilogue": fused, **types}
    problems = [_problem(shape, read_layout(layout), asked_for) for shape in _several(shapes)]
    empty = [each.shape for each in problems if not each.flops]
    if empty:
        raise UsageError(f"{empty[0]} has nothing to multiply, so nothing to tune")
    if any(each.prepared for each in problems):
        raise UsageError(
            "what is tuned is measured without prepared operands, and serves products with such "
            "too: leave out 'prepared'"
        )
    named = [find_kernel(each) if isinstance(each, str) else each for each in kernels or ()]
    progress = progress or TuneProgress()
    timed = _timed_device(device)
    chosen = tunable_kernels(problems, timed.spec) if kernels is None else named
    progress.opened(timed)
    kept = store if isinstance(store, Store) else Store(store)
    options = Options(budget=budget, strategy=strategy, seed=seed, within=within)

    def through_the_cache(plan: LaunchPlan, arch: str) -> Binary:
        return compile_plan(plan, arch, cache_dir=cache_dir)

    allowed = [Allowed(kernel, timed.spec) for kernel in chosen]
    return [
        Session(
            problem,
            timed,
            kept,
            allowed,
            options,
            compile_one=compile_one or through_the_cache,
            progress=progress,
        ).run()
        for problem in problems
    ]


def _timed_device(device: Device | None) -> TimedDevice:
    """The GPU.

    Raises:
        DeviceError: there is none, or the device has no clock.
    """
    if device is None:
        problem = gpu_problem()
        if problem is not None:
            raise DeviceError(f"tuning measures on a GPU, and {problem}: {WITHOUT_GPU}")
        device = open_device("cuda")
    if not isinstance(device, TimedDevice):
        raise DeviceError(f"tuning measures on a GPU, and this device has no clock: {WITHOUT_GPU}")
    return device


def _several(shapes: Shape | Sequence[Shape]) -> Sequence[Shape]:
    """The shapes one by one; a tuple of numbers is one shape."""
    if isinstance(shapes, str | int | GemmProblem):
        return [shapes]
    if isinstance(shapes, tuple) and all(isinstance(each, int) for each in shapes):
        return [cast(Shape, shapes)]
    return shapes


def _problem(shape: Shape, layout: str, rest: Mapping[str, Any]) -> GemmProblem:
    if isinstance(shape, GemmProblem):
        return shape
    return replace(read_problem(shape), **rest).laid_out(layout)
