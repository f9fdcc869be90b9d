"""Options that several commands share, and how they are parsed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.files import READ_FILES, Decorator, OutputFile, written_file_option
from gemmkit.dtypes import ALL_PRECISIONS
from gemmkit.errors import unknown_name


def names(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Read comma-separated names."""
    if text is None:
        return None
    found: list[str] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise click.BadParameter(
                f"'{text}' has an empty part: separate names with single commas"
            )
        if found and ":" in found[-1] and "=" in part and ":" not in part:
            # A further setting of the kernel before: `naive:BM=16,BN=16`.
            found[-1] += f",{part}"
        else:
            found.append(part)
    return tuple(found)


def mesh(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read how many ranks there are along each dimension of a mesh, such as 2 or 2x4."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(
            f"'{text}' is not a valid number of ranks: write, for example, 4 or 2x2"
        )
    return tuple(map(int, parts))


def _sizes(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"'{text}' is not a list of sizes: write, for example, 256,512")
    return tuple(int(part) for part in parts)


def _shapes(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(","))


def _groups(context: click.Context, _: click.Parameter, given: str | tuple[str, ...] | None) -> Any:
    """Problems of the groups in a text or a file; None if there are none.

    Leading dimensions are those of matrices in the layout of --layout; where that lists several,
    they are those of NN, and other layouts keep the padding.
    """
    if given is None or given == ():
        return given
    from gemmkit.groups import Groups
    from gemmkit.kernels.layouts import read_layout
    from gemmkit.problem import GemmProblem

    asked = context.params.get("layout") or "NN"
    layout = "nn" if "," in asked else read_layout(asked)

    def read(text: str) -> GemmProblem:
        path = Path(text)
        is_file = path.suffix != "" or "/" in text or (text != "" and path.exists())
        if is_file:
            context.meta.setdefault(READ_FILES, []).append(path)
        return GemmProblem.of_groups(Groups.read(path) if is_file else Groups.parse(text), layout)

    return read(given) if isinstance(given, str) else tuple(read(each) for each in given)


def one_problem(shape: str | None, groups: GemmProblem | None) -> str | GemmProblem | None:
    """The requested shape or groups, or None.

    Raises:
        UsageError: both are given.
    """
    from gemmkit.errors import UsageError

    if shape is not None and groups is not None:
        raise UsageError("give a shape or --groups, not both")
    return groups or shape


def _settings(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    from gemmkit.errors import UsageError
    from gemmkit.kernels.catalog import read_settings

    try:
        return read_settings(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def combine(*decorators: Decorator) -> Decorator:
    """One decorator that applies several, so that options are listed in this order."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


if TYPE_CHECKING:
    from gemmkit.problem import GemmProblem

    _Choice = click.Choice[str]
else:
    # Older versions of click have no type parameters here.
    _Choice = click.Choice


class Choice(_Choice):
    """A choice of several words, which suggests the nearest for an unknown one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word.

        Raises:
            click.BadParameter: it is not one of the choices.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            what = "value" if param is None or param.name is None else param.name
            self.fail(unknown_name(what.replace("_", " "), value, self.choices), param, ctx)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().params["debug"] = True


# `--debug` is accepted before and after the command.
debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Show the traceback of an error.",
)

gpu_option = click.option(
    "--gpu",
    metavar="BOARD",
    help="Target board to compile for and emulate, such as rtx3090 (`gemmkit info` lists them).",
)

config_option = click.option(
    "--config",
    callback=_settings,
    metavar="KEY=VALUE,…",
    help="Change keys of the configuration, such as BM=16,BN=16; "
    "`gemmkit show KERNEL` lists a kernel's keys.",
)

kernels_option = click.option(
    "--kernels",
    callback=names,
    metavar="NAME,…",
    help="Only these kernels; naive:BM=16,BN=16 is one with another configuration.",
)

sizes_option = click.option(
    "--sizes", callback=_sizes, metavar="N,…", help="Only these sizes of M = N."
)

epilogue_option = click.option(
    "--epilogue",
    help="Epilogue: none, or bias or row_bias, relu, gelu, gelu_tanh or silu, residual, aux, "
    "scale=NUMBER and scale_result, joined by '+'.  [default: none]",
)

scale_options = combine(
    click.option(
        "--alpha", type=float, default=1.0, show_default=True, help="α, the factor of A·B."
    ),
    click.option(
        "--beta",
        type=float,
        default=0.0,
        show_default=True,
        help="β, the factor of the previous C.",
    ),
)

type_options = combine(
    click.option(
        "--dtype",
        metavar="TYPE",
        help="Type of A and B: float32, float64, float16, bfloat16, float8_e4m3 or float8_e5m2, or "
        "short fp32, fp64, fp16, bf16, e4m3, e5m2.  [default: float32, or the first that a named "
        "kernel accepts]",
    ),
    click.option(
        "--out-dtype",
        metavar="TYPE",
        help="Type of C.  [default: that of A and B, float32 if these have 8 bits]",
    ),
    click.option(
        "--precision",
        type=Choice(ALL_PRECISIONS, case_sensitive=False),
        help="The least precision of float32 products: ieee, all in fp32; fp32, any method with "
        "the error bound of fp32 sums, such as three fp16 products on tensor cores; tf32, operands "
        "rounded to TF32. More precise kernels may be used. Of 8-bit types: ieee, sums promoted to "
        "fp32; fast, sums left to tensor cores.  [default: ieee, or the lowest of the kernels "
        "named without --dtype]",
    ),
)

prepared_option = click.option(
    "--prepared",
    metavar="A|B|AB",
    help="Operands that are constant, and prepared once as by gemmkit.prepare: copies of them are "
    "no part of the product.",
)

operand_scales_option = click.option(
    "--scales",
    metavar="KIND[,KIND]",
    help="Scales of A and B of 8 bits, as torch._scaled_mm has them: tensor; rows, of A's rows and "
    "B's columns; or blocks, of 1×128 elements of A and 128×128 of B; or a word for each of A and "
    "B: none, tensor, rows (columns of B), 1x128, 128x128.  [default: none]",
)

# For commands without a TARGET, whose own options include the layout.
layout_option = click.option(
    "--layout",
    is_eager=True,  # before --groups, whose leading dimensions it explains
    default="NN",
    show_default=True,
    metavar="NN|NT|TN|TT",
    help="Layout of A and B: N row-major, T transposed. NT is C = A·B with B stored N×K.",
)


def as_asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass what is asked for of products, by the options above, as one argument `asked`."""

    @wraps(function)
    def with_asked(**options: Any) -> Any:
        from gemmkit.kernels.asked import NAMES, Asked

        asked = {name: options.pop(name) for name in NAMES if name in options}
        return function(asked=Asked(**asked), **options)

    return with_asked


# For one kernel, possibly a user's: defaults follow from its parameters.
problem_options = combine(
    type_options,
    operand_scales_option,
    click.option(
        "--epilogue",
        help="Epilogue: none, or bias or row_bias, relu, gelu, gelu_tanh or silu, residual, aux, "
        "scale=NUMBER and scale_result, joined by '+'.  [default: bias for a file whose kernel has "
        "a bias parameter, otherwise none]",
    ),
    click.option("--alpha", type=float, help="α, the factor of A·B.  [default: 1]"),
    click.option("--beta", type=float, help="β, the factor of the previous C.  [default: 0]"),
)

shapes_option = click.option(
    "--shape",
    "shapes",
    callback=_shapes,
    metavar="MxNxK,…",
    multiple=True,
    help="Only these shapes, batches as MxNxKxBATCH; repeatable.",
)

_GROUPS_HELP = (
    "Products of different shapes in one launch, such as 512x512x512*4,128x64x32, or a file with "
    "one shape per line; after ragged: they are rows of one A, as of gemmkit.ragged_matmul"
)

groups_option = click.option(
    "--groups", callback=_groups, metavar="MxNxK*COUNT,…|FILE", help=f"{_GROUPS_HELP}."
)

several_groups_option = click.option(
    "--groups",
    callback=_groups,
    metavar="MxNxK*COUNT,…|FILE",
    multiple=True,
    help=f"{_GROUPS_HELP}; can be repeated.",
)

seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed for the inputs.",
)

json_option = click.option(
    "--json",
    "json_path",
    type=OutputFile(),
    metavar="FILE|-",
    help="Also write one record per line to this file, as soon as it is measured; - writes to "
    "standard output, with the table on standard error.",
)


def page_option(text: str) -> Decorator:
    """`--html FILE`, with this help."""
    return written_file_option("--html", "page", text)


html_option = page_option(
    "Also write one HTML page with the tables and every figure as bars. It needs no network."
)

device_option = click.option(
    "--device",
    type=Choice(["auto", "cuda", "emulator"]),
    default="auto",
    show_default=True,
    help="Where to run; auto uses a GPU if one works.",
)

# For kernels that may not terminate, or print.
max_steps_option = click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Warp instructions, in loops, after which the emulator stops a block, or soon after.  "
    "[default: 10⁹, in a check 10⁸]",
)
launch_options = combine(
    max_steps_option,
    click.option(
        "--printf-fifo",
        "printf_bytes",
        type=click.IntRange(min=1024),
        metavar="BYTES",
        help="Size of the buffer in which a GPU keeps printed output; what exceeds it is lost. The "
        "emulator loses nothing.  [default: the driver's]",
    ),
)

# What `ladder` and `sweep` have in common.
run_options = combine(
    device_option,
    gpu_option,
    kernels_option,
    seed_option,
    json_option,
    debug_option,
)
