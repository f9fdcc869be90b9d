"""What a release says of itself: the description on a package index, and the notes of a tag."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import gemmkit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "release"))

import badges  # noqa: E402
import description  # noqa: E402
import distributions  # noqa: E402
import hosting  # noqa: E402
import notes  # noqa: E402

README = (ROOT / "README.md").read_text("utf-8")
REPOSITORY = "https://example.com/owner/name"
ON_GITHUB = "https://github.com/Owner/name"
VERSION = gemmkit.__version__


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)


def targets(html: str) -> list[tuple[str, str]]:
    """Each link and picture of a page: the attribute and where it leads."""
    return re.findall(r'<(?:a|img|source)\b[^>]*?\b(href|src|srcset)="([^"]*)"', html)


def rendered_badges() -> str:
    return rendered(badges.badges(REPOSITORY))


@pytest.fixture(scope="module")
def page() -> str:
    return rendered(description.long_description(README, VERSION, REPOSITORY))


def test_links_and_pictures_lead_to_files_of_the_tag(page):
    found = [each for each in targets(page) if each not in targets(rendered_badges())]
    assert len(found) > 30
    for attribute, target in found:
        kind = "raw" if attribute == "src" else "blob"
        prefix = f"{REPOSITORY}/{kind}/v{VERSION}/"
        assert target.startswith(prefix), target
        assert (ROOT / target.removeprefix(prefix).partition("#")[0]).is_file(), target


def test_an_index_shows_what_the_readme_shows(page):
    readme = rendered(README)
    # An index takes no `<source>`, which holds the dark pictures.
    assert "<source" in readme
    assert "<source" not in page
    assert "<!--" not in page
    own = page.count("<img") - rendered_badges().count("<img")
    assert own == readme.count("<img") - readme.count("/badge") >= 2
    for each in ("<h2>", "<tr>", "<pre>", "<li>"):
        assert page.count(each) == readme.count(each) - (each == "<pre>"), each


def test_an_index_says_how_to_install_the_package(page):
    commands = re.findall(r"^ {4}(pip install .*)$", README, re.M)
    assert len(commands) == 3
    for command in commands:
        words = command.replace("&", "&amp;").replace("install .", "install gemmkit")
        assert words.replace("'.[", "'gemmkit[") in page
    assert "run.py" not in page
    assert "clone" not in page


def test_without_a_repository_links_are_text_and_pictures_are_left_out():
    page = rendered(description.long_description(README, VERSION, None))
    assert targets(page) == []
    assert "<img" not in page
    assert "](" not in page
    assert "limits: see installation." in page


def test_links_follow_the_paths_of_the_host():
    text = "[a](docs) [b](LICENSE#x) ![c](docs/images/page-dark.png) [d](https://e.org) [e](#f)\n"
    assert description.absolute(text, "1.0.0", "https://h/o/n") == (
        "[a](https://h/o/n/tree/v1.0.0/docs) [b](https://h/o/n/blob/v1.0.0/LICENSE#x) "
        "![c](https://h/o/n/raw/v1.0.0/docs/images/page-dark.png) [d](https://e.org) [e](#f)\n"
    )
    code = "```\n[a](gone)\n```\n"
    assert description.absolute(code, "1.0.0", "https://h/o/n") == code


@pytest.mark.parametrize("target", ["docs/gone.md", "../outside.md"])
@pytest.mark.parametrize("repository", [REPOSITORY, None])
def test_a_broken_link_is_an_error(target, repository):
    with pytest.raises(description.BrokenLink, match=re.escape(target)):
        description.absolute(f"[a]({target})", VERSION, repository)


@pytest.mark.parametrize("end", ["", "/", ".git"])
def test_an_address_may_end_as_clones_name_it(end):
    assert hosting.repository_address(REPOSITORY + end) == REPOSITORY


@pytest.mark.parametrize(
    "text", ["owner/name", "https://example.com", 'https://h/o/n"', "git@h:o/n"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected https://HOST/OWNER/NAME"):
        hosting.repository_address(text)


def test_badges_and_the_site_are_those_of_the_repository():
    page = rendered(description.long_description(README, VERSION, ON_GITHUB))
    found = {target for _, target in targets(page)}
    tests = f"{ON_GITHUB}/actions/workflows/test.yml"
    assert {tests, f"{tests}/badge.svg", "https://owner.github.io/name/"} <= found
    assert (ROOT / ".github/workflows/test.yml").is_file()
    assert 'on <a href="https://owner.github.io/name/">the documentation site</a>' in page
    elsewhere = rendered(description.long_description(README, VERSION, REPOSITORY))
    assert "documentation site" not in elsewhere
    assert "actions/workflows" not in elsewhere


def test_badges_are_written_once():
    once = badges.with_badges("# Title\n\nText.\n", REPOSITORY)
    assert once.startswith(f"# Title\n\n{badges.BEGIN}\n\n[![")
    assert once.endswith(f"{badges.END}\n\nText.\n")
    again = badges.with_badges(once, ON_GITHUB)
    assert again == badges.with_badges("# Title\n\nText.\n", ON_GITHUB) != once


@pytest.mark.parametrize(
    ("repository", "site"),
    [
        (ON_GITHUB, "https://owner.github.io/name/"),
        ("https://github.com/Owner/owner.github.io", "https://owner.github.io/"),
        ("https://example.com/owner/name", None),
        ("https://github.com/a/b/c", None),
    ],
)
def test_the_site_is_where_pages_are_published(repository, site):
    assert hosting.documentation_site(repository) == site


def test_what_is_built_differs_from_the_tree_only_by_the_repository(tmp_path):
    distributions.lay_out(tmp_path / "without", None)
    distributions.lay_out(tmp_path / "with", ON_GITHUB)

    def lines(folder: Path, name: str) -> list[str]:
        return (folder / name).read_text("utf-8").splitlines()

    project = lines(ROOT, "pyproject.toml")
    without = lines(tmp_path / "without", "pyproject.toml")
    assert set(without) - set(project) == {'readme = "DESCRIPTION.md"'}
    assert ON_GITHUB not in "\n".join(project)
    added = lines(tmp_path / "with", "pyproject.toml")
    assert len(set(added) - set(without)) == 6
    assert 'Documentation = "https://owner.github.io/name/"' in added
    cited = lines(ROOT, "CITATION.cff")
    assert lines(tmp_path / "without", "CITATION.cff") == cited
    assert lines(tmp_path / "with", "CITATION.cff") == [
        *cited,
        f"repository-code: {ON_GITHUB}",
        "url: https://owner.github.io/name/",
    ]
    assert lines(tmp_path / "with", "README.md") == lines(ROOT, "README.md")


@pytest.fixture
def changelog(tmp_path, monkeypatch) -> Path:
    """A changelog of versions 1.1.0, which is the package's, and 1.0.0."""
    monkeypatch.setattr(notes, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.1.0"\n')
    file = tmp_path / "CHANGELOG.md"
    file.write_text(
        "# Changelog\n\n## [1.1.0] - 2026-01-02\n\nNew: [a](LICENSE).\n\n### Added\n\n- b\n\n"
        "## [1.0.0] - 2026-01-01\n\nThe first.\n"
    )
    return file


def test_the_notes_are_the_section_of_the_tag(changelog):
    assert notes.notes("v1.1.0", REPOSITORY) == (
        f"New: [a]({REPOSITORY}/blob/v1.1.0/LICENSE).\n\n### Added\n\n- b\n"
    )


def test_a_tag_of_another_version_is_refused(changelog):
    with pytest.raises(SystemExit, match=r"the tag is v1\.0\.0, but the version .* is 1\.1\.0"):
        notes.notes("v1.0.0", REPOSITORY)


def test_a_version_that_the_changelog_lacks_is_refused(changelog):
    changelog.write_text(changelog.read_text().replace("[1.1.0] - 2026-01-02", "[Unreleased]"))
    with pytest.raises(SystemExit, match="has no section"):
        notes.notes("v1.1.0", REPOSITORY)


def test_this_version_has_notes():
    assert notes.notes(f"v{VERSION}", None)
