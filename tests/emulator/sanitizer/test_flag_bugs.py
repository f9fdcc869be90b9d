"""The sanitizers find each bug planted in kernels with flags, counters and dependent launches, and
nothing in sound ones."""

from __future__ import annotations

import pytest
from flag_kernels import BUGS, SOUND, run, with_bug


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.sample(4)
def test_a_sound_kernel_is_right_and_has_no_findings(name: str) -> None:
    for seed, sanitize in ((0, False), (0, True), (1, True)):
        execution, found, a = run(SOUND[name], seed=seed, sanitize=sanitize)
        assert found.tolist() == a[::-1].tolist()
        assert execution.findings == ()


@pytest.mark.parametrize(("name", "seed"), [(name, index % 2) for index, name in enumerate(BUGS)])
@pytest.mark.sample(6)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, *_ = run(with_bug(name), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings
