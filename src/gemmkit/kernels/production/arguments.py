"""What production kernels are passed: one struct by value, and template arguments by name.

The struct's fields, their order and types are read from `arguments.cuh`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from gemmkit.kernels import include_files
from gemmkit.kernels.plan import (
    BATCH_ARGUMENTS,
    EPILOGUE_ARGUMENTS,
    SGEMM_SIGNATURE,
    Dim3,
    FieldPlace,
    LaunchShape,
    Signature,
    StructPlace,
)
from gemmkit.kernels.policy import CUDA_TYPES, policy
from gemmkit.problem import GemmProblem

_FIELD = re.compile(r"^  (?:const )?(?P<type>\w+(?: \w+)?)(?P<pointer>\*?) (?P<name>\w+);", re.M)

# Size in bytes and type in PTX's words.
_SCALARS: Mapping[str, tuple[int, str]] = {
    "int": (4, "s32"),
    "long long": (8, "s64"),
    "float": (4, "f32"),
    "double": (8, "f64"),
}

# Fields that the vocabulary of signatures calls otherwise.
_VOCABULARY = {"semaphores": "arrivals"}

# Layouts as layout.cuh calls them.
CUDA_LAYOUTS = {"nn": "A_B", "nt": "A_BT", "tn": "AT_B", "tt": "AT_BT"}

Named = int | bool | str


class _Field(NamedTuple):
    name: str
    type: str
    pointer: bool


@cache
def _fields() -> tuple[_Field, ...]:
    text = include_files()["arguments.cuh"]
    body = text[text.index("struct Arguments {") :]
    return tuple(
        _Field(each["name"], each["type"], bool(each["pointer"])) for each in _FIELD.finditer(body)
    )


def signature(*besides: str) -> Signature:
    """A name for each field of the struct, and 0 for those that a kernel has no use for.

    It uses the matrices, their batch and the epilogue's arguments, and `besides`.
    """
    return only(*SGEMM_SIGNATURE, *BATCH_ARGUMENTS, *EPILOGUE_ARGUMENTS, *besides)


def only(*used: str) -> Signature:
    """The same of a kernel that uses these fields alone."""
    names = (_VOCABULARY.get(each.name, each.name) for each in _fields())
    return tuple(name if name in used else "0" for name in names)


def arguments_place(problem: GemmProblem) -> tuple[StructPlace]:
    """How the struct is laid out; parameters of a custom epilogue are its last fields."""
    accumulator = CUDA_TYPES[problem.sum_dtype]
    fields = [*_fields(), *(_Field(name, "Sum", False) for name in problem.epilogue.arguments)]
    places: list[FieldPlace] = []
    end = 0
    for each in fields:
        scalar = accumulator if each.type == "Sum" else each.type
        size, kind = (8, "u64") if each.pointer else _SCALARS[scalar]
        offset = -(-end // size) * size
        places.append(FieldPlace(offset, size, kind, each.pointer))
        end = offset + size
    return (StructPlace("Arguments", -(-end // 8) * 8, 8, tuple(places)),)


def named(struct: str, fields: Mapping[str, Named]) -> str:
    """A struct of C++ with its fields by name, in the order of their declaration."""
    told = ", ".join(
        f".{name} = {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in fields.items()
    )
    return f"{struct}{{{told}}}"


def access(a: int, b: int, c: int) -> str:
    """Elements per global access of each matrix."""
    return named("Access", {"a": a, "b": b, "c": c})


def launch_shape(
    problem: GemmProblem,
    template: Iterable[str],
    grid: Dim3,
    threads: int,
    shared_bytes: int,
) -> LaunchShape:
    """A launch with the epilogue as last template argument and the struct as only parameter."""
    return LaunchShape(
        template=(*template, policy(problem)),
        grid=grid,
        block=(threads, 1, 1),
        shared_bytes=shared_bytes,
        structs=arguments_place(problem),
    )
