"""Sound products by wgmma are right and have no findings; what a finding says."""

from __future__ import annotations

import numpy as np
import pytest
from warpgroup_kernels import SOUND, run, with_bug

TILES = {"two warpgroups": ((128, 64, 256), (128, 64))}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.sample(4)
def test_a_sound_kernel_is_right_and_has_no_findings(name: str) -> None:
    sizes, tile = TILES.get(name, ((64, 64, 256), (64, 32)))
    for seed, sanitize in ((0, False), (0, True), (1, True)):
        execution, product, exact = run(SOUND[name], sizes, tile=tile, seed=seed, sanitize=sanitize)
        assert np.array_equal(product, exact)
        assert execution.findings == ()


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
