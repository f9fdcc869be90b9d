"""The sanitizers find each bug planted in kernels with tensor copies, and nothing in sound ones."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_pipelines import BUGS, RING, SOUND, K, M, run, with_bug

from gemmkit.emulator.launch import Execution
from gemmkit.errors import DeviceError


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_is_right_and_has_no_findings(name: str) -> None:
    for seed, sanitize in ((0, False), (3, False), (0, True), (1, True), (2, True)):
        execution, a, c = run(SOUND[name], seed=seed, sanitize=sanitize)
        a[:, K:] = 0
        assert np.array_equal(c, a.reshape(-1, 4, 32).sum(axis=1))
        assert execution.findings == ()


@pytest.mark.parametrize(("name", "seed"), [(name, n % 3) for n, name in enumerate(BUGS)])
@pytest.mark.sample(3)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, *_ = run(with_bug(name), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], [each.message for each in execution.findings]


def message(execution: Execution, kind: str) -> str:
    return next(each.message for each in execution.findings if each.kind == kind)


def test_a_deadlock_names_the_bytes_of_the_boxes() -> None:
    execution, *_ = run(with_bug("too many bytes announced"))
    text = message(execution, "deadlock")
    assert "1,024 of 1,152 announced bytes, in boxes of 1,024 bytes" in text


def test_a_map_that_does_not_fit_its_array() -> None:
    execution, *_ = run(RING, rows=M + 1)
    text = message(execution, "tensor map past the end")
    assert "does not fit 'A': its tensor of 120x17 float32 elements" in text
    assert "has 8,672 bytes from byte 0, where 8,192 are left" in text


def test_a_box_past_the_array_is_refused_without_sanitizers_too() -> None:
    with pytest.raises(DeviceError, match=r"(?s)up to byte 8,319.*'A' has 8,192 bytes.*k\.cu:41"):
        run(RING, rows=M + 1, last=M + 1, sanitize=False)
