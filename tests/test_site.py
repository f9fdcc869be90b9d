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
import crossings  # noqa: E402
import index  # noqa: E402
import languages  # noqa: E402
import render  # noqa: E402
import search_words  # noqa: E402
import stage  # noqa: E402
import versions  # noqa: E402
from languages import CHINESE, ENGLISH  # noqa: E402

LANGUAGES = [language for language in (ENGLISH, CHINESE) if stage.pages(language)]
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
def sites(tmp_path_factory) -> dict[languages.Language, Path]:
    """The sources of the site in each language that has pages."""
    folders = {each: tmp_path_factory.mktemp(each.code) for each in LANGUAGES}
    english = stage.Stage(folders[ENGLISH])
    for language in LANGUAGES[1:]:
        stage.Stage(folders[language], language, english).fill()
    english.fill()
    return folders


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


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda each: each.code)
def test_every_page_is_in_the_contents(sites, language):
    staged = sites[language]
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
    sources = {stage.place(each).with_suffix("") for each in stage.pages(language)}
    assert {staged / each for each in sources} - {staged / "index"} <= listed


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda each: each.code)
def test_linked_files_are_pages_or_copies(sites, language):
    staged = sites[language]
    for page in staged.rglob("*.md"):
        text = re.sub(r"^(`{3,}).*?^\1`*$", "", page.read_text("utf-8"), flags=re.M | re.S)
        for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:|#", link):
                assert (page.parent / link.partition("#")[0]).exists(), f"{page.name}: {link}"


def test_source_files_are_pages(sites):
    source = sites[ENGLISH] / "repository/src/gemmkit/kernels/ladder/naive.cu.md"
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
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n[a](gone.md)\n")
    (tmp_path / "README.md").write_text("# gemmkit\n\n[b](docs/README.md) `[c](not-a-link.md)`\n")
    with pytest.raises(stage.BrokenLink, match=r"^docs/README.md: gone.md does not exist$"):
        stage.Stage(tmp_path / "out").fill()


# -- languages

REPOSITORY = {
    "README.md": "# gemmkit\n\n[中文](README.zh-CN.md)\n\nText.\n",
    "docs/README.md": "# Pages\n\n- [a](install.md)\n- [b](counters.md)\n- [c](glossary.md)\n",
    "docs/install.md": "# Installation\n\n![p](images/p.svg)\n",
    "docs/counters.md": "# Counters\n\n## A result\n",
    "docs/glossary.md": "# Glossary\n\n[中文](zh/glossary.md)\n\n## Memory\n\n[a](#memory)\n",
    "docs/images/p.svg": "<svg/>",
    "README.zh-CN.md": "# gemmkit\n\n[a](docs/zh/README.md) [b](README.md) [c](docs/images/p.svg)",
    "docs/zh/README.md": "# 文档\n\n- [a](install.md)\n- [**b**](../counters.md#a-result)\n"
    "- [c](glossary.md#memory)\n",
    "docs/zh/glossary.md": "# 术语表\n\n[English](../glossary.md)\n\n"
    '<a id="memory"></a>\n## 内存\n\n[a](#memory) [b](#内存) [c](../glossary.md#memory)\n',
    "docs/zh/install.md": "# 安装\n\n[k](../../src/k.cu) ![p](images/p.svg)\n",
    "docs/zh/images/p.svg": "<svg>中</svg>",
    "src/k.cu": "kernel",
}


@pytest.fixture
def both(tmp_path, monkeypatch) -> dict[languages.Language, stage.Stage]:
    """The sites, in the folders `en` and `zh_CN`, of a small repository."""
    for name, text in REPOSITORY.items():
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    monkeypatch.setattr(stage, "ROOT", tmp_path / "repository")
    english = stage.Stage(tmp_path / "en")
    made = {CHINESE: stage.Stage(tmp_path / "zh_CN", CHINESE, english), ENGLISH: english}
    for each in made.values():
        each.fill()
    return made


def test_each_language_has_its_own_pages(both, tmp_path):
    def files(folder: str) -> set[str]:
        root = tmp_path / folder
        return {path.relative_to(root).as_posix() for path in root.rglob("*.*")}

    pages = {"index.md", "contents.md", "install.md", "glossary.md"}
    assert files("zh_CN") == {*pages, "images/p.svg", "zh/images/p.svg"}
    assert files("en") == {*pages, "counters.md", "images/p.svg", "repository/src/k.cu.md"}
    assert "<svg>中</svg>" in (tmp_path / "zh_CN/zh/images/p.svg").read_text("utf-8")
    assert stage.twins() == ["contents", "glossary", "index", "install"]


