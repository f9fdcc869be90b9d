"""The Chinese pages under docs/zh and README.zh-CN.md say what their English twins say, section by
section: headings, figures, code, links; the courses' files have the same code."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHINESE, LADDER = DOCS / "zh", DOCS / "ladder"
README, README_CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"

PAGES = [
    README,
    *(DOCS / name for name in ("README.md", "install.md", "glossary.md", "tour.md")),
    *sorted(LADDER.glob("*.md")),
]
SOURCES = sorted(
    path for each in ("exercises", "solutions") for path in LADDER.glob(f"{each}/*.cu")
)
TWINNED = {*PAGES, *SOURCES, *(path.parent for path in SOURCES), DOCS / "tour.ipynb"}

FENCE = re.compile(r" *(`{3,})")
HEADING = re.compile(r"(#+) (.*)")
GENERATED = re.compile(r"<!-- (\w+): written by .*? -->.*?<!-- end of \1 -->", re.S)
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
TAG = re.compile(r"<!--.*?-->|</?\w[^>]*>", re.S)
# Not the 2 of `L2` or the 32 of `fp32`, which are names.
NUMBER = re.compile(r"(?<![A-Za-z_\d.,])\d+(?:[.,]\d+)*[⁰¹²³⁴-⁹⁻]*")
CHINESE_LETTER = re.compile(r"[\u4e00-\u9fff]")
# Not the # of a directive.
COMMENT = re.compile(r"(?:(?<=\s)|^)(?:#|//) +(\S.*)", re.M)
WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")


@dataclass
class Section:
    """What stands below a heading: its prose, and its blocks of code without their indentation."""

    title: str
    level: int
    prose: str = ""
    code: list[str] = field(default_factory=list)

    def numbers(self) -> Counter[str]:
        text = INLINE_CODE.sub("", LINK.sub(lambda link: link[0].partition("](")[0], self.prose))
        return Counter(NUMBER.findall(f"{self.title}\n{TAG.sub('', text)}"))

    def links(self) -> list[str]:
        return LINK.findall(without_code(self.prose))

    def names(self) -> set[str]:
        """What stands in backticks."""
        found = INLINE_CODE.findall(f"{self.title}\n{self.prose}")
        return {" ".join(text.split()) for _, text in found}

    def shape(self) -> dict[str, int]:
        return {
            "table rows": len(re.findall(r"^ *\|", self.prose, re.M)),
            "list items": len(re.findall(r"^ *(?:[-*]|\d+\.) ", self.prose, re.M)),
            "folded parts": self.prose.count("<details"),
            "pictures": len(re.findall(r"<img|!\[", self.prose)),
        }


def without_code(text: str) -> str:
    return INLINE_CODE.sub("`…`", text)


def sections(text: str) -> list[Section]:
    """A page by its headings; of a generated block, only its name is kept."""
    found = [Section("", 0)]
    lines = GENERATED.sub(lambda block: f"<!-- {block[1]} -->", text).splitlines()
    while lines:
        line = lines.pop(0)
        if fence := FENCE.match(line):
            block = [line]
            while lines and lines[0].strip() != fence[1]:
                block.append(lines.pop(0))
            lines[:1] = []
            indent = len(line) - len(line.lstrip())
            found[-1].code.append("\n".join(each[indent:] for each in block))
        elif line.startswith("    ") and found[-1].prose.endswith("\n\n"):
            # Code that is indented stands between blank lines.
            block = [line]
            while lines and lines[0].startswith("    "):
                block.append(lines.pop(0))
            found[-1].code.append("\n".join(block))
        elif heading := HEADING.match(line):
            found.append(Section(heading[2], len(heading[1])))
        else:
            found[-1].prose += f"{line}\n"
    return found


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings, and those that a page sets itself."""
    titles = [re.sub(r"[^\w -]", "", each.title.lower()) for each in sections(text)]
    return {title.replace(" ", "-") for title in titles} | {*re.findall(r'<a id="(.*?)">', text)}


def twin(path: Path) -> Path:
    return README_CHINESE if path == README else CHINESE / path.relative_to(DOCS)


def original(path: Path) -> Path:
    return README if path == README_CHINESE else DOCS / path.relative_to(CHINESE)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    """Raises: AssertionError: the page is missing."""
    assert path.is_file(), f"{name(path)} is missing"
    return path.read_text("utf-8")


def outside(link: str) -> bool:
    return "://" in link or link.startswith("mailto:")


def target(link: str, page: Path) -> tuple[Path, str]:
    """The file and the anchor that a link of a page leads to."""
    file, _, anchor = link.partition("#")
    return (Path(os.path.normpath(page.parent / file)) if file else page), anchor


