"""The sanitizers find each bug planted in a kernel for clusters, and nothing in sound ones."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_kernels import BUGS, SOUND, run, with_bug

SEEDS = (0, 1, 2)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.sample(3)
def test_a_sound_kernel_is_right_and_has_no_findings(name: str) -> None:
    for seed, sanitize in ((0, False), (1, False), (0, True), (1, True)):
        execution, found, a, b = run(SOUND[name], seed=seed, sanitize=sanitize)
        assert np.array_equal(found, SOUND[name].expected(a, b))
        assert execution.findings == ()


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
@pytest.mark.sample(6)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, *_ = run(with_bug(name), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings
