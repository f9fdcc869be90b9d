"""Options that several verbs share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmkit.errors import unknown_name

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def names(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Read comma-separated names."""
    if text is None:
        return None
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise click.BadParameter(f"'{text}' has an empty part: separate names by commas")
    return found


def _sizes(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"'{text}' is not a list of sizes: write, for example, 256,512")
    return tuple(int(part) for part in parts)


def _shapes(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(","))


def _groups(_: click.Context, __: click.Parameter, given: str | tuple[str, ...] | None) -> Any:
    """Problems of the groups that a text, or a file of that name, has; None where none is given."""
    if given is None or given == ():
        return given
    from gemmkit.groups import Groups
    from gemmkit.problem import GemmProblem

    def read(text: str) -> GemmProblem:
        path = Path(text)
        is_file = path.suffix != "" or "/" in text or path.exists()
        return GemmProblem.of_groups(Groups.read(path) if is_file else Groups.parse(text))

    return read(given) if isinstance(given, str) else tuple(read(each) for each in given)


def _no_groups(ctx: click.Context, _: click.Parameter, text: str | None) -> None:
    """Raise a UsageError where groups are given to a verb that has no use for them."""
    if text is not None:
        from gemmkit.errors import UsageError

        raise UsageError(
            f"`gemmkit {ctx.info_name}` compares kernels at products of one shape: run products "
            "of different shapes with `gemmkit bench gemm_grouped --groups MxNxK*COUNT,…`"
        )


def one_problem(shape: str | None, groups: GemmProblem | None) -> str | GemmProblem | None:
    """What is asked for by a shape or by groups, or None.

    Raises:
        UsageError: both are given.
    """
    from gemmkit.errors import UsageError

    if shape is not None and groups is not None:
        raise UsageError("give a shape or --groups, not both")
    return groups or shape


def read_settings(text: str) -> dict[str, int]:
    """Read `KEY=VALUE,…`.

    Raises:
        click.BadParameter: a part is not of that form, or a key is given twice.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _equals, number = (word.strip() for word in part.partition("="))
        if not (key and number.isdecimal()):
            raise click.BadParameter(f"'{part}' is not KEY=VALUE with a whole number")
        if key in found:
            raise click.BadParameter(f"'{key}' is given twice")
        found[key] = int(number)
    return found


def _settings(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, int] | None:
    return None if text is None else read_settings(text)


def combine(*decorators: Decorator) -> Decorator:
    """One decorator that applies several, so that their options are listed in this order."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


if TYPE_CHECKING:
    from gemmkit.problem import GemmProblem

    _Choice = click.Choice[str]
else:
    # Without parameters in older versions of click.
    _Choice = click.Choice


class Choice(_Choice):
    """One of several words; for another one, suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word.

        Raises:
            click.BadParameter: it is none of them.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            what = "value" if param is None or param.name is None else param.name
            self.fail(unknown_name(what.replace("_", " "), value, self.choices), param, ctx)


def file_option(name: str, parameter: str, text: str) -> Decorator:
    """An option that names a file, which need not exist."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option(name, parameter, type=path, metavar="FILE", help=text)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().params["debug"] = True


# `--debug` is taken before the verb and after it.
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
    help="Board to compile for and to emulate, such as rtx3090 (`gemmkit info` lists them).",
)

config_option = click.option(
    "--config",
    callback=_settings,
    metavar="KEY=VALUE,…",
    help="Change keys of the configuration, such as BM=16,BN=16; "
    "`gemmkit show KERNEL` lists a kernel's keys.",
)

kernels_option = click.option(
    "--kernels", callback=names, metavar="NAME,…", help="Only these kernels."
)

sizes_option = click.option(
    "--sizes", callback=_sizes, metavar="N,…", help="Only these sizes of M = N."
)

epilogue_option = click.option(
    "--epilogue",
    help="Fused into the write-back: none, or bias or row_bias, relu, gelu, gelu_tanh or silu, and "
    "residual, joined by '+'.  [default: none]",
)

scale_options = combine(
    click.option("--alpha", type=float, default=1.0, show_default=True, help="Scales A·B."),
    click.option(
        "--beta", type=float, default=0.0, show_default=True, help="Scales what C held before."
    ),
)

type_options = combine(
    click.option(
        "--dtype",
        metavar="TYPE",
        help="Type of A and B: float32, float64, float16 or bfloat16; fp32, fp64, fp16 and bf16 do "
        "too.  [default: float32, or the first that a named kernel takes]",
    ),
    click.option(
        "--out-dtype", metavar="TYPE", help="Type of C, alike.  [default: that of A and B]"
    ),
)

# Of verbs without a TARGET, whose options say how its matrices lie.
layout_option = click.option(
    "--layout",
    default="NN",
    show_default=True,
    metavar="NN|NT|TN|TT",
    help="How A and B lie in memory: N row-major, T transposed. NT is C = A·B with B stored N×K.",
)

# Of one kernel, which may be a user's own: what is not given follows from its parameters.
problem_options = combine(
    type_options,
    click.option(
        "--epilogue",
        help="Fused into the write-back: none, or bias or row_bias, relu, gelu, gelu_tanh or silu, "
        "and residual, joined by '+'.  [default: bias for a file whose kernel takes one, else "
        "none]",
    ),
    click.option("--alpha", type=float, help="Scales A·B.  [default: 1]"),
    click.option("--beta", type=float, help="Scales what C held before.  [default: 0]"),
)

shapes_option = click.option(
    "--shape",
    "shapes",
    callback=_shapes,
    metavar="MxNxK,…",
    multiple=True,
    help="Only these shapes, batches as MxNxKxBATCH; may be given more than once.",
)

_GROUPS_HELP = (
    "Products of different shapes in one launch, such as 512x512x512*4,128x64x32, or a file with "
    "one shape on each line"
)

groups_option = click.option(
    "--groups", callback=_groups, metavar="MxNxK*COUNT,…|FILE", help=f"{_GROUPS_HELP}."
)

several_groups_option = click.option(
    "--groups",
    callback=_groups,
    metavar="MxNxK*COUNT,…|FILE",
    multiple=True,
    help=f"{_GROUPS_HELP}; may be given more than once.",
)

seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the inputs.",
)

json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE|-",
    help="Write one record per line there too, as each is done; - for standard output, with "
    "the table on standard error.",
)

device_option = click.option(
    "--device",
    type=Choice(["auto", "cuda", "emulator"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes a GPU where one works.",
)

# For kernels that may run for ever, or print.
max_steps_option = click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Warp instructions after which the emulator considers a block endless.  [default: "
    "10⁹, in a check 10⁸]",
)
launch_options = combine(
    max_steps_option,
    click.option(
        "--printf-fifo",
        "printf_bytes",
        type=click.IntRange(min=1024),
        metavar="BYTES",
        help="Buffer in which a GPU keeps what kernels print; lines beyond it are lost. The "
        "emulator loses none.  [default: the driver's]",
    ),
)

# What `ladder` and `sweep` have in common.
run_options = combine(
    device_option,
    gpu_option,
    kernels_option,
    seed_option,
    json_option,
    click.option("--groups", callback=_no_groups, hidden=True, expose_value=False),
    debug_option,
)
