"""docs/hazards.md shows what `gemmkit check` prints for its bugs, and pictures that are drawn from
their descriptions."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import render_hazards  # noqa: E402
from hazards.bugs import BUGS  # noqa: E402
from hazards.drawing import Box, Scene  # noqa: E402
from hazards.scenes import SCENES  # noqa: E402

from gemmkit.report.readme import markers  # noqa: E402

PAGE = render_hazards.PAGE.read_text("utf-8")


def shown(name):
    begin, end = markers(name, render_hazards.WRITER)
    return PAGE.partition(f"{begin}\n\n")[2].partition(f"\n{end}")[0]


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.sample(2)
def test_the_page_shows_what_is_printed(name):
    bug = BUGS[name]
    printed = render_hazards.output(bug)
    assert shown(name) == render_hazards.section(bug, printed)
    if name == render_hazards.SHOWN_WHOLE:
        assert shown(render_hazards.WHOLE) == f"```text\n{printed}\n```\n"


def test_every_bug_is_shown_with_its_change_and_what_tells_of_it():
    assert len(BUGS) >= 15
    for name, bug in BUGS.items():
        text = shown(name)
        assert bug.told in flat(text), name
        assert ("```diff" in text) == bool(bug.changes), name
        assert not bug.changes or f"```diff\n{bug.diff}\n```" in text, name
    listed = re.findall(rf"<!-- ([\w-]+): written by {render_hazards.WRITER} -->", PAGE)
    assert sorted(listed) == sorted([*BUGS, render_hazards.WHOLE])


def test_lines_that_findings_name_are_those_of_the_kernel():
    for name, bug in BUGS.items():
        lines = bug.source.splitlines()
        for file, number in re.findall(r"([\w.]+\.cu):(\d+)", shown(name)):
            assert file == bug.file_name
            assert lines[int(number) - 1].strip(), (name, number)


def test_pictures_are_drawn_from_their_descriptions():
    drawn = {path.name: path.read_text("utf-8") for path in render_hazards.IMAGES.glob("*.svg")}
    assert drawn == render_hazards.pictures()
    assert all(ET.fromstring(svg).tag.endswith("svg") for svg in drawn.values())


def test_every_picture_is_on_the_page_with_its_description():
    found = dict(re.findall(r"!\[(.*?)\]\(images/hazards/([\w-]+)\.svg\)", PAGE))
    assert found == {scene.alt: name for name, scene in SCENES.items()}


def test_boxes_of_a_lane_do_not_overlap():
    for name, scene in SCENES.items():
        for lane in range(len(scene.lanes)):
            boxes = sorted((each.start, each.end) for each in scene.boxes if each.lane == lane)
            assert all(one[1] <= two[0] for one, two in pairwise(boxes)), name


def test_a_text_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        Scene("", ("a",), (Box(0, 0, 1, "much too long"),)).to_svg()


def test_every_hazard_in_the_table_has_its_section():
    table = PAGE.partition("| hazard |")[2].partition("\n\n")[0]
    titles = re.findall(r"^## (.*)", PAGE, re.M)
    named = re.findall(r"^\| \[(.*?)\]\(#(.*?)\)", table, re.M)
    assert [title for title, _ in named] == titles[1:-1]
    for title, anchor in named:
        assert anchor == title.lower().replace(" ", "-")