def expected(link: str, page: Path) -> str:
    """Where the Chinese page's link leads, in place of one of the English page."""
    if outside(link):
        return link
    file, anchor = target(link, page)
    if file in TWINNED:
        file = twin(file)
    return os.path.relpath(file, twin(page).parent) + (f"#{anchor}" if anchor else "")


def actual(link: str, page: Path) -> str:
    if outside(link):
        return link
    file, anchor = target(link, page)
    return os.path.relpath(file, page.parent) + (f"#{anchor}" if anchor else "")


def switch(text: str) -> str:
    """The line below the title, which leads to the twin."""
    return next(line for line in text.splitlines()[1:] if line)


def pairs(page: Path) -> list[tuple[str, Section, Section]]:
    """The sections of a page with those of its twin, and a name for messages.

    Raises:
        AssertionError: they are not as many, or of other levels.
    """
    english, chinese = sections(read(page)), sections(read(twin(page)))
    outlines = [
        [f"{'#' * each.level} {each.title}".strip() for each in found[1:]]
        for found in (english, chinese)
    ]
    levels = [[each.level for each in found] for found in (english, chinese)]
    assert levels[0] == levels[1], f"{name(twin(page))} has other headings: {outlines}"
    return [
        (f'{name(twin(page))}, section "{theirs.title}" ("{own.title}")', own, theirs)
        for own, theirs in zip(english, chinese, strict=True)
    ]


def differences(english: Iterable[str], chinese: Iterable[str]) -> str:
    """What one side lacks or has more often than the other, or an empty text."""
    own, theirs = Counter(english), Counter(chinese)
    lacks, adds = [*(own - theirs).elements()], [*(theirs - own).elements()]
    told = [f"lacks {lacks}"] if lacks else []
    return ", ".join([*told, *([f"has in excess {adds}"] if adds else [])])


def report(found: Iterable[tuple[str, str]]) -> None:
    lines = [f"{where}: {what}" for where, what in found if what]
    assert not lines, "\n".join(lines)


each_page = pytest.mark.parametrize("page", PAGES, ids=name)
each_source = pytest.mark.parametrize("source", SOURCES, ids=name)


def test_every_page_has_a_twin_and_every_twin_an_original():
    files = {path for path in CHINESE.rglob("*") if path.suffix in (".md", ".cu")}
    wanted = {twin(path) for path in (*PAGES, *SOURCES)}
    missing = {name(path) for path in wanted if not path.is_file()}
    spare = {f"{name(path)} of {name(original(path))}" for path in files - wanted}
    assert (missing, spare) == (set(), set())
    assert len(PAGES) > 15
    assert len(SOURCES) > 20


@each_page
def test_each_leads_to_the_other(page):
    for own, other, label in ((page, twin(page), "简体中文"), (twin(page), page, "English")):
        link = os.path.relpath(other, own.parent)
        assert switch(read(own)) == f"[{label}]({link})", f"{name(own)}, below the title"


@each_page
def test_headings_and_prose_are_chinese(page):
    # A name alone, such as `gemmkit`, is the same in both languages.
    found = [each for _, english, each in pairs(page) if english.title != each.title]
    assert len(found) >= len(sections(read(page))) - 2
    report(
        (f'{name(twin(page))}, section "{each.title}"', f"has no Chinese {what}")
        for each in found
        for what, text in (("title", each.title), ("text", LINK.sub("", each.prose)))
        if re.search("[A-Za-z]", TAG.sub("", INLINE_CODE.sub("", text)))
        and not CHINESE_LETTER.search(text)
    )


@each_page
def test_figures_are_the_same(page):
    report(
        (where, differences(own.numbers().elements(), theirs.numbers().elements()))
        for where, own, theirs in pairs(page)
    )


def parts(block: str) -> tuple[str, list[str]]:
    """A block of code without its comments, and these.

    What a terminal prints has none. Of a sketch, which has no language, the figures and bars are
    code, and all English is a comment.
    """
    head, _, text = block.partition("\n")
    match head.strip():
        case "```":
            return re.sub(r"[^\d|\n]", "", text), WORDS.findall(text)
        case "```text" | "```console":
            return block, []
    return re.sub(r" *$", "", COMMENT.sub("", block), flags=re.M), COMMENT.findall(block)


@each_page
def test_code_is_the_same(page):
    for where, own, theirs in pairs(page):
        own_code, their_code = ([parts(each)[0] for each in side.code] for side in (own, theirs))
        report([(where, differences(own_code, their_code))])
        report([(where, differences(own.names(), theirs.names()))])
        assert own_code == their_code, f"{where}: its blocks of code have another order"


