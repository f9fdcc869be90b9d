"""`__constant__` variables whose type has another name."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gemmkit.errors import UsageError
from gemmkit.kernels.plan import SourceFile
from gemmkit.kernels.variables import variables_of
from gemmkit.problem import GemmProblem

PROBLEM = GemmProblem(3, 4, 5)


def source_of(text: str, *options: str) -> SourceFile:
    return SourceFile(text, "own.cu", "cuda", (str(Path.cwd()),), options)


@pytest.mark.parametrize(
    ("declared", "options", "layout"),
    [
        ("typedef float real; __constant__ real x[2];", (), "<2f"),
        ("using real = double; using scalar = real; __constant__ scalar x[2];", (), "<2d"),
        ("#define INDEX long long\n__device__ INDEX x[2];", (), "<2q"),
        ("__constant__ REAL x[2];", ("-DREAL=double",), "<2d"),
        ("typedef std::uint16_t small; __constant__ small x[2];", (), "<2H"),
    ],
)
def test_types_by_other_names(declared: str, options: tuple[str, ...], layout: str) -> None:
    found = variables_of(source_of(declared, *options), {"x": ["M", "K"]})
    assert dict(found.packed(PROBLEM)) == {"x": struct.pack(layout, 3, 5)}


def test_a_struct_is_refused() -> None:
    found = variables_of(source_of("struct Both { int a, b; }; __constant__ Both x;"), {"x": 1})
    with pytest.raises(UsageError, match="is of type Both, which --constant cannot set"):
        found.packed(PROBLEM)
