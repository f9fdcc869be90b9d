"""Lays out the pages of the site: README, the Markdown of `docs`, and every file they link to.

The same sources serve the repository. Here they get what Sphinx needs beside them: links that
follow the site's layout, tables of contents made of the lists in `docs/README.md`, pages for linked
source files, and the API reference. Each language has a site of its own, that of Chinese in a
folder of the English one, which has the source files for both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import api
import render
from languages import CHINESE, ENGLISH, Language, language_of

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path("docs", "reference.md")
# Source files are shown as pages; other linked files are copied.
LANGUAGES = {
    ".cu": "cuda",
    ".cuh": "cuda",
    ".py": "python",
    ".ptx": "text",
    ".toml": "toml",
    ".cff": "yaml",
    "": "text",
}
# Folders of source files that the search leaves out: it would lead to answers first.
UNSEARCHED = ("exercises", "solutions")

_FENCED = re.compile(r"(^(`{3,}).*?^\2`*\s*$)", re.M | re.S)
_LINK = re.compile(r"(?<!`)(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
# A link that is a paragraph of its own, as pages have for the other language.
_LINE_OF_A_LINK = re.compile(r"(?<=\n\n)(\[[^\[\]]*\])\(([^)\s]+)\)\n\n")
_PICTURE = re.compile(
    r"<picture>\s*<source media=\"\(prefers-color-scheme: dark\)\" srcset=\"(?P<dark>[^\"]+)\">\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\" src=\"(?P<light>[^\"]+)\"[^>]*>\s*</picture>"
)


class BrokenLink(Exception):
    """A link to a file that is not in the repository."""


class Stage:
    """A folder of sources for Sphinx, with the pages of one language.

    Args:
        folder: where the sources go.
        language: that of the pages.
        english: the stage of the site that holds what these pages lead to beyond themselves; it is
            filled afterward. None for that site itself.
    """

    def __init__(
        self, folder: Path, language: Language = ENGLISH, english: Stage | None = None
    ) -> None:
        self.crossings: set[tuple[str, str]] = set()
        """Links in HTML, to the other language's site or to an anchor in HTML: page and target."""
        self._folder = folder
        self._language = language
        self._english = english
        self._home = ROOT / language.home
        self._docs = ROOT / language.docs
        self._contents = self._docs / "README.md"
        self._names = render.Names(api.public_items())
        self._waiting: list[Path] = []
        self._seen: set[Path] = set()
        self._broken: list[str] = []

    def fill(self) -> None:
        """Write every page.

        Raises:
            BrokenLink: a page links to a file that does not exist; all such links are named.
        """
        for path in pages(self._language):
            self._wanted(path)
        while self._waiting:
            self._write(self._waiting.pop(0))
        if self._broken:
            raise BrokenLink("\n".join(self._broken))

    def _wanted(self, path: Path) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self._waiting.append(path)

    def _write(self, path: Path) -> None:
        target = self._folder / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            target.write_text(self._folder_page(path), "utf-8")
        elif path.suffix == ".md":
            target.write_text(self._markdown_page(path), "utf-8")
        elif path.suffix in LANGUAGES:
            target.write_text(_source_page(path), "utf-8")
        else:
            shutil.copy(path, target)

    # -- pages

    def _markdown_page(self, path: Path) -> str:
        text = _outside_code(path.read_text("utf-8"), lambda part: self._converted(part, path))
        listed = self._listed(path)
        if path == self._home:
            text += _tables_of_contents(self._sections(), path)
        elif path == ROOT / REFERENCE:
            text = self._reference(text)
        elif path.name == "README.md" and self._docs in path.parents and path != self._contents:
            text += _tables_of_contents({"": listed}, path)
        elif self._docs not in path.parents and path not in self._in_contents():
            text = _orphan(text)
        return text

    def _converted(self, text: str, page: Path) -> str:
        """A page's text with pictures and links as Sphinx takes them."""
        text = _PICTURE.sub(
            lambda found: (
                f"![{found['alt']}]({found['light']}){{.only-light}}\n"
                f"![{found['alt']}]({found['dark']}){{.only-dark}}"
            ),
            text,
        )
        text = _LINE_OF_A_LINK.sub(
            lambda found: "" if leads_to_twin(found[2], page) else found[0], text
        )
        return _LINK.sub(lambda found: self._link(found[1], found[2], page), text)

    def _link(self, shown: str, link: str, page: Path) -> str:
        """A link as it is from the page's place on the site; the file it leads to is wanted."""
        name, hash_, anchor = link.partition("#")
        if re.match(r"[a-z]+:", name):
            return f"{shown}({link})"
        path = Path(os.path.normpath(page.parent / name)) if name else page
        if not path.exists() or ROOT not in path.parents:
            self._broken.append(f"{page.relative_to(ROOT)}: {link} does not exist")
            return f"{shown}({link})"
        language = language_of(path.relative_to(ROOT))
        if language == self._language or not _is_page(path):
            self._wanted(path)
            if not _has_anchor(path, anchor):
                target = os.path.relpath(place(path), place(page).parent) if name else ""
                return f"{shown}({target}{hash_}{anchor})"
        elif self._english:
            self._english._wanted(path)
        # Sphinx, which builds one site at a time, would look for the page in vain, as it does for
        # an anchor that is an HTML tag. `build.py` checks these links afterward.
        here = (self._language.folder / place(page)).with_suffix(".html")
        there = (language.folder / place(path)).with_suffix(".html")
        self.crossings.add((here.as_posix(), f"{there.as_posix()}{hash_}{anchor}"))
        target = os.path.relpath(there, here.parent) + hash_ + anchor
        return f'<a class="reference internal" href="{target}">{shown[1:-1]}</a>'

    def _folder_page(self, path: Path) -> str:
        files = sorted(each for each in path.iterdir() if each.suffix in (".cu", ".cuh"))
        lines = [f"- {self._link(f'[`{each.name}`]', each.name, path / 'x')}" for each in files]
        folders = sorted(each for each in path.iterdir() if any(each.glob("*.cuh")))
        lines += [f"- {self._link(f'[`{each.name}/`]', each.name, path / 'x')}" for each in folders]
        # Links are relative to the page, which lies beside the folder's files.
        text = f"# {path.relative_to(ROOT).as_posix()}\n\n" + "\n".join(lines) + "\n"
        return _orphan(text, searched=path.name not in UNSEARCHED)

    def _reference(self, text: str) -> str:
        """The index, with its names linked, and a page of the reference for each section."""
        items = {item.name: item for item in api.public_items()}
        pages = []
        for title, body in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.M):
            slug = re.sub(r"\W+", "-", title.lower()).strip("-")
            listed = [items[name] for name in re.findall(r"^\| `([\w.]+)` \|", body, re.M)]
            file = self._folder / "reference" / f"{slug}.md"
            file.parent.mkdir(exist_ok=True)
            file.write_text(render.page(title, listed, self._names), "utf-8")
            pages.append(f"reference/{slug}")
        text = re.sub(r"^\| `([\w.]+)` \|", r"| {py:obj}`\1` |", text, flags=re.M)
        return f"{text}\n```{{toctree}}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"

    # -- tables of contents

    def _sections(self) -> dict[str, list[Path]]:
        """The pages that the contents list, by their headings; the contents come first."""
        found: dict[str, list[Path]] = {"": [self._contents]}
        for part in re.split(r"^(?=## )", self._contents.read_text("utf-8"), flags=re.M):
            title = found_title[1] if (found_title := re.match(r"## (.*)", part)) else ""
            listed = [each for each in self._pages_in(part, self._contents) if each != self._home]
            found.setdefault(title, []).extend(listed)
        return {title: pages for title, pages in found.items() if pages}

    def _in_contents(self) -> set[Path]:
        return {each for pages in self._sections().values() for each in pages}

    def _listed(self, path: Path) -> list[Path]:
        listed = self._pages_in(path.read_text("utf-8"), path)
        return [each for each in listed if path.parent in each.parents]

    def _pages_in(self, text: str, page: Path) -> list[Path]:
        """The pages of this language that a text links to, each once, in order."""
        links = [found[2].partition("#")[0] for found in _LINK.finditer(text)]
        paths = [Path(os.path.normpath(page.parent / each)) for each in links]
        return [
            each
            for each in dict.fromkeys(paths)
            if each.suffix == ".md"
            and ROOT in each.parents
            and language_of(each.relative_to(ROOT)) == self._language
        ]


def pages(language: Language) -> list[Path]:
    """The pages of a language in the repository, its README first; none if it has no contents."""
    docs = ROOT / language.docs
    if not (docs / "README.md").exists():
        return []
    found = sorted(docs.rglob("*.md"))
    return [
        ROOT / language.home,
        *(each for each in found if language_of(each.relative_to(ROOT)) == language),
    ]


def leads_to_twin(link: str, page: Path) -> bool:
    """Whether a page's link leads to the same page in the other language."""
    path = Path(os.path.normpath(page.parent / link))
    if ROOT not in path.parents or path.suffix != ".md" or page.suffix != ".md":
        return False
    languages = {language_of(each.relative_to(ROOT)) for each in (path, page)}
    return len(languages) == 2 and place(path) == place(page)


def twins() -> list[str]:
    """The pages that both languages have, as Sphinx names documents."""
    english, chinese = ({place(each) for each in pages(each)} for each in (ENGLISH, CHINESE))
    return sorted(each.with_suffix("").as_posix() for each in english & chinese)


def place(path: Path) -> Path:
    """Where a file of the repository goes on the site of its language."""
    inside = path.relative_to(ROOT)
    language = language_of(inside)
    if inside == Path(language.home):
        return Path("index.md")
    if inside == Path(language.docs, "README.md"):
        return Path("contents.md")
    if path.is_dir():
        return Path("repository") / inside / "index.md"
    if path.suffix != ".md" and path.suffix in LANGUAGES:
        return Path("repository") / inside.with_name(f"{inside.name}.md")
    if path.suffix == ".md" and Path(language.docs) in inside.parents:
        return inside.relative_to(language.docs)
    # Pictures of both languages lie side by side on the site of one.
    if Path("docs") in inside.parents:
        return inside.relative_to("docs")
    return Path("repository") / inside


