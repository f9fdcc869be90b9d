"""A numba-cuda function as a `Kernel`: compiled to PTX for the board at hand, with no GPU.

numba passes an array as its parts (address, shape, strides and four more), so that one argument
of the Python function is several parameters in PTX; they are filled in from the problem.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from gemmkit.cxx.expressions import Expression, split_list
from gemmkit.errors import CompileError, CompilerMissing, UsageError
from gemmkit.frontends.cuda import user_kernel
from gemmkit.frontends.ptx import entries_in, find_entry
from gemmkit.frontends.signatures import POINTERS, SCALES, told_signature
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launch_options import LaunchOptions
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.plan import ARGUMENT_NAMES, Signature, SourceFile

HOW_TO_GET = "install it with `pip install 'gemmkit[numba]'`"

# Rows, columns and leading dimension of what an argument points to; the bias is one row.
_EXTENTS = {
    "A": ("M", "K", "lda"),
    "B": ("K", "N", "ldb"),
    "C": ("M", "N", "ldc"),
    "bias": ("1", "N", "N"),
}
_ENVIRONMENT = re.compile(r"_ZN08NumbaEnv[\w$]+")
# Options of `@cuda.jit` that `cuda.compile` takes too.
_OPTIONS = ("fastmath", "opt", "launch_bounds")


def kernel_from_numba(
    function: Callable[..., object],
    launch: LaunchOptions,
    types: str | Sequence[Any] | None = None,
) -> Kernel:
    """See `Kernel.from_numba`."""
    _numba()
    plain = getattr(function, "py_func", function)
    if not isinstance(plain, FunctionType):
        raise UsageError(f"{function!r} is not a function that numba-cuda can compile")
    arguments = _arguments(plain, launch.args)
    front_end = _FrontEnd(
        plain,
        arguments,
        _types(plain.__name__, arguments, types),
        {key: value for key in _OPTIONS if (value := _option(function, key)) is not None},
        read_layout(launch.layout),
    )
    kernel = user_kernel(
        front_end.source,
        entry=plain.__name__,
        signature=front_end.signature,
        launch=launch,
        name=launch.name or plain.__name__,
        idea=(inspect.getdoc(plain) or "").partition("\n")[0],
    )
    return replace(kernel, translate=functools.cache(front_end.translate))


@dataclass(frozen=True)
class _FrontEnd:
    """A Python function, what each of its arguments is, and of which numba type.

    Arrays have the shapes that lie in memory by `layout`, that of `GemmProblem`.
    """

    function: FunctionType
    arguments: Signature
    types: tuple[Any, ...]
    options: dict[str, Any]
    layout: str

    @functools.cached_property
    def source(self) -> SourceFile:
        """The file or notebook cell that the function stands in; empty if it stands in none."""
        file = self.function.__code__.co_filename
        linecache.checkcache(file)
        return SourceFile("".join(linecache.getlines(file)), Path(file).name, "python")

    @functools.cached_property
    def signature(self) -> Signature:
        """A name or expression for each parameter of the PTX."""
        return tuple(
            each
            for name, kind in zip(self.arguments, self.types, strict=True)
            for each in self._parts(name, kind)
        )

    def translate(self, gpu: GpuSpec) -> tuple[SourceFile, str]:
        """PTX for a board, and the kernel's symbol in it.

        Raises:
            CompileError: numba refuses the function.
            CompilerMissing: numba finds no NVVM.
        """
        from cuda.pathfinder import DynamicLibNotFoundError

        cuda = _numba()
        capability = gpu.capability.major, gpu.capability.minor
        name = self.function.__name__
        try:
            with _board_at_hand(capability):
                ptx, _ = cuda.compile(
                    self.function,
                    self.types,
                    device=False,
                    abi="numba",
                    output="ptx",
                    # numba warns where it does not find the lines.
                    lineinfo=bool(self.source.text),
                    cc=capability,
                    **self.options,
                )
        except (ImportError, DynamicLibNotFoundError) as error:
            raise CompilerMissing(f"numba-cuda lacks NVVM ({_line(error)}): {HOW_TO_GET}") from None
        except Exception as error:
            # Each of numba's stages has exceptions of its own, from Python's to NVVM's.
            message = f"numba-cuda cannot compile '{name}' for sm_{capability[0]}{capability[1]}"
            raise CompileError(f"{message}: {str(error).strip()}") from None
        # Line tables name the file as other sources are named, without its folder.
        ptx = ptx.replace(f'"{self.function.__code__.co_filename}"', f'"{self.source.name}"')
        symbol, ptx = _short_symbols(ptx, name)
        source = SourceFile(ptx, f"{name}.ptx", "ptx")
        if len(entries_in(ptx)[symbol]) != len(self.signature):
            raise CompileError(
                f"this version of numba-cuda passes '{name}' its arguments in a form that gemmkit "
                f"does not recognize: {HOW_TO_GET}"
            )
        return source, symbol

    def _parts(self, name: str, kind: Any) -> Iterator[str]:
        """An argument as PTX takes it: numba's `ArrayModel` field by field, others whole."""
        if not hasattr(kind, "layout"):
            yield name
            return
        rows, columns, leading = _EXTENTS[name]
        if dict(zip("ABC", self.layout, strict=False)).get(name) == "t":
            rows, columns = columns, rows
        pitch = columns if kind.layout == "C" else leading
        shape = (rows, columns)[-kind.ndim :]
        strides = (f"4*{pitch}", "4")[-kind.ndim :]
        meminfo, parent, items, item_bytes = "0", "0", f"{rows}*{columns}", "4"
        yield from (meminfo, parent, items, item_bytes, name, *shape, *strides)


