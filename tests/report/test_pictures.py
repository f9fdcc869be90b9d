"""Pictures of addresses, banks and tiles: what they show, as text and as figures."""

from __future__ import annotations

import re

import pytest

from gemmkit.analysis.trace import trace
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.pictures.drawn import pictures
from gemmkit.report.pictures.text import address_map, bank_map, text_pictures, tile_map

BOARD = find_board("rtx3090")
PROBLEM = GemmProblem(64, 64, 32, lda=1024)


def traced(name: str, **changes: int):
    kernel = find_kernel(name)
    return trace(kernel, PROBLEM, BOARD, config=kernel.configure(changes))


@pytest.fixture(scope="module")
def uncoalesced():
    return traced("naive_uncoalesced")


@pytest.fixture(scope="module")
def vectorized():
    return traced("vectorized", BM=64, BN=64)


def pick(seen, array, kind):
    return next(each for each in seen.representatives() if (each.array, each.kind) == (array, kind))


def test_one_lane_a_line(uncoalesced):
    text = address_map(uncoalesced, pick(uncoalesced, "A", "load")).plain
    assert "load of A: ld.global.f32 at naive_uncoalesced.cu:" in text
    assert "32 lanes × 4 bytes: 32 sectors in 32 lines" in text
    assert "A[1][0] │  1 ·· ·· ·· ·· ·· ·· ··│" in text
    assert "and 26 more lines" in text


def test_one_word_for_all_lanes(uncoalesced):
    text = address_map(uncoalesced, pick(uncoalesced, "B", "load")).plain
    assert "B[0][0] │ ## ·· ·· ·· ·· ·· ·· ··│" in text
    assert "1 sector in 1 line" in text


def test_banks_show_who_meets(vectorized):
    text = bank_map(pick(vectorized, "As", "store")).plain
    assert "1 phase, 4 wavefronts, 3 bank conflicts" in text
    rows = text.splitlines()[3:7]
    # Four lanes with four values of k for each row of A.
    assert [row.removeprefix("phase 0").split()[0] for row in rows] == ["0", "1", "2", "3"]


def test_banks_without_conflicts(vectorized):
    text = bank_map(pick(vectorized, "Bs", "store")).plain
    assert "4 phases, 4 wavefronts, no bank conflicts" in text
    assert "phase 3   24 24 24 24 25" in text


def test_tiles_stand_as_in_the_product(vectorized):
    text = tile_map(vectorized).plain
    assert "B, 16 × 64: the threads that load it" in text
    assert "A, 64 × 16: the threads that load it" in text
    assert "C, 64 × 64: the threads that store it" in text
    rows = text.splitlines()
    first = rows[rows.index(next(row for row in rows if "C, 64" in row)) + 1]
    # Every second element: lanes of A's vectors, then 8 results wide threads of C.
    assert first.split() == [*"00112233", *(str(col // 4) for col in range(32))]


@pytest.mark.parametrize("name", ["naive_uncoalesced", "vectorized"])
def test_pictures_are_narrow_enough(name, uncoalesced, vectorized):
    seen = {"naive_uncoalesced": uncoalesced, "vectorized": vectorized}[name]
    for picture in text_pictures(seen):
        assert max(map(len, picture.plain.splitlines())) <= 120


def test_figures_are_equal_each_time_and_small(vectorized):
    _, banks, tiles = pictures(vectorized)
    assert banks.to_svg() == banks.to_svg()
    assert max(len(banks.to_svg()), len(tiles.to_svg())) < 150_000


def test_figures_hold_the_same_captions(uncoalesced):
    addresses, tiles = pictures(uncoalesced)
    assert (addresses.name, tiles.name) == (
        "naive_uncoalesced-addresses",
        "naive_uncoalesced-tiles",
    )
    texts = re.findall(r">([^<>]+)</(?:text|tspan)>", addresses.to_svg())
    assert any("32 sectors in 32 lines; the first 8 lines are shown" in text for text in texts)
    assert "A[7][0]" in texts


def test_figures_are_saved_in_both_formats(uncoalesced, tmp_path):
    picture = pictures(uncoalesced)[0]
    svg = picture.save(tmp_path / "new")
    png = picture.save(tmp_path / "new", "png")
    assert svg.read_text("utf-8").lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"must end in \.svg or \.png"):
        picture.save(tmp_path, "gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot create the folder"):
        picture.save(tmp_path / "file")


def test_a_block_that_leaves_its_tile_to_another_has_no_picture_of_it(monkeypatch):
    seen = trace(find_kernel("split_k"), GemmProblem(64, 64, 128), BOARD)
    assert [picture.name for picture in pictures(seen)] == ["split_k-addresses", "split_k-banks"]
    assert any("workspace" in text.plain for text in text_pictures(seen))
    # As where the TMA moves all that is in global memory.
    shared = [each for each in seen.representatives() if each.space == "shared"]
    monkeypatch.setattr(type(seen), "representatives", lambda _: shared)
    assert [picture.name for picture in pictures(seen)] == ["split_k-banks"]
    assert pictures(seen)[0].to_svg().lstrip().startswith("<?xml")
