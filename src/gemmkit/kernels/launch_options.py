"""`LaunchOptions`: what a user says of a kernel of their own, in Python or on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmkit.kernels.variables import Value

# One to three expressions in CUDA's x, y, z order, or a single number.
Extent = str | int | Sequence[str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a kernel of your own is found, launched and checked.

    Attributes:
        entry: the kernel, as a C++ name expression such as `sgemm<128, 128, 8>`, or in PTX by its
            symbol or its name in the source; not needed if the file has one kernel that is not a
            template. The types of its parameters tell overloads apart: `gemm(const float *, …)`.
        args: an argument for each parameter, in order: M, N, K, alpha, A, lda, B, ldb, beta, C,
            ldc or bias, workspace or semaphores, a number, or an expression of them; not needed if
            the parameters' names are recognized. PTX has no such names.
        grid: blocks along x, y and z, as expressions over M, N, K, lda, ldb, ldc, the kernel's own
            names of them, the template arguments and the constants of the file:
            `"(N+127)/128,(M+127)/128"`. PTX has no names and constants of its own.
        block: threads along x, y and z, likewise.
        shared: bytes of dynamic shared memory per block, likewise.
        workspace: bytes of global memory whose content does not matter, likewise, for the argument
            of that name.
        semaphores: 32-bit counters in global memory, likewise, for the argument of that name: they
            are zero before a launch, which leaves them at zero.
        layout: the layout of A, B and C: "NN", "NT", "TN" or "TT" (A and B row-major or
            transposed, C row-major), or "col", "col-NT" … (all column-major, BLAS's letters).
        multiple_of: what M, N and K must be multiples of, one number or three: `"128,128,8"`.
        name: its name in tables; by default the kernel's name in its source.
        include_dirs: folders searched for included files, after the file's own folder.
        options: options for NVRTC, such as `-DTILE=16` or `--use_fast_math`.
        tensor_maps: those that the kernel takes by value, each as `"map_a=A,box=64x128"`: its name
            in `args` (or that of its parameter), the matrix, and the box in elements, innermost
            dimension first. Options: `swizzle` (none, 32B, 64B, 128B), `fill` (zero, nan), `l2`
            (none, 64B, 128B, 256B), `type` (the matrix's own), `rank` (3 for a batch).
        constants, compute_dtype, tolerance: see `Kernel.given`.
        dtype, out_dtype: the types of A and B and of C, for PTX only, which does not contain them;
            without `dtype` the kernel accepts all, and fp32 if a problem does not say.
    """

    entry: str | None = None
    args: str | Sequence[str] | None = None
    grid: Extent | None = None
    block: Extent | None = None
    shared: str | int = "0"
    workspace: str | int = "0"
    semaphores: str | int = "0"
    layout: str = "nn"
    multiple_of: str | int | Sequence[int] = 1
    name: str | None = None
    include_dirs: Sequence[str | Path] = ()
    options: Sequence[str] = ()
    tensor_maps: str | Sequence[str] = ()
    constants: Mapping[str, Value] | None = None
    compute_dtype: str = ""
    tolerance: float | None = None
    dtype: str | None = None
    out_dtype: str | None = None

    @classmethod
    def said(cls, **options: Any) -> LaunchOptions:
        """From options of which those that are None were not given.

        Raises:
            TypeError: there is no such option.
        """
        return cls(**{name: value for name, value in options.items() if value is not None})

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that say more than the default."""
        return tuple(
            each.name for each in fields(self) if getattr(self, each.name) not in (each.default, {})
        )