def test_tables_of_contents_have_the_pages_of_the_language(both, tmp_path):
    found = {
        folder: re.findall(TOCTREE, (tmp_path / folder / "index.md").read_text("utf-8"))[0].split()
        for folder in ("en", "zh_CN")
    }
    assert found == {
        "en": ["contents", "install", "counters", "glossary"],
        "zh_CN": ["contents", "install", "glossary"],
    }


def test_links_lead_to_the_site_of_the_other_language(both, tmp_path):
    def link(folder: str, page: str) -> list[str]:
        return re.findall(r'href="([^"]*)"', (tmp_path / folder / page).read_text("utf-8"))

    assert link("en", "index.md") == []
    assert link("zh_CN", "index.md") == ["../index.html"]
    assert link("zh_CN", "contents.md") == ["../counters.html#a-result", "glossary.html#memory"]
    assert link("zh_CN", "install.md") == ["../repository/src/k.cu.html"]
    assert "**b**</a>" in (tmp_path / "zh_CN" / "contents.md").read_text("utf-8")
    assert both[ENGLISH].crossings == set()


def test_a_line_that_leads_to_the_same_page_gives_way_to_the_switch(both, tmp_path):
    page = (tmp_path / "en" / "glossary.md").read_text("utf-8")
    assert page == "# Glossary\n\n## Memory\n\n[a](#memory)\n"
    page = (tmp_path / "zh_CN" / "glossary.md").read_text("utf-8")
    assert page.startswith('# 术语表\n\n<a id="memory"></a>\n## 内存\n\n')


def test_anchors_in_html_are_found(both, tmp_path):
    page = (tmp_path / "zh_CN" / "glossary.md").read_text("utf-8")
    links = ("glossary.html#memory", "../glossary.html#memory")
    a, c = (f'<a class="reference internal" href="{each}">' for each in links)
    assert f"{a}a</a> [b](#内存) {c}c</a>" in page


def test_links_between_languages_are_checked(both, tmp_path):
    found = both[CHINESE].crossings
    site = tmp_path / "site"
    (site / "repository/src").mkdir(parents=True)
    (site / "index.html").touch()
    (site / "counters.html").write_text('<section id="a-result">')
    (site / "zh").mkdir()
    for page in ("glossary.html", "zh/glossary.html"):
        (site / page).write_text('<a id="memory">')
    assert list(crossings.broken_crossings(found, site)) == [
        "zh/install.html: repository/src/k.cu.html is not on the site"
    ]
    (site / "repository/src/k.cu.html").touch()
    assert list(crossings.broken_crossings(found, site)) == []
    (site / "counters.html").write_text('<section id="another-result">')
    assert list(crossings.broken_crossings(found, site)) == [
        "zh/contents.html: counters.html has no heading #a-result"
    ]


def test_a_language_without_contents_has_no_pages(both):
    (stage.ROOT / "docs/zh/README.md").unlink()
    assert stage.pages(CHINESE) == []
    assert stage.pages(ENGLISH)


def test_chinese_is_indexed_by_pairs_of_characters():
    assert list(search_words.words("共享内存（smem_1）, 块")) == [
        *("共", "享", "内", "存", "共享", "享内", "内存", "smem_1", "块")
    ]


def test_terms_are_indexed_beside_their_parts():
    assert list(search_words.words("Split-K, `cp.async.bulk`: a two-way 流-K 1.5")) == [
        *("Split", "K", "cp", "async", "bulk", "a", "two", "way", "流", "K", "1", "5"),
        *("split-k", "cp.async", "cp.async.bulk"),
    ]
    assert list(search_words.words("gemm_stream_k")) == ["gemm_stream_k", "stream-k"]


def test_answers_of_the_course_are_not_searched(sites):
    sources = list(sites[ENGLISH].rglob("repository/**/*.md"))
    unsearched = {each.parent.name for each in sources if "nosearch" in each.read_text("utf-8")}
    assert unsearched == {"exercises", "solutions"}
    assert all("nosearch" in each.read_text() for each in sources if each.parent.name in unsearched)
    assert {each.parent.name for each in sources} > unsearched


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
