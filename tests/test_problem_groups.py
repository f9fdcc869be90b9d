"""`Groups`: sizes of products of different shapes, as text, as files, and in a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.groups import MOST_IN_TEXT, Groups
from gemmkit.problem import GemmProblem
from gemmkit.storage import GroupLayout, placements

TEXT = "512x300x64*3,0x5x7,20x30x40:41:33:35*2,128x128x128"


def test_a_text_is_read_and_written_again():
    groups = Groups.parse(TEXT.replace("128x128x128", "128").replace(",", " , "))
    assert str(groups) == TEXT
    assert groups.count == 7
    assert groups.m.tolist() == [512, 512, 512, 0, 20, 20, 128]
    assert groups.ldb.tolist() == [0, 0, 0, 0, 33, 33, 0]
    # As batches are written.
    assert Groups.parse("8x9x10x4") == Groups.parse("8x9x10*4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a group"),
        ("5x6", "'5x6' is not a group"),
        ("5x6x7,", "'' is not a group"),
        ("5x6x7:8:9", "is not a group"),
        ("5x-6x7", "is not a group"),
        ("5x6x7**2", "is not a group"),
        ("5x6x٣", "is not a group"),
        ("9" * 30, "is not a group"),
        (f"1x1x1*{MOST_IN_TEXT + 1}", "products are asked for: a text may have"),
    ],
)
def test_a_text_that_cannot_be_read(text, words):
    with pytest.raises(UsageError, match=words.replace("*", r"\*")):
        Groups.parse(text)


def test_a_file_has_a_group_on_each_line(tmp_path):
    path = tmp_path / "groups.txt"
    path.write_text(
        "# experts\n512x300x64*3  # the large ones\n\n0x5x7\n20x30x40:41:33:35*2\n128\n"
    )
    assert str(Groups.read(path)) == TEXT
    path.write_text("5x6x7\n5x6\n")
    with pytest.raises(UsageError, match=r"groups\.txt:2: '5x6' is not a group"):
        Groups.read(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="has no group"):
        Groups.read(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Groups.read(tmp_path / "none")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not a text of groups"):
        Groups.read(path)


def test_sizes_that_cannot_be():
    ones = np.ones(2, np.int64)
    with pytest.raises(UsageError, match="product 1: k = -1: sizes must be 0 or more"):
        Groups.of(ones, ones, [1, -1])
    with pytest.raises(UsageError, match="n has 3 entries where m has 2"):
        Groups.of(ones, [1, 2, 3], ones)
    with pytest.raises(UsageError, match=r"product 1 is \(1, 2\): write \(m, n, k\)"):
        Groups.listed([(1, 2, 3), (1, 2)])
    with pytest.raises(UsageError, match="product 1: ldb = 1 is smaller than a row of 5"):
        GemmProblem.of_groups([(1, 1, 1), (1, 5, 1, 1, 1, 5)])
    with pytest.raises(UsageError, match="m = 7 beside groups, of which the largest has 5"):
        GemmProblem(7, 0, 0, groups=Groups.parse("5x5x5"))
    with pytest.raises(UsageError, match="a batch of 3 groups"):
        GemmProblem.of_groups("5x5x5", batch=3)
    with pytest.raises(UsageError, match="have no one size"):
        GemmProblem.of_groups("5x5x5,6x6x6").resized(8, 8, 8)


def test_a_problem_of_groups():
    problem = GemmProblem.of_groups("2x3x4,5x6x0:7:8:9*2", beta=1.0)
    assert (problem.m, problem.n, problem.k, problem.ldc, problem.count) == (5, 6, 4, 9, 3)
    assert problem.groups.lda.tolist() == [4, 7, 7]
    assert problem.product(1) == GemmProblem(5, 6, 0, beta=1.0, lda=7, ldb=8, ldc=9)
    assert problem.groups_text == problem.shape == "2x3x4,5x6x0:7:8:9*2"
    assert problem.flops == 48
    assert problem.results == 66
    assert problem.minimal_bytes == 4 * (8 + 12 + 2 * 66)
    # B is not read where C has no rows.
    assert GemmProblem.of_groups("0x3x4,1x1x1").minimal_bytes == 12
    assert problem == GemmProblem.of_groups([(2, 3, 4), *[(5, 6, 0, 7, 8, 9)] * 2], beta=1.0)
    assert len({problem, GemmProblem.of_groups("2x3x4,5x6x0:7:8:9*2", beta=1.0)}) == 1
    assert problem != GemmProblem.of_groups("2x3x4,5x6x0:7:8:10*2", beta=1.0)


def test_another_layout_keeps_the_padding():
    problem = GemmProblem.of_groups("20x30x40:41:33:35,5x6x7").laid_out("tnt")
    assert problem.groups.table[3:].T.tolist() == [[21, 33, 25], [5, 6, 5]]
    assert problem.groups_text == "20x30x40:21:33:25,5x6x7"
    assert problem.laid_out("nn") == GemmProblem.of_groups("20x30x40:41:33:35,5x6x7")


def test_a_long_text_is_cut_with_the_number_of_those_left_out():
    shapes = [(number, number, number) for number in range(1, 1001)]
    problem = GemmProblem.of_groups(shapes)
    assert problem.shape.startswith("1x1x1,2x2x2,")
    assert problem.shape.endswith(" more")
    shown = problem.shape.split(" +")[0].count(",") + 1
    assert problem.shape.endswith(f"+{1000 - shown} more")
    assert Groups.parse(problem.groups_text).count == 1000


def test_matrices_of_groups_lie_apart_and_aligned():
    problem = GemmProblem.of_groups("3x5x7,0x4x4,16x16x16,1x1x1", alignment=32)
    for name, place in placements(problem).items():
        assert isinstance(place, GroupLayout)
        ends = [start + each.size for start, each in zip(place.starts, place.matrices, strict=True)]
        assert all(start % 8 == 0 for start in place.starts), name
        assert all(end < start for end, start in zip(ends, place.starts[1:], strict=False)), name
        assert place.size == ends[-1]
        storage = np.zeros(place.size)
        for number, view in enumerate(place.view(storage), 1):
            view += number
        assert place.gaps(storage).size == np.count_nonzero(storage == 0)


def test_ragged_groups_are_rows_of_one_a():
    text = "ragged:3x40x72,0x40x72,70x40x72"
    groups = Groups.parse(f" {text.upper()}")
    assert (str(groups), groups.ragged, groups.rows, groups.count) == (text, True, 73, 3)
    assert groups != Groups.parse(text.removeprefix("ragged:"))
    problem = GemmProblem.of_groups(groups, "nt")
    assert problem.ragged
    assert problem.groups_text == text
    assert problem.laid_out("nn").groups_text == text
    assert not problem.product(0).ragged
    for words, wrong in (
        ("product 1: n differs from", "ragged:3x40x72,3x41x72"),
        ("product 2: k differs from", "ragged:3x40x72*2,3x40x71"),
        ("product 1: lda differs from", "ragged:3x40x72,3x40x72:80:40:40"),
        ("'ragged:5x6x7' is not a group", "3x4x5,ragged:5x6x7"),
    ):
        with pytest.raises(UsageError, match=words):
            Groups.parse(wrong)
    for layout in ("tn", "nnt"):
        with pytest.raises(UsageError, match="ragged groups are rows of A"):
            GemmProblem.of_groups(groups, layout)


def test_a_file_says_that_groups_are_ragged(tmp_path):
    path = tmp_path / "routed.txt"
    path.write_text("# tokens\nragged:\n3x40x72\n0x40x72*2\n")
    assert Groups.read(path) == Groups.parse("ragged:3x40x72,0x40x72*2")
    path.write_text("3x40x72\nragged:\n")
    with pytest.raises(UsageError, match=r"routed\.txt:2: "):
        Groups.read(path)


def test_matrices_of_ragged_groups_lie_end_to_end():
    groups = Groups.of([3, 0, 5, 0], 4, 8, 10, 6, 7, ragged=True)
    problem = GemmProblem.of_groups(
        groups, epilogue=Epilogue("row", residual=True, auxiliary=True), dtype="float16"
    )
    placed = placements(problem)
    starts = {name: list(each.starts) for name, each in placed.items()}
    assert starts == {
        "a": [0, 30, 30, 80],
        "b": [0, 48, 96, 144],
        "c": [0, 21, 21, 56],
        # A row has one element of it.
        "bias": [0, 3, 3, 8],
        "residual": [0, 30, 30, 80],
        "auxiliary": [0, 39, 39, 104],
    }
    assert placed["a"].size == 80
    storage = np.arange(placed["a"].size)
    np.testing.assert_array_equal(placed["a"].view(storage)[2][0], range(30, 38))
    # Where rows are padded, the padding is no one's.
    np.testing.assert_array_equal(placed["a"].gaps(storage) % 10, [8, 9] * 8)
    columns = placements(replace(problem, epilogue=Epilogue("column")))["bias"]
    assert list(columns.starts) == [0, 4, 8, 12]


def test_one_division_stands_for_all_of_about_as_many_rows():
    def typical(rows):
        return Groups.of(rows, 8, 16, ragged=True).representative()

    found = typical([100, 0, 0, 28])
    assert found == typical([32] * 4) == typical([30, 40, 31, 32])
    assert found.m.tolist() == sorted(found.m.tolist())
    assert found.rows == 128
    assert (found.ragged, found.count) == (True, 4)
    assert found.m.min() >= 16
    assert found.m.max() <= 48
    assert found != typical([64] * 4)
    assert typical([1, 0, 0, 0]).rows == 1
    one = GemmProblem.of_groups(Groups.of([5], 8, 16, ragged=True))
    assert one.representative.groups.count == 1
    assert GemmProblem(8, 8, 8).representative == GemmProblem(8, 8, 8)
