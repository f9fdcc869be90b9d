"""The pages on the rungs: complete, linked, and up to date where that is cheap to see."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.report.ladder_pages import SHOWN, WRITER, page_name
from gemmkit.report.readme import replace_generated

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = DOCS / "ladder"
OTHERS = ("benchmarks", "examples")
AGAIN = f"run `.venv/bin/python {WRITER}`"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("render_docs", ROOT / WRITER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rung_has_a_page_with_its_pictures():
    assert {page.name for page in PAGES.glob("[0-9]*.md")} == {page_name(each) for each in LADDER}
    for kernel in LADDER:
        text = (PAGES / page_name(kernel)).read_text("utf-8")
        drawn = re.findall(r"\(images/([\w-]+)\.svg\)", text)
        assert drawn == [f"{kernel.name}-{what}" for what in SHOWN[kernel.name]], AGAIN
    stored = {path.stem for path in (PAGES / "images").glob("*.svg")}
    assert stored == {f"{name}-{what}" for name, shown in SHOWN.items() for what in shown}, AGAIN


def test_pictures_are_small():
    assert max(path.stat().st_size for path in (PAGES / "images").glob("*.svg")) < 200_000


def anchors(text):
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


LINKING = [
    *ROOT.glob("*.md"),
    *DOCS.rglob("*.md"),
    *(ROOT / each / "README.md" for each in OTHERS),
]


# Chinese pages, whose anchors are not made of their headings, have a test in test_chinese.py.
@pytest.mark.parametrize(
    "page",
    sorted(each for each in LINKING if not {"zh", "README.zh-CN.md"} & {*each.parts}),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text("utf-8")), target


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_code_on_a_page_stands_in_the_sources(kernel):
    folder = ROOT / "src" / "gemmkit" / "kernels"
    sources = [folder / "ladder" / f"{kernel.name}.cu", *(folder / "include").glob("*.cuh")]
    lines = [[line.strip() for line in path.read_text("utf-8").splitlines()] for path in sources]
    text = (PAGES / page_name(kernel)).read_text("utf-8")
    for snippet in re.findall(r"^```cuda\n(.*?)^```", text, re.M | re.S):
        wanted = [line.strip() for line in snippet.splitlines()]
        assert any(
            wanted == own[first : first + len(wanted)] for own in lines for first in range(len(own))
        ), snippet


# One that the counters, ptxas's merging and the model all move; drawing all takes long.
@pytest.mark.parametrize(("name", "before"), [("shared_tiling", "naive")])
def test_a_page_is_up_to_date(script, name, before):
    kernel = find_kernel(name)
    facts, other = script.rung_facts(kernel), script.rung_facts(find_kernel(before))
    figures = script.figures(facts, other)
    for language, folder in script.PAGES.items():
        text = (folder / page_name(kernel)).read_text("utf-8")
        sections = script.sections(figures, language)
        assert replace_generated(text, sections, WRITER) == text, f"{language}: {AGAIN}"


def test_a_picture_is_up_to_date(script):
    for name, svg in script.rung_pictures(find_kernel("naive")).items():
        assert (PAGES / "images" / name).read_text("utf-8") == svg, AGAIN
