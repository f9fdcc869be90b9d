"""The pages on the rungs: complete, linked, and up to date where that is cheap to see."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from gemmkit.kernels.ladder import LADDER, find_kernel
from gemmkit.report.ladder_pages import SHOWN, WRITER, page_name
from gemmkit.report.readme import replace_generated

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = DOCS / "ladder"
AGAIN = f"run `.venv/bin/python {WRITER}`"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("render_docs", ROOT / WRITER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rung_has_a_page_with_its_pictures():
    assert {page.name for page in PAGES.glob("*.md")} == {page_name(each) for each in LADDER}
    for kernel in LADDER:
        text = (PAGES / page_name(kernel)).read_text("utf-8")
        drawn = re.findall(r"\(images/([\w-]+)\.svg\)", text)
        assert drawn == [f"{kernel.name}-{what}" for what in SHOWN[kernel.name]], AGAIN
    stored = {path.stem for path in (PAGES / "images").glob("*.svg")}
    assert stored == {f"{name}-{what}" for name, shown in SHOWN.items() for what in shown}, AGAIN


def test_pictures_are_small():
    assert max(path.stat().st_size for path in (PAGES / "images").glob("*.svg")) < 200_000


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


# One that the counters, ptxas's merging and the model all move; drawing all takes long.
@pytest.mark.parametrize(("name", "before"), [("shared_tiling", "naive")])
def test_a_page_is_up_to_date(script, name, before):
    kernel = find_kernel(name)
    facts, other = script.rung_facts(kernel), script.rung_facts(find_kernel(before))
    text = (PAGES / page_name(kernel)).read_text("utf-8")
    assert replace_generated(text, script.sections(kernel, facts, other), WRITER) == text, AGAIN


def test_a_picture_is_up_to_date(script):
    for name, svg in script.rung_pictures(find_kernel("naive")).items():
        assert (PAGES / "images" / name).read_text("utf-8") == svg, AGAIN
