"""The roofline and what-if figures: what they name, that equal data give equal bytes."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from gemmkit.analysis.roofline import roofline
from gemmkit.analysis.what_if import what_if
from gemmkit.gpu import find_board
from gemmkit.report.figures import svg
from gemmkit.report.occupancy import boards_table, what_if_figure, what_if_text
from gemmkit.report.roofline import RooflinePoint, roofline_figure

H100 = find_board("H100")


def words(text: str) -> list[str]:
    root = ET.fromstring(text)
    return [
        "".join(element.itertext()).strip()
        for element in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_roofline_names_roofs_points_and_what_they_are():
    points = [
        RooflinePoint("naive", "L2", 2.0, 6.3, predicted=False),
        RooflinePoint("tiled", "L2", 16.0, 40.0, predicted=True),
    ]
    draw = roofline_figure(roofline(H100), points)
    seen = words(svg(draw))
    assert {"naive", "tiled", "DRAM: 3.35 TB/s", "shared memory: 33.45 TB/s"} <= set(seen)
    assert "TFLOP/s (fp32), measured or predicted" in seen
    assert "H100: peak 66.9 TFLOP/s" in seen
    assert svg(draw) == svg(draw)


def test_a_roofline_without_points_shows_the_roofs():
    assert "TFLOP/s (fp32), attainable" in words(svg(roofline_figure(roofline(H100), [])))


def test_what_if_text_marks_the_place_and_names_the_next_steps():
    seen = what_if(H100, registers=122, threads=256, shared_bytes=16640)
    lines = what_if_text(seen).plain.splitlines()
    assert lines[0] == "H100: 25 % occupancy, 16 warps and 2 blocks per SM, limited by registers"
    assert "warps 8, blocks 32, registers 2, shared memory 13, barriers 64" in lines[1]
    bars, mark = lines[4], lines[5]
    assert mark.strip() == "^ here: 122 registers, 25 %"
    assert bars[mark.index("^")] == "▂"
    assert "  at 80 registers or fewer: 37.5 %" in lines
    assert "  at 129 registers or more: 12.5 %" in lines
    assert "  at 115,840 bytes of shared memory or more: 12.5 %" in lines


def test_what_if_figure_has_a_panel_for_each_quantity():
    seen = what_if(find_board("RTX 3090"), registers=38, threads=256, shared_bytes=2048)
    shown = words(svg(what_if_figure(seen), (11, 4)))
    assert {"registers per thread", "shared bytes per block", "threads per block"} <= set(shown)
    assert shown.count("you are here") == 3
    assert "RTX 3090: limited by warps" in shown


def test_boards_stand_side_by_side_with_every_limit():
    boards = [find_board("RTX 3090"), H100]
    table = boards_table(boards, registers=38, threads=256, shared_bytes=2048, blocks=4096)
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    assert rows[0] == [
        *("RTX 3090", "100 %", "48", "6", "6", "16", "6", "33", "16", "warps", "8.33", "67.48 %"),
    ]
    assert rows[1][:4] == ["H100", "75 %", "48", "6"]
    assert all(len(row) == len(table.columns) for row in rows)
