"""The sanitizers find each bug planted in a product by wgmma."""

from __future__ import annotations

import pytest
from warpgroup_kernels import BUGS, run, with_bug

SEEDS = (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, _, _ = run(with_bug(name), seed=seed, sanitize=True)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings
