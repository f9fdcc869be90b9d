"""A table's two forms."""

from __future__ import annotations

from gemmkit.report.layout import Cell, Column, Row, Table

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
