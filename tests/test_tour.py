"""docs/tour.md runs as it is and prints what it says, its Chinese twin has the same blocks, and
the notebooks are these pages."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS / "site"))

import notebook  # noqa: E402

PAGE = notebook.ENGLISH.page.read_text("utf-8")
CELLS = notebook.cells(notebook.ENGLISH)
REPOSITORY = "https://example.com/owner/name"
LINK = re.compile(r"\[[^\[\]]*\]\(([^)\s]+)\)")
in_both_languages = pytest.mark.parametrize(
    "tour", [notebook.ENGLISH, notebook.CHINESE], ids=["english", "chinese"]
)


def shown(tour):
    return json.loads(tour.notebook.read_text("utf-8"))["cells"]


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


def test_the_chinese_page_has_the_same_code_and_output():
    # Run once, by the test above, for both.
    assert notebook.blocks(notebook.cells(notebook.CHINESE)) == notebook.blocks(CELLS)


@in_both_languages
def test_the_notebook_has_the_cells_of_the_page_with_their_output(tour):
    cells = notebook.cells(tour)
    made = notebook.notebook([(cell, cell.told) for cell in cells])["cells"]
    assert [each["source"] for each in shown(tour)] == [each["source"] for each in made]
    for each, cell in zip(shown(tour), cells, strict=True):
        if cell.told:
            assert "".join(each["outputs"][0]["text"]) == cell.told
    assert len({each["id"] for each in shown(tour)}) == len(cells)
    assert tour.notebook.stat().st_size < 300_000


@in_both_languages
def test_the_notebook_installs_gemmkit_before_it_is_used(tour):
    first = next(each for each in shown(tour) if each["cell_type"] == "code")
    assert "pip" in "".join(first["source"])
    assert first["outputs"] == []
    of_a_repository = notebook.cells(tour, REPOSITORY)[1].source
    assert "FROM = 'git+https://example.com/owner/name'\n" in of_a_repository
    assert "git+https://…" not in of_a_repository


@in_both_languages
def test_links_of_the_notebook_lead_to_the_repository_or_are_text(tour):
    def links(repository):
        cells = notebook.cells(tour, repository)
        return LINK.findall("".join(each.source for each in cells if each.kind == "markdown"))

    assert [each for each in links(None) if not each.startswith(("#", "https:"))] == []
    prefix = f"{REPOSITORY}/blob/HEAD/"
    found = [each for each in links(REPOSITORY) if each not in links(None)]
    assert len(found) == len(LINK.findall(tour.page.read_text("utf-8"))) - len(links(None)) - 1
    for each in found:
        path = DOCS.parent / each.removeprefix(prefix).partition("#")[0]
        assert each.startswith(prefix), each
        assert path.is_file(), each
        assert path != tour.notebook
    assert tour.notebook.name not in "".join(each.source for each in notebook.cells(tour))


@pytest.mark.parametrize("clone", [True, False])
def test_the_first_cell_installs_a_clone_or_says_what_to_do(tmp_path, monkeypatch, clone):
    if clone:
        (tmp_path / "src" / "gemmkit").mkdir(parents=True)
        (tmp_path / "pyproject.toml").touch()
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    for name in ("PATH", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    asked = []

    def run(command):
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        RuntimeError, match=r"could not install gemmkit from .*: open this notebook"
    ):
        exec(CELLS[1].source, {})
    assert asked[0][-1] == (str(tmp_path) if clone else "gemmkit")


def test_the_chinese_notebook_has_chinese_comments():
    english, chinese = (
        next("".join(each["source"]) for each in shown(tour) if each["cell_type"] == "code")
        for tour in (notebook.ENGLISH, notebook.CHINESE)
    )
    comments = re.findall(r"^#.*", chinese, re.M)
    assert len(comments) == len(re.findall(r"^#.*", english, re.M)) > 2
    assert all(re.search(r"[\u4e00-\u9fff]", each) for each in comments)
