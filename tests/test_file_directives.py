"""File names that PTX can hold only with escapes."""

from __future__ import annotations

import pytest

from gemmkit.emulator.ptx.parser import parse
from gemmkit.file_directives import file_names, unescaped
from gemmkit.jit.nvrtc import compile_program

NAMES = ["练习.cu", 'q"q.cu', r"b\b.cu", r"q\"\042.cu", "two\nlines.cu", "it's 矩阵.cu"]
SOURCE = "__global__ void k(float *a) { a[0] = 1; }"


@pytest.mark.parametrize("name", NAMES)
def test_the_compiler_writes_each_name_so_that_it_is_read_again(name):
    program = compile_program(SOURCE, "k", "sm_86", headers={}, file_name=name)
    assert {*file_names(program.ptx).values()} == {name}
    body = parse(program.ptx).kernels[program.entry].body
    assert {each.source.file for each in body if each.source is not None} == {name}


def test_escapes_are_those_of_the_compiler():
    assert unescaped(r"\347\273\203\344\271\240.cu") == "练习.cu"
    assert unescaped(r"a\\b\"c\042") == 'a\\b"c"'
    assert unescaped("plain.cu") == "plain.cu"
    assert unescaped(r"\377.cu") == "\N{REPLACEMENT CHARACTER}.cu"


def test_a_quoted_quote_does_not_end_a_name():
    assert file_names('.file 1 "a\\"b.cu", 12, 34\n.file\t2 "c.cuh"\n') == {1: 'a"b.cu', 2: "c.cuh"}
