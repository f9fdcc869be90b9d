"""The sanitizers find each bug planted in a product by wgmma, and nothing in sound ones."""

from __future__ import annotations

import numpy as np
import pytest
from warpgroup_kernels import BUGS, SOUND, run, with_bug

TILES = {"two warpgroups": ((128, 64, 256), (128, 64))}
SEEDS = (0, 1, 2)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_is_right_and_has_no_findings(name: str) -> None:
    sizes, tile = TILES.get(name, ((64, 64, 256), (64, 32)))
    for seed in SEEDS[:2]:
        for sanitize in (False, True):
            execution, product, exact = run(
                SOUND[name], sizes, tile=tile, seed=seed, sanitize=sanitize
            )
            assert np.array_equal(product, exact)
            assert execution.findings == ()


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, _, _ = run(with_bug(name), seed=seed, sanitize=True)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings


def test_a_finding_names_both_lines_and_the_missing_order() -> None:
    source = with_bug("no wait at the end")
    execution, _, _ = run(source, sanitize=True)
    found = next(each for each in execution.findings if each.kind == "accumulator in flight")
    lines = source.split("\n")
    assert found.other is not None
    assert "asm volatile" in lines[found.other.line - 1]
    assert "d[4 * j + r]" in "".join(lines[found.here.line - 2 : found.here.line + 1])
    assert "no wgmma.wait_group that covers it" in found.message
    assert "forgiven by ptxas" in found.message
