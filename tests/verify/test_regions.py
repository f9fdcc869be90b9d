"""Descriptions of where wrong elements are."""

import numpy as np
import pytest

from gemmkit.verify.regions import region

SHAPE = (40, 48)


def words(mask):
    return region(*np.nonzero(mask), mask.shape)


def marked(*where):
    mask = np.zeros(SHAPE, bool)
    for each in where:
        mask[each] = True
    return mask


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (np.s_[:], ""),
        (np.s_[3, 4], "[3, 4]"),
        (np.s_[0], "the first row (0)"),
        (np.s_[20:], "the last 20 rows (20 to 39, the lower half)"),
        (np.s_[:, :24], "the first 24 columns (0 to 23, the left half)"),
        (np.s_[5:9], "rows 5 to 8"),
        (np.s_[32:, 40:], "the last 8 rows (32 to 39), in the last 8 columns (40 to 47)"),
        (np.s_[:, 1::2], "the columns with odd numbers"),
        (np.s_[5::8], "the rows ≡ 5 (mod 8)"),
        (np.s_[[1, 7, 20]], "rows 1, 7 and 20"),
        (np.s_[16:32, 16:32], "rows 16 to 31, in columns 16 to 31"),
    ],
)
def test_blocks_and_residues(where, expected):
    assert words(marked(where)) == expected


def test_several_residues():
    assert words(marked(np.s_[:, 2::8], np.s_[:, 3::8])) == "the columns ≡ 2, 3 (mod 8)"


def test_triangles():
    i, j = np.indices(SHAPE)
    assert words(j > i) == "those above the diagonal"
    assert words(i == j) == "the diagonal"


def test_patterns_within_tiles_and_whole_tiles():
    i, j = np.indices(SHAPE)
    assert words((i % 8 == 1) & (j % 4 == 3) | (i % 8 == 5) & (j % 4 == 0)).endswith("8 × 4 tile")
    assert words((i // 16 == 0) & (j // 16 == 2) | (i // 16 == 1) & (j // 16 == 0)) == (
        "2 whole tiles of 16 × 16"
    )
    mask = marked(np.s_[:8, :8], np.s_[16:24, 32:40])
    assert words(mask) == "2 whole tiles of 8 × 8"


def test_scattered_elements_have_their_extent():
    assert words(marked(np.s_[3, 4], np.s_[9, 11], np.s_[17, 5])) == ("[3, 4], [9, 11] and [17, 5]")
