"""The sweep: how kernels fare as M = N grows while K stays, each row checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gemmkit.bench.ladder import ProductionChoice, asked_types, run_suite
from gemmkit.bench.progress import Progress
from gemmkit.devices.choose import DeviceKind
from gemmkit.devices.device import Device
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import read_layout
from gemmkit.problem import GemmProblem, Shape
from gemmkit.record import Record

SIZES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
K = 1024
KERNELS = ("naive_uncoalesced", "naive")


def sweep(
    sizes: Sequence[int] = SIZES,
    *,
    k: int = K,
    groups: Sequence[GemmProblem] = (),
    device: DeviceKind | Device = "auto",
    gpu: GpuSpec | str | None = None,
    kernels: Sequence[str | Kernel] | None = None,
    config: Mapping[str, int] | None = None,
    epilogue: str | Epilogue | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    layout: str = "NN",
    dtype: str | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
    seed: int = 0,
    production: ProductionChoice | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> list[Record]:
    """Run kernels at each size and return their records, size by size.

    By default these are the fifteen sizes of the classic coalescing study, M = N from 128 to
    16384 with K = 1024, for the kernel with the wrong index order and the one with the right one.

    Args:
        sizes: sizes of M = N.
        k: the size of K.
        groups: problems of groups, instead of sizes.
        kernels: names, or kernels of your own; by default those two. Where one of them does not
            take the types, the layout or the epilogue, the ladder's kernels that do; for groups,
            those that accept them.
        device, gpu, config, epilogue, alpha, beta, layout, dtype, out_dtype, precision, seed,
            production, progress, cache_dir: as for `ladder`; those two need no production kernel
            beside them.

    Raises:
        UsageError, UnsupportedProblem, CompileError, DeviceError: as `ladder`.
    """
    letters = read_layout(layout)
    shapes: Sequence[Shape] = groups or [(size, size, k) for size in sizes]
    types = asked_types(None if groups else kernels, dtype, out_dtype, precision)
    asked = Asked(alpha=alpha, beta=beta, epilogue=epilogue, **types)
    problems = [asked.problem(each).laid_out(letters) for each in shapes]
    if kernels is None and not groups and all(map(_is_of_the_study, problems)):
        kernels = KERNELS
    ended = kernels is None and not groups and not config
    return run_suite(
        problems,
        kernels=kernels,
        config=config,
        device=device,
        gpu=gpu,
        seed=seed,
        production=production if ended else None,
        progress=progress,
        cache_dir=cache_dir,
    )


def _is_of_the_study(problem: GemmProblem) -> bool:
    """Whether both kernels of the study take its types, layout and epilogue."""
    plain = str(problem.epilogue) == "none"
    return all(
        each.takes_types(problem) and problem.layout in each.layouts and (plain or each.fuses)
        for each in map(find_kernel, KERNELS)
    )
