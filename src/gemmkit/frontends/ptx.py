"""PTX that any front end has made, as a `Kernel`: its entries, their parameters, its target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from gemmkit.cxx.expressions import split_list
from gemmkit.cxx.head_comments import head_comment
from gemmkit.dtypes import OPERAND_TYPES, RESULT_TYPES, Dtype, full_type_name
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.file_directives import text_name
from gemmkit.frontends.cuda import given_to, read_source, user_kernel
from gemmkit.frontends.refusals import check_map_names, check_maps
from gemmkit.frontends.signatures import (
    POINTERS,
    SCALES,
    told_signature,
)
from gemmkit.gpu import GpuSpec, first_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launch_options import LaunchOptions
from gemmkit.kernels.plan import LEADING_DIMENSIONS, SourceFile, TileConfig
from gemmkit.kernels.sizes import SIZES
from gemmkit.kernels.tensor_maps import read_maps
from gemmkit.tensor_maps import MAP_BYTES

# Parameters of fp16 and bf16, which compilers declare as structs of two bytes.
HALVES = ("f16", "b16", "u16", "b8[2]")

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\[]*(\[\d+\])?")
_IDENTIFIER = re.compile(r"(\d+)")


def kernel_from_ptx(ptx: str | Path, launch: LaunchOptions) -> Kernel:
    """See `Kernel.from_ptx`."""
    if isinstance(ptx, str) and "\n" in ptx:
        text, file_name = ptx, "kernel.ptx"
    else:
        path = Path(ptx)
        text, file_name = read_source(path), text_name(path.name)
    if launch.include_dirs or launch.options:
        raise UsageError(f"{file_name} is already compiled: omit --include and --option")
    args = launch.args
    if args is None:
        raise UsageError(
            f"{file_name} does not say what its parameters are, because it is PTX: give --args"
        )
    symbol = find_entry(launch.entry, text, file_name)
    listed = split_list(args) if isinstance(args, str) else [str(each) for each in args]
    name = launch.name or readable_name(symbol)
    parameters = entries_in(text)[symbol]
    if len(listed) != len(parameters):
        raise UsageError(
            f"'{name}' has {len(parameters)} parameters in {file_name} ({', '.join(parameters)}), "
            f"but args gives {len(listed)}: {','.join(listed)}"
        )
    maps = {each.name for each in read_maps(launch.tensor_maps)}
    check_map_names(maps)
    check_maps(maps, listed, None)
    signature = told_signature(listed, None, {}, maps)
    for argument, kind in zip(signature, parameters, strict=True):
        _check_fit(name, argument, kind, is_map=argument in maps)
    source = SourceFile(text, file_name, "ptx")
    kernel = user_kernel(
        source,
        entry=symbol,
        signature=signature,
        launch=launch,
        name=name,
        idea=_idea(text),
    )
    scalars = tuple(
        (each, None)
        for each, kind in zip(signature, parameters, strict=True)
        if each in SCALES and kind in HALVES
    )
    kernel = replace(kernel, rule=_target_rule(source), scalars=scalars, **_types(launch))
    return given_to(kernel, launch)


def _types(launch: LaunchOptions) -> dict[str, Any]:
    """The types that a kernel takes: those told, else all, fp32 first. C's follow those of A and B.

    Raises:
        UnsupportedType: there is no such type.
    """
    known: tuple[Dtype, ...] = get_args(Dtype)

    def read(what: str, given: str | None, others: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        if given is None:
            return others
        found = next((each for each in known if each == full_type_name(given)), None)
        if found is None:
            raise UnsupportedType(unknown_name(what, given, known))
        return (found,)

    dtypes = read("dtype", launch.dtype, known)
    same = () if len(dtypes) > 1 else RESULT_TYPES if dtypes[0] in OPERAND_TYPES else dtypes
    results = read("out_dtype", launch.out_dtype, same)
    return {"dtypes": dtypes, "result_dtypes": results}


def entries_in(ptx: str) -> Mapping[str, tuple[str, ...]]:
    """The kernels of a PTX text: symbol → the types of its parameters, such as `u64` and `f32`.

    That of a struct is its array of bytes, such as `b8[12]`.
    """
    plain = _COMMENT.sub(" ", ptx)
    return {
        symbol: tuple(kind + extent for kind, extent in _PARAMETER.findall(listed))
        for symbol, listed in _ENTRY.findall(plain)
    }


def find_entry(entry: str | None, ptx: str, file_name: str) -> str:
    """The symbol of a kernel that is asked for by its symbol or by its name in the source.

    Raises:
        UsageError: there is no such kernel, or more than one.
    """
    symbols = entries_in(ptx)
    if not symbols:
        raise UsageError(f"{file_name} contains no PTX kernel: it has no .entry directive")
    if entry is not None and entry in symbols:
        return entry
    matches = [each for each in symbols if entry in (None, readable_name(each))]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(symbols)
    if entry is None:
        raise UsageError(
            f"{file_name} has several kernels: choose one with --entry; it has: {listed}"
        )
    how_many = "several kernels" if matches else "no kernel"
    raise UsageError(f"{file_name} has {how_many} '{entry}'; it has: {listed}")


def readable_name(symbol: str) -> str:
    """A function's own name in a symbol mangled by the Itanium C++ ABI; others stay as they are.

    `_ZN3foo5sgemmILi3EEEvPf` gives `sgemm`.
    """
    if not symbol.startswith("_Z"):
        return symbol
    position = 3 if symbol.startswith("_ZN") else 2
    name = ""
    while length := _IDENTIFIER.match(symbol, position):
        position = length.end() + int(length[1])
        name = symbol[length.end() : position]
    return name or symbol


def _check_fit(kernel: str, argument: str, kind: str, *, is_map: bool) -> None:
    """Raise a UsageError where a parameter of this type cannot take the argument."""
    if is_map:
        fits, what = kind == f"b8[{MAP_BYTES}]", f"is a tensor map of {MAP_BYTES} bytes"
    elif argument in POINTERS:
        fits, what = kind in ("u64", "s64", "b64"), "is a pointer"
    elif argument in SCALES:
        fits = kind in ("f32", "f64", "b32", "b64", *HALVES)
        what = "is a floating-point number"
    elif argument in (*SIZES, *LEADING_DIMENSIONS):
        fits, what = kind[0] in "usb" and "[" not in kind, "is an integer"
    else:
        fits, what = "[" not in kind, "is a number"
    if not fits:
        raise UsageError(
            f"argument '{argument}' of '{kernel}' {what}, but its parameter is .{kind}: give args "
            "in the order of the parameters"
        )


def _idea(ptx: str) -> str:
    """The first line of the comment that a hand has put on top; a compiler's tells nothing."""
    line = head_comment(ptx)
    return "" if line.startswith("Generated by") else line


def _target_rule(source: SourceFile) -> Callable[[TileConfig, GpuSpec], str | None]:
    """Why a board cannot run PTX of this target, or None."""
    found = _TARGET.search(_COMMENT.sub(" ", source.text))
    if found is None:
        raise UsageError(f"{source.name} is not PTX: it has no '.target sm_…' directive")
    number, suffix = int(found[1]), found[2]

    def rule(config: TileConfig, gpu: GpuSpec) -> str | None:  # noqa: ARG001
        board = 10 * gpu.capability.major + gpu.capability.minor
        runs = {
            "": board >= number,
            "a": board == number,
            "f": board >= number and board // 10 == number // 10,
        }[suffix]
        if runs:
            return None
        other = first_board(f"{number}{suffix}")
        asked = f": give --gpu {other.key}" if other is not None else ""
        compiled = f"{source.name} is compiled for sm_{number}{suffix}"
        return f"{compiled}, but {gpu.name} is sm_{board}{asked}"

    return rule