def _has_anchor(path: Path, anchor: str) -> bool:
    """Whether a page has an anchor in HTML, as pages in Chinese have for links in English."""
    return bool(anchor) and path.suffix == ".md" and f'<a id="{anchor}">' in path.read_text("utf-8")


def _is_page(path: Path) -> bool:
    """Whether the site shows a file as a page; others are copied."""
    return path.is_dir() or path.suffix == ".md" or path.suffix in LANGUAGES


def _tables_of_contents(sections: dict[str, list[Path]], page: Path) -> str:
    text = "\n"
    for title, pages in sections.items():
        caption = f":caption: {title}\n" if title else ""
        lines = [os.path.relpath(place(each).with_suffix(""), place(page).parent) for each in pages]
        text += f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(lines) + "\n```\n"
    return text


def _source_page(path: Path) -> str:
    text = path.read_text("utf-8").rstrip("\n")
    fence = "`" * (3 + max((len(each) for each in re.findall(r"`{3,}", text)), default=0))
    language = LANGUAGES[path.suffix]
    return _orphan(
        f"# {path.relative_to(ROOT).as_posix()}\n\n"
        f"{fence}{{code-block}} {language}\n:lineno-start: 1\n\n{text}\n{fence}\n",
        searched=path.parent.name not in UNSEARCHED,
    )


def _orphan(text: str, *, searched: bool = True) -> str:
    """A page that no table of contents has."""
    metadata = "orphan: true\n" + ("" if searched else "nosearch: true\n")
    return f"---\n{metadata}---\n\n{text}"


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """A text whose parts outside of fenced code blocks are changed."""
    parts, start = [], 0
    for found in _FENCED.finditer(text):
        parts += [change(text[start : found.start()]), found[0]]
        start = found.end()
    return "".join([*parts, change(text[start:])])
