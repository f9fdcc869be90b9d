"""Kernel parameters that no product has a value for, refused before anything is compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from gemmkit.cxx.declarations import KernelDeclaration
from gemmkit.errors import UsageError, nearest
from gemmkit.frontends.signatures import FLOATS, INTEGERS
from gemmkit.kernels.plan import ARGUMENT_NAMES, SCRATCH_ARGUMENTS

MAP_TYPES = ("CUtensorMap", "CUtensorMap_st")
_TEXTURES = "is a texture: textures are not supported; read the matrix through a plain pointer"
_SURFACES = "is a surface: surfaces are not supported; write the matrix through a plain pointer"
_TMA = (
    "is a tensor map: say of which matrix and box, such as "
    "--tensor-map '{name}=A,box=64x128,swizzle=128B'"
)
_REFUSED = {
    "cudaTextureObject_t": _TEXTURES,
    "CUtexObject": _TEXTURES,
    "cudaSurfaceObject_t": _SURFACES,
    "CUsurfObject": _SURFACES,
    **dict.fromkeys(MAP_TYPES, _TMA),
}


def check_parameters(kernel: KernelDeclaration, file: str, mapped: Collection[int] = ()) -> None:
    """Look at the types of a kernel's parameters; `file` is the one that declares it.

    `mapped` are the numbers of the parameters that tensor maps are given for.

    Raises:
        UsageError: one of them cannot be given a value.
    """
    for number, parameter in enumerate(kernel.parameters):
        where = f"{file}:{kernel.line}: '{parameter}' of '{kernel.name}'"
        reason = _REFUSED.get(parameter.type.split("::")[-1])
        if parameter.pointer and (reason == _TMA or number in mapped):
            raise UsageError(
                f"{where} points to a tensor map: take it by value, as const __grid_constant__"
            )
        if number in mapped and parameter.type in (*INTEGERS, *FLOATS):
            raise UsageError(
                f"{where} is a number: a tensor map is a struct of 128 bytes, such as CUtensorMap"
            )
        if reason is not None and number not in mapped:
            named = parameter.name or "map_a"
            if named in ARGUMENT_NAMES:
                named = f"map_{named.lower()}"
            raise UsageError(f"{where} {reason.format(name=named)}")


def check_folders(folders: Sequence[str | Path]) -> None:
    """Check that folders to search for included files exist.

    Raises:
        UsageError: one is not a folder.
    """
    for each in folders:
        if not Path(each).is_dir():
            what = "this is not a folder" if Path(each).exists() else "there is no such folder"
            raise UsageError(f"-I {each}: {what}")


def check_misspelled(
    maps: Collection[str], given: Sequence[str], kernel: KernelDeclaration
) -> None:
    """Check that no tensor map, nor an argument for one, has almost the name that is wanted.

    `given` are the arguments, or the parameters' own names.

    Raises:
        UsageError: a parameter of a kernel that takes a tensor map is given none, and one of a
            similar name is not used.
    """
    wanted = [
        name
        for name, each in zip(given, kernel.parameters, strict=False)
        if each.type.split("::")[-1] in MAP_TYPES and not each.pointer and name not in maps
    ]
    for name in maps:
        near = nearest(name, wanted, most=1) if name not in given else []
        if near:
            raise UsageError(
                f"no parameter or argument of '{kernel.name}' is called '{name}', as a tensor map "
                f"is: did you mean {near[0]}?"
            )


def check_map_names(maps: Collection[str]) -> None:
    """Check that no tensor map has the name of an argument.

    Raises:
        UsageError: one has.
    """
    for name in maps:
        if name in (*ARGUMENT_NAMES, *SCRATCH_ARGUMENTS):
            raise UsageError(
                f"a tensor map cannot be called '{name}', as an argument is: give it another name, "
                "and --args with that name where the kernel takes the map"
            )


def check_maps(
    maps: Collection[str],
    given: Sequence[str],
    kernel: KernelDeclaration | None,
    fields: Collection[str] = (),
) -> None:
    """Check that an argument, a parameter's own name, or one of the `fields` of structs, asks for
    each tensor map.

    Raises:
        UsageError: none does.
    """
    for name in maps:
        if name not in given and name not in fields:
            of = f" of '{kernel.name}'" if kernel is not None else ""
            raise UsageError(
                f"tensor map '{name}' is not among the arguments{of}, {', '.join(given)}: give "
                "--args with its name where the kernel takes it"
            )