def _numba() -> ModuleType:
    try:
        import numba_cuda  # noqa: F401 - numba alone has an older `numba.cuda`
        from numba import cuda
    except (ImportError, RuntimeError) as error:
        # Without the CUDA runtime library its import fails with a RuntimeError.
        message = f"numba-cuda cannot be imported ({_line(error)})"
        raise CompilerMissing(f"{message}: {HOW_TO_GET}") from None
    return cuda  # type: ignore[no-any-return]


def _short_symbols(ptx: str, name: str) -> tuple[str, str]:
    """A kernel's new symbol, and its PTX with that in place of numba's.

    numba's symbols are hundreds of characters long, and hold a number that counts what the process
    has compiled, so that no cache would find the same function again. (A bare `add` or `vote` would
    be an instruction in PTX.)
    """
    symbol = "numba_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
    short = {find_entry(None, ptx, name): symbol}
    for number, environment in enumerate(dict.fromkeys(_ENVIRONMENT.findall(ptx))):
        short[environment] = f"numba_environment_{number}"
    # The longest first: one may begin like another.
    for long in sorted(short, key=len, reverse=True):
        ptx = ptx.replace(long, short[long])
    return symbol, ptx


@contextmanager
def _board_at_hand(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba's dispatcher take a board for present.

    For each `@cuda.jit(device=True)` function that a kernel calls, it asks the current GPU for
    its compute capability, whatever is passed to `cuda.compile`.
    """
    from numba.cuda import dispatcher

    ask = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = ask


def _option(function: object, key: str) -> Any:
    return getattr(function, "targetoptions", {}).get(key)


def _arguments(function: FunctionType, args: str | Sequence[str] | None) -> Signature:
    """What each argument is, as told or else by its name."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if args is None:
        unknown = [each for each in names if each not in ARGUMENT_NAMES]
        if unknown:
            raise UsageError(
                f"cannot tell what '{unknown[0]}' of '{function.__name__}({', '.join(names)})' is: "
                f"give args, with one of {','.join(ARGUMENT_NAMES)} (or a number, or an expression "
                "of these) for each"
            )
        return names
    given = split_list(args) if isinstance(args, str) else [str(each) for each in args]
    if len(given) != len(names):
        raise UsageError(
            f"'{function.__name__}' takes {len(names)} arguments ({', '.join(names)}), but args "
            f"gives {len(given)}: {','.join(given)}"
        )
    return told_signature(given, None, {}, names=ARGUMENT_NAMES)


def _types(
    function: str, arguments: Signature, given: str | Sequence[Any] | None
) -> tuple[Any, ...]:
    """The numba type of each argument, as told or else as numba takes what is usually passed.

    Raises:
        UsageError: numba does not read `given`, or it does not fit the arguments.
    """
    from numba import types

    if given is None:
        return tuple(_usual_type(each, types) for each in arguments)
    try:
        found = _read_types(given)
    except Exception as error:
        raise UsageError(f"numba cannot parse the types {given!r}: {_line(error)}") from None
    if len(found) != len(arguments):
        raise UsageError(
            f"'{function}' takes {len(arguments)} arguments, but types gives {len(found)}"
        )
    for name, kind in zip(arguments, found, strict=True):
        _check_type(name, kind, types)
    return found


def _read_types(given: str | Sequence[Any]) -> tuple[Any, ...]:
    """A text of several types, or a sequence of types and texts of one each."""
    from numba.core.sigutils import normalize_signature

    if isinstance(given, str):
        return tuple(normalize_signature(given)[0])
    return tuple(
        normalize_signature(f"({each},)")[0][0] if isinstance(each, str) else each for each in given
    )


def _usual_type(argument: str, types: ModuleType) -> Any:
    """As numba sees a C-contiguous fp32 array, a Python float or a Python int."""
    if argument in POINTERS:
        return types.Array(types.float32, 1 if argument == "bias" else 2, "C")
    expression = Expression.parse(argument)
    ones = dict.fromkeys(expression.names, 1)
    is_float = expression.names & set(SCALES) or isinstance(expression.evaluate(ones), float)
    return types.float64 if is_float else types.int64


def _check_type(name: str, kind: Any, types: ModuleType) -> None:
    if name not in POINTERS:
        if not isinstance(kind, (types.Integer, types.Float)):
            raise UsageError(f"'{name}' must be an integer or a floating-point number, not {kind}")
        return
    dimensions = 1 if name == "bias" else 2
    if isinstance(kind, types.Array):
        if kind.ndim == dimensions and kind.dtype == types.float32 and kind.layout in ("C", "A"):
            return
    elif isinstance(kind, types.CPointer) and kind.dtype == types.float32:
        return
    wanted = "float32[:, ::1], float32[:, :]" if dimensions == 2 else "float32[::1], float32[:]"
    raise UsageError(f"'{name}' must be {wanted} or CPointer(float32), not {kind}")


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
