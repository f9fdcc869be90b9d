"""Write the notebooks of `docs/tour.md` and `docs/zh/tour.md`, beside these pages.

Run it after a change to one of them: `.venv/bin/python docs/site/notebook.py`. With
`--repository URL`, the notebooks install gemmkit from there, and their links lead there; without
it, links are plain text. The pages' blocks, which are the same on both, become cells, which are
run, without Jupyter, for their output.
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
# Tables are this wide, on the page as in the notebook.
COLUMNS = "110"
_FENCED = re.compile(r"^```(python|console|text)\n(.*?)^```\n", re.M | re.S)
_LINK = re.compile(r"(?<!`)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")
_INSTALL = """\
# {purpose}{note}
FROM = {source!r}

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# {clone}
for folder in (Path.cwd(), *Path.cwd().parents):
    if (folder / "src" / "gemmkit").is_dir() and (folder / "pyproject.toml").is_file():
        FROM = str(folder)
        break
if find_spec("gemmkit") is None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", FROM]
    if subprocess.run(pip).returncode != 0:
        raise RuntimeError(
            f"pip could not install gemmkit from {{FROM!r}}: open this notebook in a clone of its "
            "repository, or set FROM to 'git+' and the repository's address, and run this again"
        )
os.environ["COLUMNS"] = {columns!r}
# {colors}
for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)
# {path}
os.environ["PATH"] += os.pathsep + os.path.dirname(sys.executable)
"""


@dataclass(frozen=True)
class Tour:
    """A page, and the comments of the cell that installs gemmkit, in the page's language.

    `unpublished` follows `purpose` as long as the address of the repository is not known.
    """

    page: Path
    purpose: str
    unpublished: str
    clone: str
    colors: str
    path: str

    @property
    def notebook(self) -> Path:
        """The notebook that is made of the page."""
        return self.page.with_suffix(".ipynb")


ENGLISH = Tour(
    DOCS / "tour.md",
    purpose="Does nothing if gemmkit is installed. FROM is what pip installs",
    unpublished=": until it is published, the address of its repository, git+https://…",
    clone="In a clone of the repository, the notebook uses that.",
    colors="Jupyter asks commands for colors, which would hinder `grep` below.",
    path="The command is where the interpreter is, also if that folder is not on the path.",
)
CHINESE = Tour(
    DOCS / "zh" / "tour.md",
    purpose="已安装 gemmkit 时什么也不做。FROM 是 pip 安装的来源",
    unpublished="：发布之前，请填仓库地址，即 git+https://…",
    clone="笔记本位于仓库的克隆中时，安装这个克隆。",
    colors="Jupyter 会让命令输出颜色，那样后面的 `grep` 就匹配不到了。",
    path="gemmkit 命令与 Python 解释器在同一文件夹，该文件夹可能不在 PATH 里。",
)


@dataclass
class Cell:
    """A cell: `kind` is "markdown", "python" or "console"; `told` is the output on the page."""

    kind: str
    source: str
    told: str = ""


def cells(tour: Tour, repository: str | None = None) -> list[Cell]:
    """The cells of a page, with the one that installs gemmkit after the introduction."""
    page = tour.page.read_text("utf-8")
    found: list[Cell] = []
    start = 0
    for block in _FENCED.finditer(page):
        found += _prose(page[start : block.start()], tour, repository)
        start = block.end()
        language, text = block[1], block[2]
        if language == "text":
            found[-1].told = text
        elif language == "python":
            found.append(Cell("python", text))
        else:
            for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                found.append(Cell("console", f"%%bash\n{command}\n", told))
    found += _prose(page[start:], tour, repository)
    introduction, *rest = found
    title, _, first = introduction.source.partition("\n## ")
    return [
        Cell("markdown", title),
        _install(tour, repository),
        Cell("markdown", f"## {first}"),
        *rest,
    ]


def _prose(text: str, tour: Tour, repository: str | None) -> Iterator[Cell]:
    paragraphs = (_linked(each, tour, repository) for each in text.strip().split("\n\n"))
    if kept := "\n\n".join(each for each in paragraphs if each.strip()):
        yield Cell("markdown", kept + "\n")


def _linked(paragraph: str, tour: Tour, repository: str | None) -> str:
    """A paragraph whose links to files of the repository lead to its host, or are plain text.

    It is empty if it is about the notebook itself, or a link to the other language's page that has
    no address to lead to.
    """
    if f"]({tour.notebook.name})" in paragraph:
        return ""
    other = CHINESE if tour == ENGLISH else ENGLISH
    if repository is None and _LINK.fullmatch(paragraph.strip()):
        return ""

    def link(found: re.Match[str]) -> str:
        name, hash_, anchor = found["target"].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return found[0]
        if repository is None:
            return found["text"]
        path = Path(os.path.normpath(tour.page.parent / name))
        path = other.notebook if path == other.page else path
        file = path.relative_to(DOCS.parent).as_posix()
        return f"[{found['text']}]({repository}/blob/HEAD/{file}{hash_}{anchor})"

    return _LINK.sub(link, paragraph)


def _install(tour: Tour, repository: str | None) -> Cell:
    """From the repository, if its address is given, else from the package index."""
    source = f"git+{repository}" if repository else "gemmkit"
    text = _INSTALL.format(
        purpose=tour.purpose,
        note="" if repository else tour.unpublished,
        clone=tour.clone,
        colors=tour.colors,
        path=tour.path,
        source=source,
        columns=COLUMNS,
    )
    return Cell("python", text)


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
    """Run the blocks of the English page and write both notebooks, with the same output.

    Raises:
        ValueError: the Chinese page has other blocks.
    """
    parser = argparse.ArgumentParser(description=__doc__.split(", beside")[0] + ".")
    parser.add_argument("--repository", metavar="URL", help="such as https://github.com/OWNER/NAME")
    repository = parser.parse_args().repository
    english, chinese = (cells(tour, repository) for tour in (ENGLISH, CHINESE))
    if blocks(english) != blocks(chinese):
        raise ValueError(f"{CHINESE.page} and {ENGLISH.page} differ in their code or its output")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder))
        outputs = ["" if cell.kind == "markdown" else runner.run(cell) for cell in english]
    for tour, found in ((ENGLISH, english), (CHINESE, chinese)):
        made = notebook(list(zip(found, outputs, strict=True)))
        text = json.dumps(made, indent=1, ensure_ascii=False)
        tour.notebook.write_text(text + "\n", "utf-8")


def blocks(found: list[Cell]) -> list[tuple[str, str, str]]:
    """What cells run and print: kind, code without lines of comment, and output.

    Cells of prose count, so that outputs of one language fit the cells of the other.
    """
    code = [
        "" if cell.kind == "markdown" else re.sub(r"^#.*\n", "", cell.source, flags=re.M)
        for cell in found
    ]
    return [(cell.kind, text, cell.told) for cell, text in zip(found, code, strict=True)]


if __name__ == "__main__":
    main()
