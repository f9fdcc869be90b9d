"""Code without a source line is one row, without a line that there is not."""

from __future__ import annotations

from gemmkit.analysis.explain.explanation import SourceLine
from gemmkit.report.source_lines import COMPILER_GENERATED, place_name, shown_lines


def line(file, number, count):
    return SourceLine(
        file=file,
        line=number,
        text="",
        instructions=count,
        fma=0,
        global_requests=count,
        global_sectors=0,
        shared_wavefronts=0,
        bank_conflicts=0,
    )


def test_code_without_a_line_is_summed_over_files():
    given = [line("a.cu", 0, 2), line("a.cu", 7, 1), line("b.cuh", 0, 3)]
    first, last = shown_lines(given)
    assert first == given[1]
    assert place_name(first.file, first.line) == "a.cu:7"
    assert (last.instructions, last.global_requests) == (5, 5)
    assert place_name(last.file, last.line) == COMPILER_GENERATED
    assert shown_lines(given[1:2]) == given[1:2]
