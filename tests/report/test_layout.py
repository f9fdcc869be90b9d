"""A table's two forms."""

from __future__ import annotations

import pytest

from gemmkit.report.layout import MISSING, TIE, Cell, Column, Row, Table, value_text, wrapped

TABLE = Table(
    caption="a caption",
    columns=(Column("name", "left"), Column("long\nhead"), Column("x")),
    rows=(
        Row((Cell("one"), Cell("1"), Cell("–")), note="why one"),
        Row((Cell("seventeen"), Cell("17.25"), Cell("WRONG", "bad"))),
    ),
    footnotes=("below",),
)


def test_text_aligns_columns_and_puts_notes_below_their_row():
    assert TABLE.to_text().plain.splitlines() == [
        "a caption",
        "",
        "            long",
        "name        head      x",
        "───────────────────────",
        "one            1      –",
        "    why one",
        "seventeen  17.25  WRONG",
        "",
        "below",
    ]


def test_a_last_cell_takes_the_rest_of_the_line_and_is_not_broken_at_ties():
    columns = (Column("name", "left"), Column("gone", drop=1), Column("found", "left", reserve=5))
    rows = (Row((Cell("one"), Cell("9" * 20), Cell(f"2{TIE}bugs, 1{TIE}race"))),)
    table = Table("a", columns, rows)
    layout = Table("a", columns, ()).layout(15, growing=True)
    assert table.row_text(rows[0], layout, 20).plain == "one   2 bugs, 1 race\n"
    assert table.row_text(rows[0], layout, 18).plain == "one   2 bugs,\n      1 race\n"
    assert TIE not in table.to_text().plain + table.to_markdown()
    assert "(43 columns needed)" in " ".join(table.to_text(20).plain.split())


def test_text_marks_styles():
    text = TABLE.to_text()
    marked = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
    assert marked["WRONG"] == "bold red"


def test_markdown_has_one_line_heads_and_alignment():
    assert TABLE.to_markdown().splitlines() == [
        "| name | long head | x |",
        "| --- | ---: | ---: |",
        "| one | 1 | – |",
        "| seventeen | 17.25 | WRONG |",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        ("registers", "registers"),
        (1234567, "1,234,567"),
        (12.0, "12"),
        (0.123456, "0.1235"),
        (1234.56, "1,235"),
        (1234567.8, "1,234,568"),
    ],
)
def test_values_are_whole_or_have_four_digits(value, text):
    assert value_text(value) == text


def test_sentences_are_cut_between_words_alone():
    name = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    text = wrapped(f"one-two {name} three", 20, first="- ", indent="  ")
    assert text == f"- one-two\n  {name}\n  three\n"
    assert wrapped("a b", 2, indent=" ") == " a\n b\n"
