"""The argument TARGET: a kernel of gemmkit's or a file, and its launch options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.options import combine
from gemmkit.cxx.expressions import split_list
from gemmkit.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from gemmkit.kernels.kernel import Kernel

# Suffixes that make a target a file even if it does not exist.
SUFFIXES = (".cu", ".cuh", ".cuda", ".ptx")

# Fields of `LaunchOptions` that apply to rungs too, and the option names of the others.
_OF_ANY_KERNEL = ("layout", "constants", "compute_dtype", "tolerance")
_FLAGS = {
    "include_dirs": "include",
    "options": "option",
    "multiple_of": "multiple-of",
    "tensor_maps": "tensor-map",
}


def _constants(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> dict[str, list[str]]:
    """Read `NAME=VALUE,…`, which may be repeated."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _equals, values = (word.strip() for word in text.partition("="))
        if not (name and values):
            raise click.BadParameter(f"'{text}' is not NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"'{name}' is given twice")
        found[name] = split_list(values)
    return found


_launch_options = combine(
    click.option(
        "--entry",
        metavar="NAME",
        help="Kernel in the file, as a C++ name: 'sgemm<128,128,8>'. Not needed if there is one "
        "that is not a template.",
    ),
    click.option(
        "--args",
        metavar="NAME,…",
        help="Argument for each parameter, in order: M,N,K,alpha,A,lda,B,ldb,beta,C,ldc,bias,"
        "workspace,semaphores, a number, an expression, or {…} for the fields of a struct. Not "
        "needed if the parameters' names are recognized.",
    ),
    click.option(
        "--tensor-map",
        "tensor_maps",
        metavar="NAME=A|B|C,box=…",
        multiple=True,
        help="Tensor map (CUtensorMap) of a matrix, by its name in --args or that of its "
        "parameter: 'map_a=A,box=64x128,swizzle=128B', the box innermost first. Options: swizzle "
        "(none, 32B, 64B, 128B), fill (zero, nan), l2 (none, 64B, 128B, 256B), type, rank (3 for a "
        "batch). Repeatable.",
    ),
    click.option(
        "--grid",
        metavar="X,Y,Z",
        help="Blocks, as expressions over M, N, K or the kernel's own names for them: "
        "'(N+127)/128,(M+127)/128'.",
    ),
    click.option("--block", metavar="X,Y,Z", help="Threads per block, likewise: '16,16' or 256."),
    click.option(
        "--shared", metavar="BYTES", help="Dynamic shared memory per block, likewise.  [default: 0]"
    ),
    click.option(
        "--workspace",
        metavar="BYTES",
        help="Global memory for the argument 'workspace', likewise: 'M*N*4*4'.",
    ),
    click.option(
        "--semaphores",
        metavar="COUNT",
        help="32-bit counters for the argument 'semaphores', likewise. They are zero before a "
        "launch, which must leave them at zero.",
    ),
    click.option(
        "--layout",
        is_eager=True,  # before --groups, whose leading dimensions it explains
        metavar="NN|NT|TN|TT|col",
        help="Layout of A and B: N row-major, T transposed. NT is C = A·B with B stored N×K. col, "
        "col-NT … for column-major A, B and C, with BLAS's letters.  [default: NN]",
    ),
    click.option(
        "--multiple-of",
        metavar="M,N,K",
        help="The kernel accepts only multiples of these, such as 128,128,8, or 16 for all three: "
        "other problems are refused, not run.",
    ),
    click.option(
        "--include",
        "-I",
        "include_dirs",
        metavar="FOLDER",
        multiple=True,
        help="Additional folder for included files.",
    ),
    click.option(
        "--option",
        "options",
        metavar="FLAG",
        multiple=True,
        help="Option for the compiler: --option=-DTILE=16.",
    ),
    click.option(
        "--constant",
        "constants",
        metavar="NAME=VALUE,…",
        multiple=True,
        callback=_constants,
        help="Value of a __constant__ or __device__ variable that host code would set: a number or "
        "an expression over M, N, K, alpha, beta; several for an array.",
    ),
)
_exactness_options = combine(
    click.option(
        "--compute-dtype",
        metavar="TYPE[,SUMS]",
        help="Apply the error bound of kernels that round operands to this type and accumulate in "
        "SUMS: float32, tf32, float16, bfloat16, float8_e4m3 or float8_e5m2, or short fp32, half, "
        "fp16, bf16, e4m3, e5m2.  [default: derived from its instructions, SUMS float32]",
    ),
    click.option(
        "--tolerance",
        type=float,
        metavar="X",
        help="Allow errors up to this fraction of |α|·Σ|A|·|B| + |β·C| instead of the bound from "
        "rounding theory.",
    ),
)
target_options = combine(click.argument("target"), _launch_options, _exactness_options)
optional_target_options = combine(
    click.argument("target", required=False), _launch_options, _exactness_options
)


def names_file(target: str) -> bool:
    """Whether a target is a file, even one that does not exist."""
    return Path(target).suffix.lower() in SUFFIXES or "/" in target or Path(target).exists()


def find_target(target: str, **options: Any) -> Kernel:
    """The kernel that `target_options` describe.

    Raises:
        UsageError: no such rung or file, options that a rung does not accept, or any that
            `Kernel.from_file` or `Kernel.from_ptx` refuses.
    """
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.kernels.launch_options import LaunchOptions

    launch = LaunchOptions.said(**options)
    if launch.compute_dtype or launch.tolerance is not None:
        from gemmkit.verify.arithmetic import named_arithmetic

        # Errors in them are reported before the kernel is loaded.
        named_arithmetic(launch.compute_dtype, launch.tolerance)
    if names_file(target):
        return Kernel.from_path(target, launch)
    of_files = [name for name in launch.given if name not in _OF_ANY_KERNEL]
    if of_files:
        raise UsageError(
            f"'{target}' is not a file, and a rung of the ladder has its own launch: leave out "
            + ", ".join(f"--{_FLAGS.get(name, name)}" for name in of_files)
        )
    rung = find_rung(target)
    if options.get("layout") is not None:
        rung = in_layout(rung, launch.layout)
    if set(launch.given) - {"layout"}:
        rung = rung.given(launch.constants, launch.compute_dtype, launch.tolerance)
    return rung


@contextmanager
def quoting(kernel: Kernel) -> Iterator[None]:
    """Add the source lines to the message of an access that the emulator refuses, and what to run.

    Raises:
        DeviceError: with these lines.
    """
    try:
        yield
    except DeviceError as error:
        if error.place is None:
            raise
        from gemmkit.report.findings import Sources

        lines = [str(error), *(f"    {line}" for line in Sources(kernel).excerpt(*error.place))]
        lines.append("Run `gemmkit check` with the same kernel and launch: it lists all errors.")
        quoted = DeviceError("\n".join(lines))
        quoted.printed = error.printed
        raise quoted from error


def in_layout(rung: Kernel, layout: str) -> Kernel:
    """The rung for matrices of a layout.

    Raises:
        UsageError: it is not a layout, or not one that the rung supports.
    """
    from gemmkit.kernels.layouts import layout_text, read_layout

    asked = read_layout(layout)
    if asked not in rung.layouts:
        taken = ", ".join(map(layout_text, rung.layouts))
        raise UsageError(f"'{rung.name}' supports {taken}, not {layout_text(asked)}")
    return replace(rung, layouts=(asked,))


def find_rung(name: str) -> Kernel:
    """The rung of that name.

    Raises:
        UsageError: there is none; the message mentions files too.
    """
    from gemmkit.kernels.catalog import find_kernel

    try:
        return find_kernel(name)
    except UsageError as error:
        if ":" in name:
            raise
        raise UsageError(f"{error} (files of your own end in .cu or .ptx)") from None
