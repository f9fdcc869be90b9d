"""How a user's own kernel becomes a `Kernel`: by a front end, which is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from gemmkit.errors import UnsupportedType
from gemmkit.kernels.launch_options import Extent, LaunchOptions

if TYPE_CHECKING:
    from gemmkit.kernels.plan import SourceFile
    from gemmkit.kernels.variables import Value


class UsersKernels:
    """The constructors of `Kernel`, and how it is shown."""

    name: str
    file: SourceFile | None

    def __repr__(self) -> str:
        where = f" from {self.file.name}" if self.file is not None else ""
        return f"<Kernel {self.name}{where}>"

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        entry: str | None = None,
        args: str | Sequence[str] | None = None,
        grid: Extent | None = None,
        block: Extent | None = None,
        shared: str | int = "0",
        workspace: str | int = "0",
        semaphores: str | int = "0",
        layout: str = "nn",
        multiple_of: str | int | Sequence[int] = 1,
        name: str | None = None,
        include_dirs: Sequence[str | Path] = (),
        options: Sequence[str] = (),
        tensor_maps: str | Sequence[str] = (),
        constants: Mapping[str, Value] | None = None,
        compute_dtype: str = "",
        tolerance: float | None = None,
    ) -> Self:
        """A kernel from a `.cu` file of your own; host code in it is ignored.

        Args:
            path: the file.
            entry, args, grid, block, shared, workspace, semaphores, layout, multiple_of, name,
            include_dirs, options, tensor_maps, constants, compute_dtype, tolerance: see
            `LaunchOptions`.

        Raises:
            UsageError: no such file, entry or name, or an argument that is not valid.
        """
        _check_path(path)
        launch = LaunchOptions(
            entry=entry,
            args=args,
            grid=grid,
            block=block,
            shared=shared,
            workspace=workspace,
            semaphores=semaphores,
            layout=layout,
            multiple_of=multiple_of,
            name=name,
            include_dirs=include_dirs,
            options=options,
            tensor_maps=tensor_maps,
            constants=constants,
            compute_dtype=compute_dtype,
            tolerance=tolerance,
        )
        return cast(Self, _built("cuda", "kernel_from_file", path, launch))

    @classmethod
    def from_path(cls, path: str | Path, launch: LaunchOptions) -> Self:
        """A file of your own: PTX if its name ends in `.ptx`, otherwise CUDA C++.

        Args:
            path: the file.
            launch: the arguments of `from_file` or `from_ptx`, as one object.

        Raises:
            UsageError: as `from_file` and `from_ptx`.
        """
        _check_path(path)
        if Path(path).suffix.lower() == ".ptx":
            return cast(Self, _built("ptx", "kernel_from_ptx", path, launch))
        return cast(Self, _built("cuda", "kernel_from_file", path, launch))

    @classmethod
    def from_ptx(
        cls,
        ptx: str | Path,
        *,
        entry: str | None = None,
        args: str | Sequence[str],
        grid: Extent,
        block: Extent,
        shared: str | int = "0",
        workspace: str | int = "0",
        semaphores: str | int = "0",
        layout: str = "nn",
        multiple_of: str | int | Sequence[int] = 1,
        name: str | None = None,
        tensor_maps: str | Sequence[str] = (),
        constants: Mapping[str, Value] | None = None,
        compute_dtype: str = "",
        tolerance: float | None = None,
        dtype: str | None = None,
        out_dtype: str | None = None,
    ) -> Self:
        """A kernel from PTX, whatever compiler wrote it.

        Args:
            ptx: a file, or the text itself.
            entry, args, grid, block, shared, workspace, semaphores, layout, multiple_of, name,
            tensor_maps, constants, compute_dtype, tolerance, dtype, out_dtype: see
            `LaunchOptions`.

        Raises:
            UsageError: no such file or entry, no PTX, or an argument that is not valid.
            UnsupportedType: there is no such type.
        """
        _check_path(ptx)
        launch = LaunchOptions(
            entry=entry,
            args=args,
            grid=grid,
            block=block,
            shared=shared,
            workspace=workspace,
            semaphores=semaphores,
            layout=layout,
            multiple_of=multiple_of,
            name=name,
            tensor_maps=tensor_maps,
            constants=constants,
            compute_dtype=compute_dtype,
            tolerance=tolerance,
            dtype=dtype,
            out_dtype=out_dtype,
        )
        return cast(Self, _built("ptx", "kernel_from_ptx", ptx, launch))

    @classmethod
    def from_numba(
        cls,
        function: Callable[..., object],
        *,
        args: str | Sequence[str] | None = None,
        grid: Extent,
        block: Extent,
        shared: str | int = "0",
        types: str | Sequence[Any] | None = None,
        layout: str = "nn",
        multiple_of: str | int | Sequence[int] = 1,
        name: str | None = None,
    ) -> Self:
        """A kernel from a numba-cuda function, compiled for each board at its first launch.

        Args:
            function: a plain function, or one with `@cuda.jit` (without a signature, for which
                numba wants a GPU).
            args: as in `LaunchOptions`; not needed where the function calls its arguments so.
            types: numba's types of the arguments, as a text or one by one:
                `"float32[:,:], float32[:,:], float32[:,:], int32"`. By default what numba takes
                contiguous fp32 arrays, Python ints and Python floats for. Arrays may also be
                `CPointer(float32)`.
            grid, block, shared, layout, multiple_of, name: see `LaunchOptions`; arrays have the
            shapes that the layout gives them.

        Raises:
            CompilerMissing: numba-cuda is not installed.
            UsageError: an argument that is not valid.
        """
        launch = LaunchOptions(
            args=args,
            grid=grid,
            block=block,
            shared=shared,
            layout=layout,
            multiple_of=multiple_of,
            name=name,
        )
        return cast(Self, _built("numba", "kernel_from_numba", function, launch, types))


def _check_path(path: object) -> None:
    """Raise an UnsupportedType for what is not a path."""
    if not isinstance(path, (str, PathLike)):
        raise UnsupportedType(f"{path!r} is not a path: name a file of source code")


def _built(front_end: str, function: str, *arguments: object) -> Any:
    """What a function of a front end makes: front ends import `Kernel`, and not the reverse."""
    return getattr(import_module(f"gemmkit.frontends.{front_end}"), function)(*arguments)
