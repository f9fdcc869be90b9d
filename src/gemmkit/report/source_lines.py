"""Source lines as reports name them; line 0 of a line table stands for code without a line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gemmkit.analysis.explain.explanation import SourceLine

COMPILER_GENERATED = "compiler-generated"


def shown_lines(lines: Sequence[SourceLine]) -> list[SourceLine]:
    """The lines in their order, and last what was executed without a line, of all files in one,
    whose file is empty."""
    named = [each for each in lines if each.line]
    rest = [each for each in lines if not each.line]
    if not rest:
        return named
    counters = [name for name in rest[0].__struct_fields__ if name not in ("file", "line", "text")]
    sums = {name: sum(getattr(each, name) for each in rest) for name in counters}
    return [*named, msgspec.structs.replace(rest[0], file="", line=0, text="", **sums)]


def place_name(file: str, line: int) -> str:
    """`file:line`, or what stands for it where an instruction has no line."""
    return f"{file}:{line}" if line else COMPILER_GENERATED
