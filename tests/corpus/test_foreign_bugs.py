"""Kernels as users bring them: every bug is found, and no correct kernel is flagged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from foreign_kernels import BUGS, FOLDER, FOREIGN, Bug, bring, check_bug, seen

from gemmkit.bench.check import check

LEAST_BUGS = 60


def label(bug: Bug) -> str:
    return f"{bug.kernel}: {bug.name}"


@pytest.mark.parametrize("bug", BUGS, ids=label)
@pytest.mark.sample(14)
def test_a_bug_is_found(tmp_path, bug):
    records = check_bug(bug, tmp_path)
    assert seen(records) & set(bug.expects), records


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.sample(7)
def test_a_sound_kernel_is_not_flagged(tmp_path, name):
    records = check(bring(name, tmp_path), **FOREIGN[name].check)
    ran = [record for record in records if record.verdict != "refused"]
    assert [(record.problem.shape, record.verdict, record.detail) for record in ran] == [
        (record.problem.shape, "ok", record.detail) for record in ran
    ]
    assert len(ran) >= 3


@pytest.mark.parametrize("name", ["swizzled", "register_tile"])
def test_nor_on_another_board(tmp_path, name):
    records = check(bring(name, tmp_path), FOREIGN[name].shapes, gpu="h100")
    assert [record.verdict for record in records] == ["ok"]


def test_the_corpus_is_large_and_every_file_has_bugs():
    assert len(BUGS) >= LEAST_BUGS
    assert len({label(bug) for bug in BUGS}) == len(BUGS)
    assert {bug.kernel for bug in BUGS} == set(FOREIGN)
    assert {path.stem for path in FOLDER.glob("*.cu")} == set(FOREIGN)


def test_words_that_do_not_stand_exactly_once_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"square: not exactly once: no such words"):
        bring("square", tmp_path, replace(BUGS[0], old="no such words"))
