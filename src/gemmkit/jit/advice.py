"""What to do about compiler errors whose own words do not say it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gemmkit.jit.stand_ins import STAND_INS
from gemmkit.kernels.plan import EXPRESSION_FILE

_UNDEFINED = re.compile(r'(?:identifier|name) "(?P<name>\w+)" is undefined')
_NO_SUCH_HEADER = re.compile(r'(?:could not|cannot) open source file "(?P<name>.+?)"')
# How programs spell macros and constants.
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?|k[A-Z]\w*")
_WARP_SIZE = re.compile(r"k?_?WARP_?SIZE_?|k?_?WARP_?SZ|kThreadsPerWarp|THREADS_PER_WARP", re.I)
# Errors in it begin their line with its name.
_OWN_HEADER = "\n__nv_nvrtc_builtin_header.h("
_NOWHERE = "not declared in any of the files given to the compiler"
_DEVICE_LAUNCH = "device-side kernel launch could not be processed"
# Words of an erroneous line, and what is to be said of them.
_LIBRARIES = (
    (r"\btex[123]D\w*\s*[<(]|\btexture\s*<",
     "texture references were removed in CUDA 12, and textures are not supported here: read the "
     "matrices through plain pointers"),
    (r"\bsurf[123]D\w*\s*[<(]|\bsurface\s*<",
     "surface references were removed in CUDA 12, and surfaces are not supported here: write "
     "through plain pointers"),
    (r"\bthrust\s*::",
     "thrust is not supported in kernels here (host code that uses it is left out): write out what "
     "it computes"),
    (r"\bcub\s*::",
     "<cub/cub.cuh> as a whole is for host code: include the header of what the kernel uses, such "
     "as <cub/block/block_reduce.cuh>"),
    (r"\bcudaGridDependencySynchronize\b|\bcudaTriggerProgrammaticLaunchCompletion\b",
     "programmatic dependent launches need compute capability 9.0 or higher: choose a GPU such as "
     "--gpu h100"),
)  # fmt: skip


def advice(log: str, sources: Mapping[str, str]) -> Iterator[str]:
    """Sentences for the errors in a log; `sources` maps the names of files to their text."""
    if _DEVICE_LAUNCH in log:
        yield (
            "a kernel that launches kernels (dynamic parallelism) is not supported: call the code "
            "as a __device__ function, or check the inner kernel by itself"
        )
    for pattern, words in _LIBRARIES:
        if re.search(pattern, log):
            yield words
    yield from _undefined(log, sources)
    if _OWN_HEADER in log:
        yield (
            "NVRTC's own header does not compile: a macro of --option=-D… has the name of "
            "something in it, such as T or size_t; give it another name"
        )
    missing = _NO_SUCH_HEADER.search(log)
    if missing is not None:
        yield _missing_header(missing["name"], sources)


def _undefined(log: str, sources: Mapping[str, str]) -> Iterator[str]:
    """Constants and types that a file expects of those that include it."""
    if EXPRESSION_FILE in sources:
        for name in dict.fromkeys(_UNDEFINED.findall(log)):
            called = re.search(rf"\b{name}\s*\(", sources[EXPRESSION_FILE])
            yield (
                f"'{name}' is not a CUDA function for device code"
                if called
                else f"'{name}' is neither x nor a parameter: give its value by name, as in "
                f"Epilogue.custom(..., {name}=1.0)"
            )
        return
    text = "\n".join(text for name, text in sources.items() if name not in STAND_INS)
    values: dict[str, str] = {}
    for name in dict.fromkeys(_UNDEFINED.findall(log)):
        if re.search(rf"\b{name}\s*\(", text):
            if _CONSTANT.fullmatch(name):
                yield f"{_NOWHERE}: '{name}'; include the header that declares it"
        elif re.search(rf"\b{name}\s*[*&]*\s+[*&]*\w+\s*[\[=;,)({{]|<\s*{name}\s*>", text):
            values[name] = "float"
        elif _CONSTANT.fullmatch(name):
            values[name] = "32" if _WARP_SIZE.fullmatch(name) else "VALUE"
    if values:
        names = ", ".join(f"'{name}'" for name in values)
        options = " ".join(f"--option=-D{name}={value}" for name, value in values.items())
        yield (
            f"{_NOWHERE}: {names}; where a file that includes this one is to declare it, give its "
            f"value: {options}"
        )


def _missing_header(name: str, sources: Mapping[str, str]) -> str:
    headers = ", ".join(sorted(sources.keys() - STAND_INS.keys()))
    return (
        f"'{name}' is none of the files that were given to the compiler ({headers}). NVRTC has "
        "no C and C++ standard headers; for a folder of your own, add the option -I FOLDER"
    )