@each_page
def test_comments_of_code_are_chinese_with_the_same_figures(page):
    for where, own, theirs in pairs(page):
        for english, chinese in zip(own.code, theirs.code, strict=True):
            said = [parts(each)[1] for each in (english, chinese)]
            if WORDS.search("\n".join(said[0])):
                left = [each for each in said[1] if not CHINESE_LETTER.search(each)]
                report([(where, f"comments are English: {left}" if left else "")])
            figures = [NUMBER.findall("\n".join(each)) for each in said]
            report([(where, differences(*figures))])


@each_page
def test_tables_lists_and_pictures_are_as_many(page):
    report(
        (where, f"{count} {what} in English, {theirs.shape()[what]} in Chinese")
        for where, own, theirs in pairs(page)
        for what, count in own.shape().items()
        if count != theirs.shape()[what]
    )


@each_page
def test_generated_blocks_are_the_same(page):
    blocks = [GENERATED.findall(read(each)) for each in (page, twin(page))]
    assert blocks[1] == blocks[0], name(twin(page))


@each_page
def test_links_lead_to_the_chinese_page_where_there_is_one(page):
    own_switch, their_switch = (LINK.findall(switch(read(each))) for each in (page, twin(page)))
    report(
        (
            where,
            differences(
                [expected(link, page) for link in own.links() if link not in own_switch],
                [actual(link, twin(page)) for link in theirs.links() if link not in their_switch],
            ),
        )
        for where, own, theirs in pairs(page)
    )


@each_page
def test_links_of_chinese_pages_lead_somewhere(page):
    chinese = twin(page)
    pictures = re.findall(r'(?:src|srcset)="(.*?)"', read(chinese))
    text = without_code(re.sub(r"^( *`{3,}).*?^\1 *$", "", read(chinese), flags=re.M | re.S))
    broken = []
    for link in [*LINK.findall(text), *pictures]:
        file, anchor = target(link, chinese)
        if outside(link) or (file.exists() and not anchor):
            continue
        if not file.exists() or anchor not in anchors(read(file)):
            broken.append(link)
    assert broken == [], f"{name(chinese)} has links to files or anchors that do not exist"


@each_page
def test_links_to_english_pages_say_so(page):
    chinese = twin(page)
    text = GENERATED.sub("", read(chinese)).replace(switch(read(chinese)), "", 1)
    twins = {twin(each) for each in PAGES}
    report(
        (name(chinese), f"{link[0]} is not followed by （英文）")
        for link in LINK.finditer(text)
        if not outside(link[1])
        and (file := target(link[1], chinese)[0]).suffix == ".md"
        and file not in twins
        and not re.match("[（，、]英文", text[link.end() :])
    )


def test_a_page_is_read_by_sections():
    found = sections(
        '# T 1\n\nOf `x 2`, 3,000 or 4² in [5](6.md) on `L7`, L8 and <a id="9">0.5</a>.\n\n'
        "    code 10\n    # 11\n\n## U\n\n1. a\n   ```text\n   12\n     13\n   ```\n| 14 |\n"
        "<!-- x: written by y -->\n15\n<!-- end of x -->\n"
    )
    assert [(each.level, each.title) for each in found] == [(0, ""), (1, "T 1"), (2, "U")]
    assert [each.code for each in found] == [[], ["    code 10\n    # 11"], ["```text\n12\n  13"]]
    assert found[1].numbers() == Counter(["1", "3,000", "4²", "5", "0.5"])
    assert found[2].numbers() == Counter(["1", "14"])
    assert found[1].links() == ["6.md"]
    assert found[2].shape() == {
        "table rows": 1, "list items": 1, "folded parts": 0, "pictures": 0
    }  # fmt: skip


def code(source: str) -> list[str]:
    """The lines of a CUDA file without comments."""
    bare = re.sub(
        r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/',
        lambda found: found[1] or "",
        source,
        flags=re.S,
    )
    return [line.rstrip() for line in bare.splitlines() if line.strip()]


def comments(source: str) -> str:
    return "\n".join(re.findall(r"//(.*)", source))


@each_source
def test_files_of_the_course_have_the_same_code(source):
    english, chinese = read(source), read(twin(source))
    assert code(chinese) == code(english), name(twin(source))
    # The command in the head, which is set in.
    commands = [re.findall(r"^//   .*", text, re.M) for text in (english, chinese)]
    assert commands[1] == commands[0], name(twin(source))
    assert chinese.count("// TODO") == english.count("// TODO"), name(twin(source))


@each_source
def test_comments_of_the_course_are_chinese_with_the_same_figures(source):
    english, chinese = comments(read(source)), comments(read(twin(source)))
    assert CHINESE_LETTER.search(chinese), f"{name(twin(source))} has no Chinese comment"
    report([(name(twin(source)), differences(NUMBER.findall(english), NUMBER.findall(chinese)))])
