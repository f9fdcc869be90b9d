"""The interleavings of findings in products by wgmma: replayed, they give a wrong result."""

from __future__ import annotations

import numpy as np
import pytest
from warpgroup_kernels import run, with_bug

from gemmkit.emulator.schedule import Schedule

# A sample: each bug of `warpgroup_kernels` whose finding has an interleaving goes wrong.
BUGS = ("no barrier after the stores", "full barrier not waited for")
# The emulator reads the operands of a wgmma, and makes writes visible, when they are issued.
WITHOUT = {
    "stage released before the wait": "when it is issued",
    "no proxy fence after cp.async": "may not be visible to the asynchronous proxy",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_product_goes_wrong(name: str) -> None:
    execution, *_ = run(with_bug(name), sanitize=True, interleavings=True)
    found = [each.interleaving for each in execution.findings if each.interleaving is not None]
    schedule = next(each.schedule for each in found if each.schedule)
    _, product, expected = run(with_bug(name), sanitize=True, schedule=Schedule.parse(schedule))
    assert not np.array_equal(product, expected)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_finding_that_no_order_shows_says_so(name: str) -> None:
    execution, product, expected = run(with_bug(name), sanitize=True, interleavings=True)
    assert np.array_equal(product, expected)
    reasons = [each.interleaving.reason for each in execution.findings if each.interleaving]
    assert any(WITHOUT[name] in each for each in reasons), reasons
