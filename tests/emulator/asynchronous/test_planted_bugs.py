"""The sanitizers find each bug planted in a pipeline, and nothing in sound ones."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import BUGS, SOUND, operands, run, with_bug

SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_pipeline_is_right_and_has_no_findings(name: str) -> None:
    a, b = operands()
    for seed in range(3):
        for sanitize in (False, True):
            execution, product = run(SOUND[name], seed=seed, sanitize=sanitize)
            assert np.array_equal(product, a @ b)
            assert execution.findings == ()


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, _ = run(with_bug(name), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings
