"""What production kernels are passed: parameters in the order of BLAS, and template arguments by
name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemmkit.kernels.plan import (
    BATCH_ARGUMENTS,
    EPILOGUE_ARGUMENTS,
    SCALE_ARGUMENTS,
    SCRATCH_SIGNATURE,
    Dim3,
    LaunchShape,
    Signature,
)
from gemmkit.scales import NONE, Scales

# The parameters of `arguments.cuh`, and the same of a kernel that has no use for a workspace.
SPLIT_SIGNATURE: Signature = (*SCRATCH_SIGNATURE, *BATCH_ARGUMENTS, *EPILOGUE_ARGUMENTS)
SIGNATURE: Signature = tuple(
    "0" if name in ("workspace", "semaphores") else name for name in SPLIT_SIGNATURE
)

SCALED_SIGNATURE: Signature = (*SCALE_ARGUMENTS, *SIGNATURE)

# Layouts as layout.cuh calls them.
CUDA_LAYOUTS = {"nn": "A_B", "nt": "A_BT", "tn": "AT_B", "tt": "AT_BT"}

Named = int | bool | str


def named(struct: str, fields: Mapping[str, Named]) -> str:
    """A struct of C++ with its fields by name, in the order of their declaration."""
    told = ", ".join(
        f".{name} = {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in fields.items()
    )
    return f"{struct}{{{told}}}"


def scales_argument(scales: Scales) -> str:
    """The template argument `Scales{…}` of operand_scales.cuh, to which one scale of all lines is
    one of each line, 0 elements apart."""
    lines_a, lines_b = (0 if each == NONE else max(each.lines, 1) for each in (scales.a, scales.b))
    return named("Scales", {"of_chunks": scales.of_chunks, "lines_a": lines_a, "lines_b": lines_b})


def access(a: int, b: int, c: int) -> str:
    """Elements per global access of each matrix."""
    return named("Access", {"a": a, "b": b, "c": c})


def launch_shape(
    template: Iterable[str], grid: Dim3, threads: int, shared_bytes: int
) -> LaunchShape:
    """A launch of blocks in one dimension; the epilogue is the last template argument."""
    return LaunchShape(
        template=tuple(template), grid=grid, block=(threads, 1, 1), shared_bytes=shared_bytes
    )
