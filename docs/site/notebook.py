"""Write `docs/tour.ipynb` from `docs/tour.md`: `.venv/bin/python docs/site/notebook.py`.

With `--repository URL`, the notebook installs gemmkit from there. The page is the source: its
blocks become cells, which are run, without Jupyter, for their output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
PAGE, NOTEBOOK = DOCS / "tour.md", DOCS / "tour.ipynb"
# Tables are this wide, on the page as in the notebook.
COLUMNS = "110"
_FENCED = re.compile(r"^```(python|console|text)\n(.*?)^```\n", re.M | re.S)
_INSTALL = """\
# Does nothing if gemmkit is installed. FROM is what pip installs{note}.
FROM = {source!r}

import os
import subprocess
import sys
from importlib.util import find_spec

if find_spec("gemmkit") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", FROM], check=True)
os.environ["COLUMNS"] = {columns!r}
# Jupyter asks commands for colors, which would hinder `grep` below.
for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)
# The command is where the interpreter is, also if that folder is not on the path.
os.environ["PATH"] += os.pathsep + os.path.dirname(sys.executable)
"""


@dataclass
class Cell:
    """A cell: `kind` is "markdown", "python" or "console"; `told` is the output on the page."""

    kind: str
    source: str
    told: str = ""


def cells(page: str, repository: str | None = None) -> list[Cell]:
    """The cells of a page, with the one that installs gemmkit after the introduction."""
    found: list[Cell] = []
    start = 0
    for block in _FENCED.finditer(page):
        found += _prose(page[start : block.start()])
        start = block.end()
        language, text = block[1], block[2]
        if language == "text":
            found[-1].told = text
        elif language == "python":
            found.append(Cell("python", text))
        else:
            for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                found.append(Cell("console", f"%%bash\n{command}\n", told))
    found += _prose(page[start:])
    introduction, *rest = found
    title, _, first = introduction.source.partition("\n## ")
    return [Cell("markdown", title), _install(repository), Cell("markdown", f"## {first}"), *rest]


def _prose(text: str) -> Iterator[Cell]:
    if text.strip():
        yield Cell("markdown", text.strip() + "\n")


def _install(repository: str | None) -> Cell:
    """From the repository, if its address is given, else from the package index."""
    source = f"git+{repository}" if repository else "gemmkit"
    note = (
        ""
        if repository
        else ": until it is published, the address of its repository, git+https://…"
    )
    return Cell("python", _INSTALL.format(note=note, source=source, columns=COLUMNS))


class Runner:
    """Runs cells one after another in one namespace, and in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._folder = folder
        # The command, whether or not it is installed.
        command = folder / "gemmkit"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gemmkit "$@"\n', "utf-8")
        command.chmod(0o755)

    def run(self, cell: Cell) -> str:
        """What a cell prints to standard output.

        Raises:
            subprocess.CalledProcessError: a command failed; Python's own errors pass.
        """
        if cell.kind == "console":
            environment = os.environ | {
                "COLUMNS": COLUMNS,
                "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}",
            }
            command = cell.source.removeprefix("%%bash\n")
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
            return done.stdout
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.source, "tour.ipynb", "exec"), self._names)
        return printed.getvalue()


def notebook(executed: list[tuple[Cell, str]]) -> dict[str, Any]:
    """The notebook, in format 4.5, of cells with their output."""
    entries: list[dict[str, Any]] = []
    for number, (cell, output) in enumerate(executed):
        entry: dict[str, Any] = {"id": f"cell-{number:02}", "metadata": {}}
        source = cell.source.rstrip("\n").splitlines(keepends=True)
        if cell.kind == "markdown":
            entries.append({"cell_type": "markdown", **entry, "source": source})
            continue
        lines = output.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        count = 1 + sum(each["cell_type"] == "code" for each in entries)
        outputs = [stream] if output else []
        code = {"execution_count": count, "outputs": outputs, "source": source}
        entries.append({"cell_type": "code", **entry, **code})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": entries, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    """Run the page's blocks and write the notebook."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] + ".")
    parser.add_argument("--repository", metavar="URL", help="such as https://github.com/OWNER/NAME")
    repository = parser.parse_args().repository
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder))
        executed = [
            (cell, "" if cell.kind == "markdown" else runner.run(cell))
            for cell in cells(PAGE.read_text("utf-8"), repository)
        ]
    text = json.dumps(notebook(executed), indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
