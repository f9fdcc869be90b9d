"""The sanitizers find each bug planted in a pipeline, and nothing in sound ones."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch
from pipelines import BUGS, SOUND, operands, run, with_bug

from gemmkit.emulator import load

SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_pipeline_is_right_and_has_no_findings(name: str) -> None:
    a, b = operands()
    for seed in range(2):
        for sanitize in (False, True):
            execution, product = run(SOUND[name], seed=seed, sanitize=sanitize)
            assert np.array_equal(product, a @ b)
            assert execution.findings == ()


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
@pytest.mark.sample(4)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, _ = run(with_bug(name), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stage read before it is full", "with no completed wait for that copy between"),
        ("too few bytes announced", "expect_tx announces fewer than are copied"),
    ],
)
def test_a_read_before_wait_says_whether_too_few_bytes_are_announced(name: str, text: str) -> None:
    found = []
    for seed in range(8):
        found += run(with_bug(name), seed=seed)[0].findings
    messages = {each.message for each in found if each.kind == "read before wait"}
    assert messages
    assert all(text in each for each in messages), messages


def test_global_memory_that_an_mbarrier_orders_is_no_race() -> None:
    ptx = kernel_ptx(
        """mov.u32 %r10, bar;
        setp.eq.u32 %p0, %tid, 0;
        @%p0 mbarrier.init.shared::cta.b64 [%r10], 32;
        bar.sync 0;
        setp.lt.u32 %p1, %tid, 32;
        @!%p1 bra WAIT;
        st.global.u32 [%at], %tid;
        mbarrier.arrive.shared::cta.b64 _, [%r10];
        bra END;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
        @!%p2 bra WAIT;
        ld.global.u32 %r1, [%at+-128];
        st.global.u32 [%at], %r1;
        END:""",
        declarations=".shared .align 8 .b64 bar;",
        target="sm_90",
    )
    sanitized = Executor(
        "sanitized",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, sanitize=True
        ),
    )
    outcome = launch(sanitized, ptx, np.zeros(64, np.uint32), block=64)
    assert outcome.execution.findings == ()
    assert outcome.arrays[0].tolist() == 2 * list(range(32))
