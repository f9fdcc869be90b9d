"""Kernel parameters that no product has a value for, refused before anything is compiled."""

from __future__ import annotations

from gemmkit.cxx.declarations import KernelDeclaration
from gemmkit.errors import UsageError

_TEXTURES = "is a texture: textures are not supported; read the matrix through a plain pointer"
_SURFACES = "is a surface: surfaces are not supported; write the matrix through a plain pointer"
_TMA = (
    "is a tensor map: copies by the Tensor Memory Accelerator (TMA) are not supported in user "
    "kernels; take a plain pointer to the matrix"
)
_REFUSED = {
    "cudaTextureObject_t": _TEXTURES,
    "CUtexObject": _TEXTURES,
    "cudaSurfaceObject_t": _SURFACES,
    "CUsurfObject": _SURFACES,
    "CUtensorMap": _TMA,
    "CUtensorMap_st": _TMA,
}


def check_parameters(kernel: KernelDeclaration, file: str) -> None:
    """Look at the types of a kernel's parameters; `file` is the one that declares it.

    Raises:
        UsageError: one of them cannot be given a value.
    """
    for parameter in kernel.parameters:
        reason = _REFUSED.get(parameter.type.split("::")[-1])
        if reason is not None:
            raise UsageError(f"{file}:{kernel.line}: '{parameter}' of '{kernel.name}' {reason}")
