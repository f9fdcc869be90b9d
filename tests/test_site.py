"""The sources of the documentation site: its contents, links, API reference and docstrings.

None of these needs the packages that build the site.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import gemmkit
import gemmkit.errors

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))

import api  # noqa: E402
import index  # noqa: E402
import render  # noqa: E402
import stage  # noqa: E402
import versions  # noqa: E402

ITEMS = api.public_items()
INDEX = (DOCS / "reference.md").read_text("utf-8")
TOCTREE = r"```\{toctree\}\n(?::.*\n)*\n([^`]*)```"
# Base classes whose name in "Raises" covers an exception.
COVERED = {
    name: {base.__name__ for base in inspect.getmro(found)}
    for name, found in vars(gemmkit.errors).items()
    if inspect.isclass(found) and found.__module__ == "gemmkit.errors"
}


def documented() -> list[tuple[str, api.Item]]:
    """Public functions and classes, and what they hold, by full names."""
    found = [(item.name, item) for item in ITEMS if item.kind != "data"]
    members = [(f"{item.name}.{each.name}", each) for item in ITEMS for each in item.members]
    # `__getitem__` and its like say nothing beyond their name unless they have a docstring.
    return found + [
        (name, each)
        for name, each in members
        if each.kind != "attribute" and (each.doc.text or not each.name.startswith("__"))
    ]


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    stage.Stage(folder).fill()
    return folder


# -- the reference


def test_every_public_name_is_found_in_the_source():
    names = {item.name for item in ITEMS}
    assert {f"gemmkit.{name}" for name in gemmkit.__all__} <= names
    errors = {f"gemmkit.errors.{name}" for name in COVERED}
    listed = {f"gemmkit.errors.{item.name.rpartition('.')[2]}" for item in ITEMS}
    assert errors <= listed
    assert {"gemmkit.nn.conv2d", "gemmkit.torch.linear", "gemmkit.jax.matmul"} <= names


def test_signatures_are_those_of_the_functions():
    compared = 0
    for item in ITEMS:
        if item.kind == "function" and item.name.count(".") == 1 and item.name != "gemmkit.tune":
            function = getattr(gemmkit, item.name.partition(".")[2])
            assert item.parameters == list(inspect.signature(function).parameters), item.name
            compared += 1
    assert compared > 10


def test_the_index_has_every_name_with_its_first_sentence():
    assert index.updated(INDEX) == INDEX
    with pytest.raises(SystemExit, match=r"gemmkit\.which"):
        index.updated(INDEX.replace("`gemmkit.which`", "`gemmkit.witch`"))


def test_names_are_linked_to_their_own_entry():
    names = render.Names(ITEMS)
    assert names.link("see `Kernel.plan`") == "see {py:obj}`Kernel.plan <gemmkit.Kernel.plan>`"
    assert names.find("matmul") == "gemmkit.matmul"
    assert names.find("from_groups", home="gemmkit.GemmProblem") is None
    assert names.link("`a @ b`") == "`a @ b`"
    assert names.annotation("Kernel | str") == "gemmkit.Kernel | str"


# -- docstrings


@pytest.mark.parametrize(("name", "item"), documented(), ids=lambda each: str(each)[:60])
def test_a_docstring_has_what_it_should(name, item):
    said = " ".join([item.doc.text, *item.doc.args, *item.doc.args.values(), item.doc.returns])
    assert item.doc.text, f"{name} has no docstring"
    unknown = item.doc.args.keys() - set(item.parameters)
    assert not unknown, f"{name} has no parameter {unknown}"
    if item.kind == "function":
        missing = [each for each in item.parameters if each not in item.doc.args]
    else:
        words = {*re.findall(r"\w+", said.lower()), *re.findall(r"`(.*?)`", said)}
        missing = [each for each in item.parameters if not {each, each.lower()} & words]
    assert not missing, f"{name} does not say what {', '.join(missing)} is"
    for raised in item.raised:
        names = COVERED.get(raised, {raised})
        assert names & item.doc.raises.keys(), f"{name} does not say that it raises {raised}"


def test_a_docstring_is_read_by_sections():
    doc = api.parse(
        """Do a thing. Then rest.

        Args:
            a, b: two
                lines.
            options: keywords.

        Returns:
            it.

        Raises:
            UsageError, CompileError: no.
        """
    )
    assert doc.summary == "Do a thing."
    assert doc.args == {"a": "two lines.", "b": "two lines.", "options": "keywords."}
    assert doc.returns == "it."
    assert doc.raises == {"UsageError": "no.", "CompileError": "no."}
    with pytest.raises(ValueError, match="not an entry"):
        api.parse("Do.\n\nArgs:\n    no colon here")


# -- pages


def test_every_page_is_in_the_contents(staged):
    listed = set()
    for page in staged.rglob("*.md"):
        for toctree in re.findall(TOCTREE, page.read_text("utf-8")):
            listed |= {(page.parent / each).resolve() for each in toctree.split()}
    pages = {page.with_suffix("") for page in staged.rglob("*.md")}
    orphans = {
        page.with_suffix("") for page in staged.rglob("*.md") if "orphan: true" in page.read_text()
    }
    assert listed <= pages
    assert pages - listed - orphans == {staged / "index"}
    sources = {stage.place(each).with_suffix("") for each in DOCS.rglob("*.md")}
    assert {staged / each for each in sources} <= listed


def test_linked_files_are_pages_or_copies(staged):
    for page in staged.rglob("*.md"):
        text = re.sub(r"^(`{3,}).*?^\1`*$", "", page.read_text("utf-8"), flags=re.M | re.S)
        for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:|#", link):
                assert (page.parent / link.partition("#")[0]).exists(), f"{page.name}: {link}"
    source = staged / "repository/src/gemmkit/kernels/ladder/naive.cu.md"
    assert (ROOT / "src/gemmkit/kernels/ladder/naive.cu").read_text().strip() in source.read_text()


def test_pages_that_install_gemmkit_say_how_before_it_is_published():
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md"]
    installing = {
        page: text
        for page in pages
        if re.search(r"pip install\s+'?gemmkit", text := page.read_text("utf-8"))
        and page.name != "install.md"
    }
    assert len(installing) > 5
    assert [page.name for page, text in installing.items() if "install.md)" not in text] == []


def test_a_broken_link_is_an_error(tmp_path, monkeypatch):
    for name, value in (("ROOT", tmp_path), ("DOCS", tmp_path / "docs")):
        monkeypatch.setattr(stage, name, value)
    monkeypatch.setattr(stage, "CONTENTS", tmp_path / "docs" / "README.md")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n[a](gone.md)\n")
    (tmp_path / "README.md").write_text("# gemmkit\n\n[b](docs/README.md) `[c](not-a-link.md)`\n")
    with pytest.raises(stage.BrokenLink, match=r"^docs/README.md: gone.md does not exist$"):
        stage.Stage(tmp_path / "out").fill()


# -- versions


def test_versions_are_listed_newest_first(tmp_path):
    for name in ("0.2.0", "0.10.0", "dev", "0.9.1rc1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    (tmp_path / ".git").mkdir()
    versions.write(tmp_path)
    script = (tmp_path / "versions.js").read_text()
    assert script == 'window.gemmkitVersions = ["0.10.0", "0.9.1rc1", "0.2.0", "dev"];\n'
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text()
