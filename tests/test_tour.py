"""docs/tour.md runs as it is, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parent.parent / "docs" / "tour.md").read_text("utf-8")
# A block of code, and what it prints where the page tells.
BLOCKS = re.findall(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", PAGE, re.S | re.M)


def test_every_block_prints_what_stands_below_it(capsys):
    names: dict[str, Any] = {"__name__": "__main__"}
    told = 0
    for code, expected in BLOCKS:
        exec(compile(code, "docs/tour.md", "exec"), names)
        printed = capsys.readouterr().out
        if expected:
            assert printed == expected, code
            told += 1
    assert told == PAGE.count("```text") > 5


def test_no_block_is_left_out():
    assert len(BLOCKS) == PAGE.count("```python")
