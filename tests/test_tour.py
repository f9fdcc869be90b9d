"""docs/tour.md runs as it is and prints what it says; docs/tour.ipynb is the same, with output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS / "site"))

import notebook  # noqa: E402

PAGE = notebook.PAGE.read_text("utf-8")
CELLS = notebook.cells(PAGE)
TEXT = notebook.NOTEBOOK.read_text("utf-8")
SHOWN = json.loads(TEXT)["cells"]


@pytest.mark.filterwarnings("ignore::gemmkit.errors.EmulationWarning")
def test_every_cell_prints_what_the_page_says(tmp_path, monkeypatch):
    # The first cell changes these.
    for name in ("PATH", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    runner = notebook.Runner(tmp_path)
    for cell in CELLS:
        if cell.kind != "markdown":
            printed = runner.run(cell)
            assert not cell.told or printed == cell.told, cell.source
    assert sum(bool(cell.told) for cell in CELLS) > 10


def test_no_block_is_left_out():
    told = [cell for cell in CELLS if cell.told]
    python = [cell for cell in CELLS if cell.kind == "python"]
    console = [cell for cell in CELLS if cell.kind == "console"]
    assert len(python) == PAGE.count("```python") + 1
    assert len(console) == PAGE.count("\n$ ")
    assert len(told) == PAGE.count("```text") + len(console)
    assert PAGE.count("```") == 2 * sum(map(PAGE.count, ("```python", "```text", "```console")))


def test_the_notebook_has_the_cells_of_the_page_with_their_output():
    made = notebook.notebook([(cell, cell.told) for cell in CELLS])["cells"]
    assert [each["source"] for each in SHOWN] == [each["source"] for each in made]
    for shown, cell in zip(SHOWN, CELLS, strict=True):
        if cell.told:
            assert "".join(shown["outputs"][0]["text"]) == cell.told
    assert len({each["id"] for each in SHOWN}) == len(SHOWN)
    assert len(TEXT.encode()) < 300_000


def test_the_notebook_installs_gemmkit_before_it_is_used():
    first = next(each for each in SHOWN if each["cell_type"] == "code")
    assert "pip" in "".join(first["source"])
    assert first["outputs"] == []
    of_a_repository = notebook.cells(PAGE, "https://example.com/owner/name")[1].source
    assert "FROM = 'git+https://example.com/owner/name'\n" in of_a_repository
