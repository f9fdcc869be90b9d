"""Source lines, and the calls through which code was inlined."""

from __future__ import annotations

import pytest

from gemmkit.emulator.ptx.lines import LineTable
from gemmkit.emulator.ptx.parser import parse

FILES = {1: "kernel.cu", 2: "tile.cuh"}
OWN = ".loc 1 20 3"
ONCE = ".loc 2 5 7, function_name $L__info_string0, inlined_at 1 20 3"
TWICE = ".loc 2 9 1, function_name $L__info_string1, inlined_at 2 5 7"
ELSEWHERE = ".loc 2 5 7, function_name $L__info_string0, inlined_at 1 30 3"


def test_line_of_the_kernel_itself():
    line = LineTable(OWN, FILES).line(OWN)
    assert (line.file, line.line, line.called_from) == ("kernel.cu", 20, ())


def test_calls_are_followed_outward():
    table = LineTable("\n".join((OWN, ONCE, TWICE)), FILES)
    assert table.line(ONCE).called_from == ("kernel.cu:20",)
    assert table.line(TWICE).called_from == ("tile.cuh:5", "kernel.cu:20")


def test_calls_from_two_sites_are_distinguished_by_what_comes_before():
    table = LineTable("\n".join((OWN, ONCE, TWICE, ELSEWHERE, TWICE)), FILES)
    assert table.line(ONCE).called_from == ("kernel.cu:20",)
    assert table.line(TWICE).called_from == ("tile.cuh:5", "kernel.cu:20")
    assert table.line(ELSEWHERE).called_from == ("kernel.cu:30",)
    assert table.line(TWICE).called_from == ("tile.cuh:5", "kernel.cu:30")


def test_calls_from_two_sites_with_none_before_are_followed_no_further():
    table = LineTable("\n".join((TWICE, OWN, ONCE, ELSEWHERE)), FILES)
    assert table.line(TWICE).called_from == ("tile.cuh:5",)


def test_copies_of_a_loop_are_called_from_where_their_function_was_entered_last():
    """Calls are emitted where they first occur: in the copy, only a line of the function that
    makes the inner call says from where."""
    other = ".loc 2 6 1, function_name $L__info_string0, inlined_at "
    first = (OWN, ONCE, TWICE, ".loc 1 30 3", ELSEWHERE, TWICE)
    copy = (f"{other}1 20 3", TWICE, f"{other}1 30 3", TWICE)
    table = LineTable("\n".join((*first, *copy)), FILES)
    lines = [(each, table.line(each)) for each in (*first, *copy)]
    called = [line.called_from for each, line in lines if each == TWICE]
    assert called == [("tile.cuh:5", "kernel.cu:20"), ("tile.cuh:5", "kernel.cu:30")] * 2


def test_calls_that_go_round_end():
    text = (
        ".loc 1 1 1, function_name $L0, inlined_at 1 2 2\n"
        ".loc 1 2 2, function_name $L0, inlined_at 1 1 1"
    )
    first = LineTable(text, FILES).line(text.splitlines()[0])
    assert first.called_from == ("kernel.cu:2", "kernel.cu:1")


def test_file_without_a_name():
    assert str(LineTable("", {}).line(".loc 7 3 0")) == "file 7:3"


def test_what_is_no_directive_is_refused():
    with pytest.raises(ValueError, match="x y"):
        LineTable("", {}).line(".loc x y")


def test_instructions_carry_them():
    module = parse(f"""
.version 8.5
.target sm_80
.address_size 64
.file 1 "kernel.cu"
.file 2 "tile.cuh"
.visible .entry k()
{{
    {OWN}
    {ONCE}
    ret;
}}
""")
    (instruction,) = module.kernels["k"].body
    assert instruction.where == "tile.cuh:5"
    assert instruction.source.called_from == ("kernel.cu:20",)


def test_line_0_is_named_by_a_line_near_it():
    """An instruction before of the same inlined call, the call, or any instruction before, or the
    first one after; counts stay where the compiler puts them."""
    module = parse("""
.version 8.5
.target sm_80
.address_size 64
.file 1 "kernel.cu"
.file 2 "tile.cuh"
.visible .entry k()
{
    .loc 1 0 5
    bar.sync 0;
    .loc 1 8 5
    bar.sync 1;
    .loc 1 0 5
    bar.sync 2;
    .loc 2 0 9, function_name F, inlined_at 1 20 5
    bar.sync 3;
    .loc 2 7 9, function_name F, inlined_at 1 20 5
    bar.sync 4;
    .loc 2 0 9, function_name F, inlined_at 1 20 5
    bar.sync 5;
    .loc 1 0 5
    bar.sync 6;
    .loc 1 30 5
    ret;
}
""")
    body = module.kernels["k"].body
    assert [each.where for each in body] == [
        "kernel.cu:8", "kernel.cu:8", "kernel.cu:8", "kernel.cu:20", "tile.cuh:7", "tile.cuh:7",
        "kernel.cu:8", "kernel.cu:30",
    ]  # fmt: skip
    assert body[5].named.called_from == ("kernel.cu:20",)
    assert [each.source.line for each in body] == [0, 8, 0, 0, 7, 0, 0, 30]
